"""Memory that a block allocates moves to huge pages; what it holds stays what it was."""

import threading
from pathlib import Path

import pytest

from andrea_export.session.huge_pages import SETTING, on_huge_pages

MEBIBYTE = 1 << 20


def huge_mebibytes():
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("AnonHugePages")) // 1024


def wait():
    for thread in threading.enumerate():
        if thread.name == "huge-pages":
            thread.join()


@pytest.mark.skipif(
    not SETTING.exists() or "[madvise]" not in SETTING.read_text(),
    reason="this system gives huge pages to nobody, or to everybody",
)
def test_large_weights_move_to_huge_pages_and_keep_their_values():
    before = huge_mebibytes()
    with on_huge_pages(96 * MEBIBYTE):
        weights = bytearray(b"\x5a") * (96 * MEBIBYTE)  # numpy would ask for huge pages by itself
    assert huge_mebibytes() - before < 32
    wait()
    moved = huge_mebibytes() - before
    if moved == 0:
        pytest.skip("this kernel moves nothing when asked (Linux before 6.1, or no free blocks)")
    assert moved >= 32
    assert weights.count(0x5A) == 96 * MEBIBYTE


def test_small_weights_are_left_alone():
    with on_huge_pages(MEBIBYTE):
        weights = bytearray(MEBIBYTE)
    assert not [thread for thread in threading.enumerate() if thread.name == "huge-pages"]
    assert len(weights) == MEBIBYTE


def test_error_in_the_block_is_passed_on():
    with pytest.raises(RuntimeError, match="no memory"), on_huge_pages(96 * MEBIBYTE):
        raise RuntimeError("no memory")

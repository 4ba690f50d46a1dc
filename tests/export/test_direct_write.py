"""Writing past the page cache: the same bytes as ever, of any length, on any file system."""

import errno
import os

import pytest

from andrea_export.engine.direct_write import BLOCK_BYTES, PIECE_BYTES, write_to_disk


@pytest.mark.parametrize(
    "length",
    [
        *(0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1),
        *(PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 4097),
    ],
)
def test_file_holds_just_the_bytes_that_were_given(tmp_path, length):
    data, path = os.urandom(length), tmp_path / "file"
    write_to_disk(path, data)
    assert path.read_bytes() == data


def test_longer_older_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"older" * 10_000)
    write_to_disk(path, b"new")
    assert path.read_bytes() == b"new"


def test_memory_of_other_items_is_written_byte_by_byte(tmp_path):
    numbers = memoryview(bytes(range(8))).cast("I")
    write_to_disk(tmp_path / "file", numbers)
    assert (tmp_path / "file").read_bytes() == bytes(range(8))


def test_file_system_without_direct_writes_gets_the_same_bytes(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "open", refused)
    write_to_disk(tmp_path / "file", b"bytes")
    assert (tmp_path / "file").read_bytes() == b"bytes"


def test_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_to_disk(tmp_path / "none" / "file", b"bytes")

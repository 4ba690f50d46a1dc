"""An output appears whole or not at all, and nothing but our own output is ever replaced."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from andrea_export.errors import InputError, OutputError
from andrea_export.whole_folder import check_output, whole_folder


def write(target, text, force=False):
    with whole_folder(target, force=force) as folder:
        (folder / "export.json").write_text(text)


def write_array(target):
    """As weights are written: numpy raises an error without a number."""
    with whole_folder(target, force=False) as folder:
        np.zeros(1_000_000).tofile(folder / "model.onnx.data")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_folder_appears_with_its_parents_when_the_block_ends_well(tmp_path):
    write(tmp_path / "a" / "b", "one")
    assert (tmp_path / "a" / "b" / "export.json").read_text() == "one"
    assert names(tmp_path / "a") == ["b"]


def test_nothing_is_left_when_the_block_raises(tmp_path):
    def fail():
        with whole_folder(tmp_path / "out", force=False) as folder:
            (folder / "export.json").write_text("half")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail()
    assert names(tmp_path) == []


def test_older_output_is_refused_without_force_and_replaced_with_it(tmp_path):
    write(tmp_path / "out", "one")
    (tmp_path / "out" / "tokenizer.json").touch()
    with pytest.raises(OutputError, match=r"out exists: choose another output, or .* --force"):
        write(tmp_path / "out", "two")
    write(tmp_path / "out", "two", force=True)
    assert (tmp_path / "out" / "export.json").read_text() == "two"
    assert names(tmp_path / "out") == ["export.json"]
    assert names(tmp_path) == ["out"]


def test_older_output_is_untouched_when_its_replacement_fails(tmp_path):
    write(tmp_path / "out", "one")

    def fail():
        with whole_folder(tmp_path / "out", force=True):
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail()
    assert (tmp_path / "out" / "export.json").read_text() == "one"
    assert names(tmp_path) == ["out"]


def test_foreign_folder_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"has no export\.json, so it is no older output"):
        check_output(tmp_path / "home", force=True)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", ["model.safetensors", "notes.txt", "nested/"])
def test_output_that_holds_something_else_is_not_replaced(tmp_path, name):
    write(tmp_path / "out", "one")
    other = tmp_path / "out" / name
    other.mkdir() if name.endswith("/") else other.write_text("mine")
    message = f"out also holds {name.rstrip('/')}, which andrea-export did not write"
    with pytest.raises(OutputError, match=message):
        write(tmp_path / "out", "two", force=True)
    assert other.exists()
    assert (tmp_path / "out" / "export.json").read_text() == "one"


def test_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    def overtaken():
        with whole_folder(tmp_path / "out", force=False) as folder:
            (folder / "export.json").write_text("late")
            write(tmp_path / "out", "first")

    with pytest.raises(OutputError, match="out exists: choose another output"):
        overtaken()
    assert (tmp_path / "out" / "export.json").read_text() == "first"
    assert names(tmp_path) == ["out"]


def test_current_folder_is_not_replaced(tmp_path, monkeypatch):
    write(tmp_path / "out", "one")
    monkeypatch.chdir(tmp_path / "out")
    with pytest.raises(OutputError, match="holds the current folder"):
        check_output(Path(), force=True)


def test_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(OutputError, match="cannot be written: File name too long"):
        check_output(tmp_path / ("x" * 300), force=False)


def test_output_of_another_kind_is_not_replaced(tmp_path):
    write(tmp_path / "out", "a graph")
    with pytest.raises(OutputError, match=r"out exists and has no engine\.json"):
        check_output(tmp_path / "out", force=True, record="engine.json")


def test_empty_folder_is_taken_with_force(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "one", force=True)
    assert names(tmp_path / "out") == ["export.json"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_not_a_folder_is_refused_even_with_force(tmp_path, kind):
    target = tmp_path / "out"
    if kind == "file":
        target.write_text("text")
    else:
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="exists and is not a folder"):
        check_output(target, force=True)


def test_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(OutputError, match=r"file/out cannot be written: "):
        write(tmp_path / "file" / "out", "one")


WRITER = """
    import os, sys, time
    from pathlib import Path
    from andrea_export.whole_folder import whole_folder
    with whole_folder(Path(sys.argv[1]), force=True) as folder:
        (folder / "export.json").write_text("two")
        print("ready", flush=True)
        time.sleep(60)
"""


def test_file_elsewhere_that_cannot_be_read_is_not_taken_for_the_output(tmp_path):
    source = tmp_path / "weights.bin"
    missing = pytest.raises(InputError, match=r"weights.bin cannot be read: No such file")
    with missing, whole_folder(tmp_path / "out", force=False):
        source.read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_file_of_the_output_that_cannot_be_written_is_the_output(tmp_path):
    missing = pytest.raises(OutputError, match=r"out cannot be written: No such file")
    with missing, whole_folder(tmp_path / "out", force=False) as folder:
        (folder / "missing" / "file").write_text("x")


def test_killed_writer_leaves_the_older_output_and_the_next_one_sweeps(tmp_path):
    write(tmp_path / "out", "one")
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (tmp_path / "out" / "export.json").read_text() == "one"
    assert len(names(tmp_path)) == 2
    write(tmp_path / "out", "three", force=True)
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "export.json").read_text() == "three"


def test_partial_folder_of_a_living_process_is_left_alone(tmp_path):
    other = tmp_path / f".out.{os.getppid()}-0.partial"
    other.mkdir()
    write(tmp_path / "out", "one")
    assert other.exists()


def test_full_disk_is_told_and_nothing_is_left(full_disk):
    with pytest.raises(OutputError, match=r"out cannot be written: the disk is full"):
        write(full_disk / "out", "x" * 1_000_000)
    with pytest.raises(OutputError, match=r"out cannot be written: the disk is full"):
        write_array(full_disk / "out")
    assert names(full_disk) == []


def test_file_size_limit_is_told_and_nothing_is_left(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OutputError, match="out cannot be written: File too large"):
            write(tmp_path / "out", "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == []

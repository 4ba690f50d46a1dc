"""An output folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from andrea_export.errors import InputError, OutputError

__all__ = ["check_output", "whole_folder"]

# What the stages write. --force replaces a folder of these names, and none that holds another:
# what people put into it is not ours to delete.
OUR_FILES = frozenset(
    {
        *("model.onnx", "model.onnx.data", "export.json"),
        *("model.engine", "engine.json", "network.json"),
        *("report.json", "report.md", "report.html"),
        *("config.json", "tokenizer.json"),
    }
)
PARTIAL = ".{name}.{pid}-{number}.partial"
_numbers = itertools.count()
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def check_output(target: Path, *, force: bool, record: str = "export.json") -> None:
    """Refuse a place that must not be written, before any work is done.

    `record` is the file by which an older output of the same kind is known: a graph replaces a
    graph, an engine an engine, and neither the other.

    Raises:
        OutputError: it exists and `force` is not set; or it exists and is not ours to replace.
    """
    try:
        _check_output(Path(os.path.abspath(target)), target, force=force, record=record)
    except OSError as error:
        raise _explained(error, target) from error


def _check_output(path: Path, shown: Path, *, force: bool, record: str) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise OutputError(f"{shown} exists and is not a folder: choose another output")
    if not path.exists():
        return
    if not force:
        raise OutputError(f"{shown} exists: choose another output, or replace it with --force")
    if Path.cwd().is_relative_to(path):
        raise OutputError(f"{shown} holds the current folder: --force does not replace it")
    names = {entry.name for entry in path.iterdir()}
    if names and record not in names:
        raise OutputError(
            f"{shown} exists and has no {record}, so it is no older output of this command: "
            "--force does not replace it"
        )
    if foreign := sorted(names - OUR_FILES):
        raise OutputError(
            f"{shown} also holds {', '.join(foreign[:3])}, which andrea-export did not write: "
            "--force does not replace it"
        )


@contextlib.contextmanager
def whole_folder(target: Path, *, force: bool, record: str = "export.json") -> Iterator[Path]:
    """A temporary folder beside `target` that takes its name when the block ends well.

    When the block raises, nothing is left and an older `target` is untouched. What a killed
    process left behind is swept away by the next one that writes here.

    Raises:
        OutputError: see `check_output`; or the disk is full, or a folder cannot be written.
        InputError: the block could not read a file elsewhere.
    """
    target = Path(os.path.abspath(target))
    check_output(target, force=force, record=record)
    number = next(_numbers)
    partial = target.parent / PARTIAL.format(name=target.name, pid=os.getpid(), number=number)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        partial.mkdir()
        yield partial
        _sync(partial)
        _put_in_place(partial, target, force=force, record=record)
    except OSError as error:
        if _is_elsewhere(error, partial, target):
            reason = error.strerror or error
            raise InputError(f"{error.filename} cannot be read: {reason}") from error
        raise _explained(error, target) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, target: Path, *, force: bool, record: str) -> None:
    try:
        # rename() replaces an empty folder, and in one step takes a name that is free.
        partial.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        check_output(
            target, force=force, record=record
        )  # again: somebody may have written there meanwhile
        _exchange(partial, target)  # the older folder is now `partial`, and goes with it


def _exchange(a: Path, b: Path) -> None:
    """Swap two folders; in one step where the system can, so that no moment lacks `b`."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        names = os.fsencode(a), os.fsencode(b)
        if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
    except (OSError, AttributeError):
        pass
    # In two steps, then: a kill between them leaves the older folder under the swept name.
    aside = a.with_name(f"{a.name}.older")
    b.rename(aside)
    a.rename(b)
    aside.rename(a)


def _sweep(target: Path) -> None:
    name = re.escape(target.name)
    pattern = re.compile(PARTIAL.format(name=name, pid=r"(\d+)", number=r"\d+") + r"(\.older)?")
    for path in target.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(folder: Path) -> None:
    """A name that points at unwritten data would be a half folder after a power cut."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _is_elsewhere(error: OSError, partial: Path, target: Path) -> bool:
    """Whether it is about a file that has nothing to do with the output."""
    if not isinstance(error.filename, (str, bytes, os.PathLike)):
        return False
    path = Path(os.path.abspath(os.fsdecode(error.filename)))
    is_above = partial.is_relative_to(path)
    return not (is_above or path == target or str(path).startswith(str(partial)))


def _explained(error: OSError, target: Path) -> OutputError:
    # numpy's tofile raises without a number when a write stops short.
    if error.errno in (errno.ENOSPC, errno.EDQUOT, None):
        free = shutil.disk_usage(target.parent).free / 1e6
        return OutputError(f"{target} cannot be written: the disk is full ({free:.0f} MB are free)")
    return OutputError(f"{target} cannot be written: {error.strerror or error}")

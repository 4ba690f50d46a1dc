"""Files as memory maps: tensors that cost no memory until they are read."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from andrea_model.checkpoint.checkpoint import Array
from andrea_model.errors import CheckpointError

__all__ = ["map_file", "read_start", "release_pages"]


def map_file(path: Path, length: int) -> Array:
    """The first `length` bytes of a file as a read-only uint8 array.

    The map is private: should a library write into a tensor after all, it gets its own page, and
    neither the file nor the process is harmed.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be mapped into memory: {error}") from error
    data = np.frombuffer(mapped, np.uint8).view()  # the view can be read-only, torch needs its base
    data.flags.writeable = False
    return data


def read_start(path: Path, length: int) -> bytes:
    """The first bytes of a file: fewer than `length` if it is shorter."""
    try:
        with path.open("rb") as file:
            return file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def release_pages(arrays: Iterable[Array]) -> None:
    """Give back the memory of pages that were only looked at; they come again when needed."""
    maps = {id(base): base for array in arrays if isinstance(base := _root(array), mmap.mmap)}
    for mapped in maps.values():
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            mapped.madvise(mmap.MADV_DONTNEED)


def _root(array: Array) -> object:
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base

"""The sha256 of a file. Apart, because whoever wants only this need not wait for numpy."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["file_sha256"]

CHUNK_BYTES = 1 << 22


def file_sha256(path: Path, length: int | None = None) -> str:
    """Of the first `length` bytes, or of all; read in pieces, so that no memory map grows."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    left = path.stat().st_size if length is None else length
    with path.open("rb", buffering=0) as file:
        while left and (count := file.readinto(buffer[:left])):
            digest.update(buffer[:count])
            left -= count
    return digest.hexdigest()

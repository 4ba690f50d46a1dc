"""Text files that people give us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from andrea_export.errors import InputError

__all__ = ["read_json", "read_text"]


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without its byte order mark.

    Raises:
        InputError: it cannot be read, is empty, or is not UTF-8 (with the offset of the byte).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if not data:
        raise InputError(f"{path} is empty")
    try:
        return data.decode("utf-8-sig")  # a byte order mark is no text
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8: byte 0x{data[error.start]:02X} at offset {error.start} "
            f"({error.reason})"
        ) from error


def read_json(path: Path) -> Any:
    """The value that a UTF-8 file of JSON holds.

    Raises:
        InputError: see `read_text`; or it is not JSON, or nested beyond what Python reads.
    """
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error

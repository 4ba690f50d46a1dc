"""A file of prompts, one a line."""

from __future__ import annotations

from pathlib import Path

from andrea_export.errors import InputError

__all__ = ["read_prompts"]


def read_prompts(path: Path) -> list[str]:
    """The lines of a UTF-8 file.

    Raises:
        InputError: a file that cannot be read, is not UTF-8, is empty or has an empty line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    if not lines:
        raise InputError(f"{path}: the file of prompts is empty")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise InputError(f"{path}: line {number} is empty: every line is a prompt")
    return lines

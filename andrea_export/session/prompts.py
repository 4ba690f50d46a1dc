"""A file of prompts, one a line."""

from __future__ import annotations

from pathlib import Path

from andrea_export.errors import InputError
from andrea_export.text_file import read_text

__all__ = ["read_prompts"]


def read_prompts(path: Path) -> list[str]:
    """The lines of a UTF-8 file.

    Raises:
        InputError: a file that cannot be read, is not UTF-8, is empty or has an empty line.
    """
    # Not splitlines(): a form feed or U+2028 inside a prompt ends no line.
    text = read_text(path).removesuffix("\n")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise InputError(f"{path}: line {number} is empty: every line is a prompt")
    return lines

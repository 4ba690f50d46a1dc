"""Compute capabilities, as people write them (8.9) and as TensorRT-RTX names them (SM89)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from andrea_export.errors import EngineError

__all__ = ["from_member", "parse_capabilities", "split_capabilities", "to_member"]


def split_capabilities(text: str) -> tuple[str, ...]:
    """`8.9, 12.0` as a tuple, in the order given."""
    return tuple(part.strip() for part in text.split(","))


def parse_capabilities(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """What `split_capabilities` gives, if TensorRT-RTX builds for all of it.

    Args:
        text: one or more, separated by commas.
        known: the capabilities that the installed TensorRT-RTX builds for.

    Raises:
        EngineError: not of the form 8.9, unknown, or given twice.
    """
    known = tuple(known)
    capabilities = split_capabilities(text)
    for capability in capabilities:
        if not re.fullmatch(r"\d+\.\d", capability) or capability not in known:
            raise EngineError(
                f"compute capability {capability!r} is not one that TensorRT-RTX builds for: "
                f"{', '.join(known)} (full TensorRT, --flavor tensorrt, builds for any GPU that "
                "it runs on)"
            )
        if capabilities.count(capability) > 1:
            raise EngineError(f"compute capability {capability} is given twice")
    return capabilities


def to_member(capability: str) -> str:
    """`12.0` → `SM120`."""
    return "SM" + capability.replace(".", "")


def from_member(name: str) -> str | None:
    """`SM120` → `12.0`; None for members that name no capability (`CURRENT`, `NONE`)."""
    match = re.fullmatch(r"SM(\d+)(\d)", name)
    return f"{match[1]}.{match[2]}" if match else None

"""Limits from a JSON file, in place of the built-in ones that it names.

{"fp16": {"rms_error": {"absolute": 0.01, "ratio": 1.2, "floor": 0.0005}}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from andrea_export.errors import InputError
from andrea_export.report.tolerance import BUILT_IN, Limit, Tolerance
from andrea_export.text_file import read_json

__all__ = ["read_tolerance"]

LAYERS = "layer_rms_error"
PARTS = tuple(field.name for field in fields(Limit))


def read_tolerance(path: Path) -> Tolerance:
    """The built-in tables with the entries of a file put in; a limit may be given in part.

    Raises:
        InputError: no JSON object, an unknown key (the known ones are listed), or a limit that is
            no number from 0 on.
    """
    given = read_json(path)
    figures = {dtype: dict(limits) for dtype, limits in BUILT_IN.figures.items()}
    layers = dict(BUILT_IN.layers)
    for dtype, entries in _object(given, path, "the file").items():
        _known(dtype, figures, path, "dtype")
        for name, parts in _object(entries, path, dtype).items():
            _known(name, [*figures[dtype], LAYERS], path, f"figure of {dtype}")
            old = layers[dtype] if name == LAYERS else figures[dtype][name]
            new = _limit(old, _object(parts, path, f"{dtype}.{name}"), path, f"{dtype}.{name}")
            if name == LAYERS:
                layers[dtype] = new
            else:
                figures[dtype][name] = new
    return Tolerance(str(path), figures, layers)


def _object(value: Any, path: Path, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path}: {where} must be a JSON object, not {type(value).__name__}")
    return value


def _known(key: str, known: Any, path: Path, what: str) -> None:
    if key not in known:
        raise InputError(f"{path}: unknown {what} {key!r}; known are {', '.join(known)}")


def _limit(old: Limit, parts: Mapping[str, Any], path: Path, where: str) -> Limit:
    values = {part: getattr(old, part) for part in PARTS}
    for part, value in parts.items():
        _known(part, PARTS, path, f"part of {where}")
        number = _number(value)
        if number is None:
            raise InputError(
                f"{path}: {where}.{part} must be a number from 0 on, not {repr(value)[:40]}"
            )
        values[part] = number
    return Limit(**values)


def _number(value: Any) -> float | None:
    """None for what is no finite number from 0 on; JSON's integers may be of any length."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None

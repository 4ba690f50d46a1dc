"""What every form of a report takes from the values of its `report.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MARKS", "short_name", "short_names", "text_result"]

MARKS = {"within tolerance": "✓", "out of tolerance": "✗", "could not judge": "?"}


def text_result(report: Mapping[str, Any], way: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a way gave on the text, the first of a report's data sets; None where it was left out,
    as by an engine that is built for shorter windows."""
    text = report["data"][0]["name"]
    return next((result for result in way["sets"] if result["data"] == text), None)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """For each path its last part, or as many as tell it from the others."""
    pieces = {name: name.rstrip("/").split("/") for name in names}
    found = {}
    for name, own in pieces.items():
        others = [each for other, each in pieces.items() if other != name]
        count = next(
            (n for n in range(1, len(own)) if all(each[-n:] != own[-n:] for each in others)),
            len(own),
        )
        found[name] = "/".join(own[-count:])
    return found


def short_name(name: str, most: int) -> str:
    """At most so many characters, of which the last tell the most."""
    return name if len(name) <= most else "…" + name[1 - most :]

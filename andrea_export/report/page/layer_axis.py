"""The axis of layers: the residual stream after every sublayer, from the embedding on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["block_ticks", "position", "residual"]


def residual(layers: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in layers["taps"] if row["kind"] == "residual"]


def position(tap: str, order: Sequence[str], names: Sequence[str]) -> float:
    """Where a tap stands among the sums `names`: on itself, or before the next of them.

    order: all taps in order of computation, the sums among them.
    """
    if tap in names:
        return float(names.index(tap))
    before = set(order[: order.index(tap)])
    return sum(name in before for name in names) - 0.5


def block_ticks(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """One tick per block, or per few where there are many."""
    found = [(0, "emb")] if names[:1] == ["embedding"] else []
    blocks = [(at, name.split(".")[1]) for at, name in enumerate(names) if name.endswith("mlp_sum")]
    every = math.ceil(len(blocks) / 12)
    found += blocks[every - 1 :: every]
    return [at for at, _ in found], [label for _, label in found]

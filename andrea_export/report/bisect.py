"""Which part of a graph is to blame, and which ops must stay in float32 for a given error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.black_box import NO_BOX, BlackBox
from andrea_export.errors import AndreaExportError, BackendError
from andrea_export.graph.folder import GraphFolder, open_graph
from andrea_export.report.swapping import KINDS, Part, Swapper
from andrea_export.session import Session
from andrea_export.session.protocol import Array
from andrea_model.checkpoint import Checkpoint

__all__ = ["bisect_candidate"]

TOKENS = 128
# A swap that leaves less than this share of the error has restored the model.
RESTORED = 0.1


@dataclass(frozen=True)
class Swap:
    """The RMS error that is left when a part is replaced by its exact form in `dtype`."""

    part: Part
    kind: str
    dtype: str
    rms_error: float
    share: float
    extra_bytes: int
    float32_share: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "part": str(self.part),
            "kind": self.kind,
            "dtype": self.dtype,
            "rms_error": self.rms_error,
            "share": self.share,
            "extra_bytes": self.extra_bytes,
            "float32_share": self.float32_share,
        }


def bisect_candidate(
    checkpoint: Checkpoint,
    path: Path,
    ids: Array,
    reference: Session,
    target: float,
    *,
    progress: Callable[[int], None] | None = None,
    place: str = "",
    black_box: BlackBox = NO_BOX,
) -> dict[str, Any]:
    """Replace one op kind or one block at a time, and rank what brings the model back.

    Args:
        checkpoint: whose weights and definition are exact.
        path: an exported folder.
        ids: int64 [B, T], of which 128 positions are used.
        reference: in float64.
        target: RMS error, relative to the RMS of the logits, that a set of ops kept in float32 is
            to reach.
        progress: called after each run, with about how many are left.
        place: what this is called in `black_box`.

    Returns:
        For JSON: the error, the swaps (best first), the set for the target, and a sentence.
    """
    reason = black_box.deaths.get(place)
    if reason is None:
        try:
            with black_box.at(place):
                work = checkpoint, open_graph(path), ids[:, :TOKENS], reference, target, progress
                return _Bisection(*work).result()
        except AndreaExportError as error:
            reason = str(error)
    return {"sentence": f"Not possible: {reason}", "rms_error": None, "target": target,
            "swaps": [], "keep_float32": None}  # fmt: skip


class _Bisection:
    def __init__(
        self,
        checkpoint: Checkpoint,
        graph: GraphFolder,
        ids: Array,
        reference: Session,
        target: float,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._graph, self._ids, self._target = graph, ids, target
        self._swapper = Swapper(checkpoint, graph)
        self._truth = reference.forward(ids)
        self._scale = float(np.sqrt(np.mean(self._truth**2)))
        self._progress = progress
        forms = 1 if graph.options.dtype == "fp32" else 2
        # Every kind and block in each form; in half precision, kinds are then added one by one.
        self._left = 1 + forms * (len(KINDS) + graph.config.n_layer) + (forms - 1) * len(KINDS)
        self._before = self._error(None)

    def _error(self, part: Part | None, dtype: str = "fp32") -> float:
        logits = self._swapper.run(self._ids, part, dtype)
        if logits.shape != self._truth.shape:
            raise BackendError(f"logits of shape {logits.shape}, not {self._truth.shape}")
        error = logits - self._truth
        self._left = max(0, self._left - 1)
        if self._progress is not None:
            self._progress(self._left)
        return float(np.sqrt(np.mean(error**2))) / self._scale

    def result(self) -> dict[str, Any]:
        swaps = self._swaps()
        kept = self._keep(swaps) if self._graph.options.dtype != "fp32" else None
        return {
            "rms_error": _finite(self._before),
            "target": self._target,
            "swaps": [swap.to_dict() for swap in swaps if np.isfinite(swap.rms_error)],
            "keep_float32": kept,
            "sentence": " ".join(
                [_verdict(swaps, self._before, self._target), *_advice(kept, self._target)]
            ),
        }

    def _swaps(self) -> list[Swap]:
        everything = frozenset(KINDS)
        parts = [(Part(frozenset({kind})), "op kind") for kind in KINDS]
        parts += [
            (Part(everything, frozenset({block})), "block")
            for block in range(self._graph.config.n_layer)
        ]
        own = self._graph.options.dtype
        dtypes = ["fp32"] if own == "fp32" else ["fp32", own]
        swaps = [self._swap(part, kind, dtype) for dtype in dtypes for part, kind in parts]
        return sorted(swaps, key=lambda swap: (not np.isfinite(swap.rms_error), swap.rms_error))

    def _swap(self, part: Part, kind: str, dtype: str) -> Swap:
        error = self._error(part, dtype)
        cost = self._swapper.cost(part) if dtype != self._graph.options.dtype else (0, 0.0)
        before = self._before
        share = error / before if np.isfinite(before) and before else float(np.isnan(error))
        return Swap(part, kind, dtype, error, share, *cost)

    def _keep(self, swaps: Sequence[Swap]) -> dict[str, Any] | None:
        """Op kinds to keep in float32: added in the order of what each brings alone, until the
        target is met; then whatever can be left out again, is."""
        if self._before <= self._target:
            return _kept([], self._before, (0, 0.0))
        ranked = [
            kind
            for swap in swaps
            if swap.dtype == "fp32" and swap.kind == "op kind"
            for kind in swap.part.kinds
        ]
        chosen: list[str] = []
        error = self._before
        for kind in ranked:
            chosen.append(kind)
            error = self._error(Part(frozenset(chosen)))
            if error <= self._target:
                break
        else:
            return None
        for kind in list(chosen[:-1]):
            fewer = [each for each in chosen if each != kind]
            without = self._error(Part(frozenset(fewer)))
            if without <= self._target:
                chosen, error = fewer, without
        return _kept(chosen, error, self._swapper.cost(Part(frozenset(chosen))))


def _kept(kinds: list[str], error: float, cost: tuple[int, float]) -> dict[str, Any]:
    return {
        "kinds": [kind for kind in KINDS if kind in kinds],
        "rms_error": error,
        "extra_bytes": cost[0],
        "float32_share": cost[1],
    }


def _verdict(swaps: Sequence[Swap], before: float, target: float) -> str:
    if before <= target:
        return f"RMS error {before:.2g}, within the target of {target:.2g}."
    found = []
    for kind in ("op kind", "block"):
        best = next((swap for swap in swaps if swap.kind == kind), None)
        if best is not None and np.isfinite(best.rms_error):
            found.append(best)
    restored = [
        swap for swap in found if not np.isfinite(before) or swap.rms_error < RESTORED * before
    ]
    if restored:
        parts = " or ".join(f"{swap.part} ({swap.rms_error:.2g})" for swap in restored)
        return f"RMS error {before:.2g}. An exact form brings the model back for {parts}."
    parts = ", ".join(f"{swap.part} leaves {swap.share:.0%} of it" for swap in found)
    return f"RMS error {before:.2g}. No part alone explains it: {parts}."


def _advice(kept: dict[str, Any] | None, target: float) -> list[str]:
    if kept is None:
        return []
    if not kept["kinds"]:
        return [f"Nothing needs float32 for an error of {target:.2g}."]
    return [
        f"For {target:.2g} it is enough to keep {', '.join(kept['kinds'])} in float32 "
        f"(RMS error {kept['rms_error']:.2g}): {kept['extra_bytes'] / 1e6:,.1f} MB more weights, "
        f"{kept['float32_share']:.0%} of the multiplications by weights in float32."
    ]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None

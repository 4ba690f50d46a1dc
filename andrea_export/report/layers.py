"""Where a candidate leaves the model: the error of every tap, beside torch's own in this dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from andrea_export.errors import BackendError
from andrea_export.layer_names import kind_of
from andrea_export.report.tolerance import Limit
from andrea_export.session.protocol import Array

__all__ = ["Departure", "LayerProfile", "LayerRow", "TapErrors", "layer_profile"]

POSITION_BINS = 32


class TapErrors:
    """Sums up the errors of one model's taps over windows."""

    def __init__(self) -> None:
        self._taps: dict[str, _Tap] = {}

    def add(self, reference: Mapping[str, Array], own: dict[str, Array]) -> None:
        """One forward pass: every tap [B, T, width], the reference's in float64.

        `own` is emptied on the way: what has been compared needs no memory any more.

        Raises:
            BackendError: a tap of another shape.
        """
        for name, truth in reference.items():
            if name in own:
                wide = torch.from_numpy(np.asarray(own.pop(name))).double()
                if wide.shape != truth.shape:
                    raise BackendError(
                        f"{name} has shape {tuple(wide.shape)}, not {tuple(truth.shape)}"
                    )
                self._taps.setdefault(name, _Tap()).add(torch.from_numpy(truth), wide)

    @property
    def taps(self) -> dict[str, _Tap]:
        return self._taps


class _Tap:
    """Squared errors and squares by position; what is NaN or Inf is counted and left out."""

    def __init__(self) -> None:
        self.nonfinite = 0
        self.max_error = 0.0
        self._error = np.zeros(0)
        self._square = np.zeros(0)
        self._values = 0

    def add(self, truth: Tensor, own: Tensor) -> None:
        finite = torch.isfinite(own)
        bad = int((~finite).sum())
        error = own - truth
        if bad:
            self.nonfinite += bad
            error = torch.where(finite, error, 0.0)
        self.max_error = max(self.max_error, float(error.abs().max()))
        self._values += truth.numel() - bad
        squared = error.square_().sum((0, 2)).numpy()
        self._error = _longer(self._error, len(squared)) + _longer(squared, len(self._error))
        square = truth.square().sum((0, 2)).numpy()
        self._square = _longer(self._square, len(square)) + _longer(square, len(self._square))

    @property
    def rms_error(self) -> float:
        """Relative to the RMS of the truth."""
        square = float(self._square.sum())
        return math.sqrt(float(self._error.sum()) / square) if square else math.nan

    @property
    def rms(self) -> float:
        return math.sqrt(float(self._square.sum()) / self._values) if self._values else math.nan

    def by_position(self) -> tuple[float, ...]:
        """The relative error in at most 32 equal stretches of a window."""
        width = math.ceil(len(self._error) / POSITION_BINS)
        starts = np.arange(0, len(self._error), width)
        error = np.add.reduceat(self._error, starts)
        square = np.add.reduceat(self._square, starts)
        return tuple(float(each) for each in np.sqrt(error / np.maximum(square, 1e-300)))


def _longer(array: Any, length: int) -> Any:
    return np.pad(array, (0, max(0, length - len(array))))


@dataclass(frozen=True)
class LayerRow:
    """One tap.

    Attributes:
        name: the module's (or the sum's) name.
        kind: residual, norm, activation or projection.
        rms_error, max_error: against float64, relative to the RMS of the true values.
        baseline: torch's rms_error in the candidate's dtype.
        limit: the most that rms_error may be.
        nonfinite, baseline_nonfinite: how many values are NaN or Inf.
        by_position: rms_error along the window, for residual taps.
    """

    name: str
    kind: str
    rms_error: float
    max_error: float
    baseline: float
    limit: float
    nonfinite: int
    baseline_nonfinite: int
    by_position: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        return self.rms_error / self.baseline if self.baseline else None

    @property
    def is_out(self) -> bool:
        return self.nonfinite > self.baseline_nonfinite or self.rms_error > self.limit

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "rms_error": _json(self.rms_error),
            "max_error": _json(self.max_error),
            "baseline_rms_error": _json(self.baseline),
            "ratio": _json(self.ratio),
            "limit": _json(self.limit),
            "nonfinite": self.nonfinite,
            "baseline_nonfinite": self.baseline_nonfinite,
            "out": self.is_out,
            "by_position": [_json(value) for value in self.by_position],
        }


@dataclass(frozen=True)
class Departure:
    """The first place where a candidate leaves its baseline."""

    name: str
    message: str

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "message": self.message}


@dataclass(frozen=True)
class LayerProfile:
    """Every tap that was seen of one candidate; the first that is out of tolerance.

    Attributes:
        rows: the taps in order of computation.
        positions: how many tokens they have seen.
        order: all taps of the model, seen or not.
    """

    rows: tuple[LayerRow, ...]
    positions: int
    order: tuple[str, ...]

    @property
    def unseen(self) -> tuple[str, ...]:
        """Taps that the candidate does not show."""
        seen = {row.name for row in self.rows}
        return tuple(name for name in self.order if name not in seen)

    @property
    def departure(self) -> Departure | None:
        last = None
        for row in self.rows:
            if not row.is_out:
                last = row.name
                continue
            if row.nonfinite > row.baseline_nonfinite:
                what = f"{row.nonfinite} values are NaN or Inf, {row.baseline_nonfinite} in torch"
            else:
                times = f"{_times(row.ratio)} times torch's own" if row.ratio else "torch has none"
                what = f"RMS error {row.rms_error:.2g}, {times} ({row.limit:.2g} is allowed)"
            return Departure(row.name, f"leaves the model {self._place(last, row.name)}: {what}")
        return None

    def _place(self, last: str | None, name: str) -> str:
        """`at` a tap, if the one before it was seen as well; else between the two."""
        begin = 0 if last is None else self.order.index(last) + 1
        hidden = self.order.index(name) - begin
        if not hidden:
            return f"at {name}"
        if last is None:
            return f"at {name} or before ({hidden} taps before it are not seen)"
        return f"between {last} and {name} ({hidden} taps between them are not seen)"

    def to_dict(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "departure": None if self.departure is None else self.departure.to_dict(),
            "taps": [row.to_dict() for row in self.rows],
        }


def layer_profile(
    own: TapErrors, baseline: TapErrors, order: Sequence[str], limit: Limit, positions: int
) -> LayerProfile:
    """A candidate's taps beside the baseline's.

    Args:
        own, baseline: gathered over the same windows.
        order: names of taps in order of computation.
        limit: a tap is out over `absolute`, or over `ratio` times the baseline's error and `floor`.
        positions: how many tokens they have seen.
    """
    rows = []
    for name in order:
        if name not in own.taps or name not in baseline.taps:
            continue
        tap, base = own.taps[name], baseline.taps[name]
        residual = kind_of(name) == "residual"
        rows.append(
            LayerRow(
                name=name,
                kind=kind_of(name),
                rms_error=tap.rms_error,
                max_error=tap.max_error / tap.rms if tap.rms else math.nan,
                baseline=base.rms_error,
                limit=min(limit.absolute, max(limit.floor, limit.ratio * base.rms_error)),
                nonfinite=tap.nonfinite,
                baseline_nonfinite=base.nonfinite,
                by_position=tap.by_position() if residual else (),
            )
        )
    return LayerProfile(tuple(rows), positions, tuple(order))


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def _json(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

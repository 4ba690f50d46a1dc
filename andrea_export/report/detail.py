"""What a report shows beyond sums: distributions, intervals, and the tokens that went worst.

Of every position a few numbers are kept (about 50 bytes), never its logits.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from andrea_export.report.metrics import Accumulator, ReferenceWindow
from andrea_export.session.protocol import Array

__all__ = ["KL_EXPONENTS", "DetailedAccumulator", "Details", "PlacedWindow", "WorstToken"]

# Neighbouring tokens err together, so whole stretches of this length are drawn, not single tokens
# (a block bootstrap; Künsch 1989). 95 % intervals from 1000 draws move by about 2 % of their width.
BLOCK_TOKENS = 32
DRAWS = 1000
CONFIDENCE = 0.95
BOOTSTRAP_SEED = 0

WORST_TOKENS = 10
ALTERNATIVES = 3
TOP = 5

# log10 of a divergence in nats: from rounding in float64 to a model that knows nothing.
KL_EXPONENTS = np.arange(-17.0, 2.5, 0.5)
POSITION_BINS = 32


@dataclass(frozen=True)
class Place:
    """Where a position stands: the window's number in its data set, its row, its index there."""

    window: int
    row: int
    index: int


@dataclass(frozen=True)
class WorstToken:
    """One position where the candidate is far from the reference.

    Attributes:
        kl: KL(reference‖candidate) there, in nats.
        place: where.
        reference, candidate: (token id, probability) of the likeliest, best first.
        target: the token that really came next, where there is text.
    """

    kl: float
    place: Place
    reference: tuple[tuple[int, float], ...]
    candidate: tuple[tuple[int, float], ...]
    target: int | None


@dataclass(frozen=True)
class Details:
    """More figures of the same positions as `Figures`; NaN where no position is left.

    Attributes:
        cosine: of all logits as one vector, against the reference's.
        kl_p99: 99th percentile of the divergence per position.
        top5_overlap: mean share of the reference's five likeliest tokens that are among the
            candidate's.
        perplexity_interval: 95 %, by block bootstrap over the text; None without text.
        perplexity_change: perplexity / the reference's − 1.
        perplexity_change_interval: of the change, both models on the same draws.
        kl_histogram: positions per bin of log10 KL (`KL_EXPONENTS`; the first bin holds smaller
            ones and zeros, the last larger ones).
        by_position: for at most 32 equal stretches of a window: its first position, how many were
            seen, the share whose likeliest token agrees, and the mean KL.
    """

    cosine: float
    kl_p99: float
    top5_overlap: float
    perplexity_interval: tuple[float, float] | None
    perplexity_change: float | None
    perplexity_change_interval: tuple[float, float] | None
    kl_histogram: tuple[int, ...]
    by_position: tuple[tuple[int, int, float, float], ...]


class PlacedWindow(ReferenceWindow):
    """Reference logits [N, V] that know where each of their positions stands.

    Args:
        logits, targets: as in `ReferenceWindow`.
        window: number of the window in its data set.
        rows, indexes: int64 [N], row and index of each position.
    """

    def __init__(
        self, logits: Array, targets: Array | None, window: int, rows: Array, indexes: Array
    ) -> None:
        super().__init__(logits, targets)
        self.window, self.rows, self.indexes = window, rows, indexes
        self.top = self.logits.topk(min(TOP, logits.shape[-1])).indices

    def place(self, position: int) -> Place:
        return Place(self.window, int(self.rows[position]), int(self.indexes[position]))


class DetailedAccumulator(Accumulator):
    """An `Accumulator` that remembers a little of every position. Give it `PlacedWindow`s."""

    def __init__(self) -> None:
        super().__init__()
        self._per_position: list[Array] = []
        self._worst: list[tuple[float, int, WorstToken]] = []
        self._dot = self._candidate_square = self._reference_square = 0.0

    def _observe(
        self,
        window: ReferenceWindow,
        pick: Callable[[Tensor], Tensor],
        candidate: Tensor,
        log_probs: Tensor,
        kl: Tensor,
        top1: Tensor,
    ) -> None:
        assert isinstance(window, PlacedWindow)
        reference = pick(window.logits).reshape(-1)
        flat = candidate.reshape(-1)
        self._dot += float(flat.dot(reference))
        self._candidate_square += float(flat.dot(flat))
        self._reference_square += float(reference.dot(reference))
        own = candidate.topk(window.top.shape[-1]).indices
        overlap = (pick(window.top).unsqueeze(-1) == own.unsqueeze(-2)).any(-1).double().mean(-1)
        loss = reference_loss = torch.full_like(kl, math.nan)
        if window.targets is not None:
            targets = pick(window.targets).unsqueeze(-1)
            loss = -log_probs.gather(-1, targets).squeeze(-1)
            reference_loss = -pick(window.log_probs).gather(-1, targets).squeeze(-1)
        kept = pick(torch.arange(len(window.indexes))).numpy()
        agrees = (top1 == pick(window.top1)).double()
        self._per_position.append(
            np.stack(
                [
                    np.full(len(kept), window.window, np.float64),
                    window.rows[kept],
                    window.indexes[kept],
                    *(each.numpy() for each in (kl, agrees, overlap, loss, reference_loss)),
                ]
            )
        )
        self._keep_worst(window, pick, log_probs, kl, own, kept)

    def _keep_worst(
        self,
        window: PlacedWindow,
        pick: Callable[[Tensor], Tensor],
        log_probs: Tensor,
        kl: Tensor,
        own: Tensor,
        kept: Array,
    ) -> None:
        values, positions = kl.topk(min(WORST_TOKENS, len(kl)))
        for value, position in zip(values.tolist(), positions.tolist(), strict=True):
            if len(self._worst) == WORST_TOKENS and value <= self._worst[0][0]:
                return
            reference = pick(window.log_probs)[position]
            at = int(kept[position])
            token = WorstToken(
                value,
                window.place(at),
                _likeliest(reference, pick(window.top)[position]),
                _likeliest(log_probs[position], own[position]),
                None if window.targets is None else int(window.targets[at]),
            )
            # The middle entry orders equal divergences, and is never equal itself.
            entry = (value, -len(self._per_position) * (1 << 32) - at, token)
            heapq.heappush(self._worst, entry)
            if len(self._worst) > WORST_TOKENS:
                heapq.heappop(self._worst)

    def worst_tokens(self) -> tuple[WorstToken, ...]:
        """The positions of largest divergence, worst first."""
        return tuple(token for *_, token in sorted(self._worst, key=lambda each: each[:2])[::-1])

    def details(self) -> Details:
        """Everything about the positions so far."""
        if not self._per_position:
            empty = (0,) * (len(KL_EXPONENTS) + 1)
            nan = math.nan
            return Details(nan, nan, nan, None, None, None, empty, ())
        window, row, index, kl, agrees, overlap, loss, reference_loss = np.concatenate(
            self._per_position, axis=1
        )
        interval = change = change_interval = None
        if not np.isnan(loss).any():
            draws = _bootstrap(window, row, index, loss, reference_loss)
            interval = _interval(np.exp(np.minimum(draws[0], 700.0)))
            change = math.expm1(min(float((loss - reference_loss).mean()), 700.0))
            change_interval = _interval(np.expm1(np.minimum(draws[0] - draws[1], 700.0)))
        norms = math.sqrt(self._candidate_square) * math.sqrt(self._reference_square)
        exponents = np.log10(np.maximum(kl, 1e-300))
        histogram = np.bincount(np.digitize(exponents, KL_EXPONENTS), minlength=_BINS)
        return Details(
            cosine=self._dot / norms if norms else math.nan,
            kl_p99=float(np.percentile(kl, 99)),
            top5_overlap=float(overlap.mean()),
            perplexity_interval=interval,
            perplexity_change=change,
            perplexity_change_interval=change_interval,
            kl_histogram=tuple(int(count) for count in histogram),
            by_position=_by_position(index.astype(int), agrees, kl),
        )


_BINS = len(KL_EXPONENTS) + 1


def _likeliest(log_probs: Tensor, ids: Tensor) -> tuple[tuple[int, float], ...]:
    return tuple((int(each), math.exp(float(log_probs[each]))) for each in ids[:ALTERNATIVES])


def _bootstrap(window: Array, row: Array, index: Array, *losses: Array) -> Array:
    """Mean losses [len(losses), DRAWS] over drawn stretches of text."""
    keys = np.stack([window, row, index // BLOCK_TOKENS])
    _, block = np.unique(keys, axis=1, return_inverse=True)
    block = block.reshape(-1)
    sums = np.stack([np.bincount(block, each) for each in losses])
    counts = np.bincount(block)
    drawn = np.random.default_rng(BOOTSTRAP_SEED).integers(0, len(counts), (DRAWS, len(counts)))
    means: Array = sums[:, drawn].sum(-1) / counts[drawn].sum(-1)
    return means


def _interval(values: Array) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def _by_position(
    index: Array, agrees: Array, kl: Array
) -> tuple[tuple[int, int, float, float], ...]:
    width = math.ceil((int(index.max()) + 1) / POSITION_BINS)
    bins: Any = index // width
    counts = np.bincount(bins)
    found = np.flatnonzero(counts)
    agreed, divergence = np.bincount(bins, agrees), np.bincount(bins, kl)
    return tuple(
        (
            int(each * width),
            int(counts[each]),
            float(agreed[each] / counts[each]),
            float(divergence[each] / counts[each]),
        )
        for each in found
    )

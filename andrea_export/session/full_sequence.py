"""Steps without a cache: the whole text runs again for every token."""

from __future__ import annotations

import numpy as np

from andrea_export.session.protocol import Array, Session

__all__ = ["FullSequenceSession"]


class FullSequenceSession(Session):
    """What a model that keeps nothing between calls can do: correct, and slow on long texts."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = np.zeros((0, 0), np.int64)
        self._lengths = np.zeros(0, np.int64)

    def _prefill(self, input_ids: Array, lengths: Array) -> Array:
        self._ids, self._lengths = input_ids, lengths
        return self._last_logits()

    def _step(self, input_ids: Array, active: Array) -> Array:
        lengths = self._lengths + active
        missing = int(lengths.max()) - self._ids.shape[1]
        if missing > 0:
            self.config.check_ids(0, 0, int(lengths.max()))
            self._ids = np.pad(self._ids, ((0, 0), (0, missing)))
        rows = np.flatnonzero(active)
        self._ids[rows, self._lengths[rows]] = input_ids[rows]
        self._lengths = lengths
        return self._last_logits()

    def _last_logits(self) -> Array:
        # A row is causal: its pads on the right change nothing before them.
        return self._forward(self._ids)[np.arange(len(self._ids)), self._lengths - 1]

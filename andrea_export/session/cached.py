"""Steps over a static key/value cache whose capacity grows in buckets."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from andrea_export.errors import InputError
from andrea_export.session.protocol import Array, Session

__all__ = ["CachedSession", "bucket_for"]

# Attention reads the whole capacity, so a short text must not pay for a long context; and each
# growth copies the cache once, so the steps double.
SMALLEST_BUCKET = 128


def bucket_for(slots: int, limit: int) -> int:
    """The capacity to hold so many slots: the next of 128, 256, 512, ..., never above `limit`.

    Raises:
        InputError: more slots than `limit`.
    """
    if slots > limit:
        raise InputError(f"{slots} tokens do not fit: the capacity ends at {limit}")
    bucket = SMALLEST_BUCKET
    while bucket < slots:
        bucket *= 2
    return min(bucket, limit)


class CachedSession(Session):
    """Keeps each row's length; where the cache lives and what runs is the subclass's.

    Attributes:
        capacity: slots that each row has now; `limit` is the largest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.capacity = 0
        self._past = np.zeros(0, np.int64)

    @property
    def lengths(self) -> Array:
        """Tokens of each row [B] in the cache."""
        return self._past.copy()

    def _prefill(self, input_ids: Array, lengths: Array) -> Array:
        rows, width = input_ids.shape
        self._past = np.zeros(rows, np.int64)
        self.capacity = self._bucket(width)
        self._allocate(rows, self.capacity)
        return self._feed(input_ids, lengths)

    def _step(self, input_ids: Array, active: Array) -> Array:
        if (self._past[active] >= self.limit).any():
            raise InputError(f"the context is full: it holds {self.limit} tokens")
        # A resting row is given a token too, into the slot after its own, or it would lose one.
        needed = min(int(self._past.max()) + 1, self.limit)
        if needed > self.capacity:
            capacity = self._bucket(needed)
            self._grow(capacity)
            self.capacity = capacity
        return self._feed(input_ids[:, None], active.astype(np.int64))

    def _feed(self, input_ids: Array, new: Array) -> Array:
        # Only a row whose context is full loses a slot, and nothing can follow in it.
        past = np.minimum(self._past, self.capacity - input_ids.shape[1])
        logits = self._run(input_ids, past, np.maximum(new, 1))
        self._past = self._past + new
        return logits

    def _bucket(self, slots: int) -> int:
        return bucket_for(slots, self.limit)

    @abstractmethod
    def _allocate(self, rows: int, capacity: int) -> None:
        """A cache of zeros."""

    @abstractmethod
    def _grow(self, capacity: int) -> None:
        """More slots; those there are keep what they hold."""

    @abstractmethod
    def _run(self, input_ids: Array, past_length: Array, new_length: Array) -> Array:
        """Logits [B, V] of the token new_length - 1 of each row of input_ids [B, T]."""

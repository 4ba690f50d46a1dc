"""What every runtime looks like from outside, and the part that those without a cache share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

import numpy as np

from andrea_export.errors import InputError
from andrea_model.config import AndreaConfig

__all__ = ["Array", "Session"]

Array = np.ndarray[Any, np.dtype[Any]]


class Session(ABC):
    """Runs one model. Facts about it are read from the artefact, never assumed.

    Attributes:
        config: of the model.
        dtype: "fp64", "fp32", "fp16" or "bf16": the type that the artefact declares.
        label: what runs where, for people: "onnx (CPU, fp32)".
    """

    config: AndreaConfig
    dtype: str
    label: str

    def __init__(self) -> None:
        self._ids: Array | None = None
        self._logits: Array | None = None

    def forward(self, input_ids: Array) -> Array:
        """Logits [B, T, V] of token ids [B, T], all at once and remembering nothing.

        Returns float64 for an fp64 model, float32 for all others.

        Raises:
            InputError: an id outside the vocabulary, no token, or more than the context holds.
        """
        ids = np.asarray(input_ids)
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(
                f"input_ids must be whole numbers [batch, sequence], not {ids.dtype} {ids.shape}"
            )
        if ids.size == 0:
            raise InputError(f"input_ids are empty: their shape is {list(ids.shape)}")
        self.config.check_ids(int(ids.min()), int(ids.max()), ids.shape[1])
        return self._run(ids.astype(np.int64, copy=False))

    def prefill(self, input_ids: Array) -> None:
        """Start over with a prompt [B, T]."""
        self._ids = np.asarray(input_ids)
        self._logits = self.forward(self._ids)[:, -1]

    def step(self, input_ids: Array) -> None:
        """Go on by one token for each row [B]."""
        if self._ids is None:
            raise InputError("there is nothing to go on from: call prefill first")
        self._ids = np.concatenate([self._ids, np.asarray(input_ids)[:, None]], axis=1)
        self._logits = self.forward(self._ids)[:, -1]

    @property
    def logits(self) -> Array:
        """Logits [B, V] after the last token."""
        if self._logits is None:
            raise InputError("there are no logits yet: call prefill first")
        return self._logits

    @abstractmethod
    def _run(self, input_ids: Array) -> Array: ...

    def close(self) -> None:
        """Give the memory back. The session is of no use afterwards."""
        self._ids = self._logits = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

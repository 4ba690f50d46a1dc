"""What every runtime looks like from outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from andrea_export.errors import InputError, TokenizerError
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_export.engine.sidecar import EngineFolder
    from andrea_export.graph import GraphFolder
    from andrea_model.checkpoint import Checkpoint
    from andrea_model.tokenizer import Tokenizer

__all__ = ["Array", "Session"]

Array = np.ndarray[Any, np.dtype[Any]]


class Session(ABC):
    """Runs one model. Facts about it are read from the artefact, never assumed.

    Rows of a batch may differ in length: tokens are padded on the right, `lengths` says how many
    of each row are real, and what a pad holds changes nothing (it must be an id all the same).

    Attributes:
        config: of the model.
        dtype: "fp64", "fp32", "fp16" or "bf16": the type that the artefact declares.
        label: what runs where, for people: "onnx (CPU, fp32)".
    """

    config: AndreaConfig
    dtype: str
    label: str

    def __init__(self) -> None:
        self._logits: Array | None = None
        self._closed = False
        self.source: Checkpoint | GraphFolder | EngineFolder | None = None

    @staticmethod
    def open(path: str | Path, backend: str = "auto", *, dtype: str = "fp32") -> Session:
        """A session over whatever lies at `path`: a checkpoint, an exported folder or an engine.

        Raises:
            BackendError: see `open_session`.
            CheckpointError, GraphError, EngineError: nothing there that can be run.
        """
        from andrea_export.session.opening import open_session, open_source

        return open_session(open_source(path), backend, dtype=dtype)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the model.

        Raises:
            TokenizerError: there is none, or it cannot be read.
        """
        found = None if self.source is None else self.source.open_tokenizer()
        if found is None:
            raise TokenizerError("there is no tokenizer beside the model: give one to generate()")
        return found

    @property
    def limit(self) -> int:
        """The most tokens that a row can have: the context length, or what the artefact holds."""
        return self.config.context_length

    def forward(self, input_ids: Array) -> Array:
        """Logits [B, T, V] of token ids [B, T], all at once and remembering nothing.

        Returns float64 for an fp64 model, float32 for all others.

        Raises:
            InputError: an id outside the vocabulary, no token, or more than the context holds; or
                the session is closed.
        """
        return self._forward(self._checked(input_ids))

    def prefill(self, input_ids: Array, lengths: Array | None = None) -> None:
        """Start over with prompts [B, T] of `lengths` [B] (default: T each).

        Raises:
            InputError: ids as for `forward`, or a length that is not between 1 and T.
        """
        ids = self._checked(input_ids)
        rows, width = ids.shape
        lengths = np.full(rows, width) if lengths is None else np.asarray(lengths)
        if (
            lengths.shape != (rows,)
            or not np.issubdtype(lengths.dtype, np.integer)
            or (lengths < 1).any()
            or (lengths > width).any()
        ):
            raise InputError(
                f"lengths must be {rows} whole numbers from 1 to {width}, not {lengths.tolist()}"
            )
        self._logits = self._prefill(ids, lengths.astype(np.int64))

    def step(self, input_ids: Array, active: Array | None = None) -> None:
        """Go on by one token for each row [B].

        Rows that are not `active` (bool [B], default: all are) do not grow; their logits mean
        nothing.

        Raises:
            InputError: no prefill before, an id outside the vocabulary, or a full context; or not
                one token, or one flag, for each row.
        """
        self._require_open()
        rows = self._rows
        if rows is None:
            raise InputError("there is nothing to go on from: call prefill first")
        given = np.asarray(input_ids)
        if given.shape != (rows,):
            raise InputError(
                f"a step needs one token for each of {rows} rows, not {_described(given)}"
            )
        ids = self._checked(given[:, None])
        flags = np.ones(rows, bool) if active is None else np.asarray(active)
        if flags.shape != (rows,) or flags.dtype != bool:
            raise InputError(
                f"active must be true or false for each of {rows} rows, not {_described(flags)}"
            )
        self._logits = self._step(ids[:, 0], flags)

    @property
    def logits(self) -> Array:
        """Logits [B, V] after each row's last token; valid until the next call."""
        if self._logits is None:
            raise InputError("there are no logits yet: call prefill first")
        return self._logits

    def likeliest(self, vocab_size: int) -> Array:
        """Greedy choice: ids [B] of the largest among the first `vocab_size` logits of each row.

        Ties go to the lower id. -1 for a row that has none: a logit is NaN or +Inf, or all are
        -Inf. Where the logits are on a GPU, they stay there.
        """
        logits = self.logits[:, :vocab_size]
        ids = logits.argmax(-1)  # a NaN counts as the largest
        largest = np.take_along_axis(logits, ids[:, None], -1)[:, 0]
        return np.where(np.isfinite(largest), ids, -1)

    def first_nonfinite(self, input_ids: Array) -> str | None:  # noqa: ARG002
        """Name of the first module whose output for ids [B, T] is NaN or Inf, where known."""
        return None

    @property
    def _rows(self) -> int | None:
        return None if self._logits is None else len(self._logits)

    def _checked(self, input_ids: Array) -> Array:
        self._require_open()
        try:
            ids = np.asarray(input_ids)
        except ValueError as error:
            raise InputError(
                "input_ids must be rows of one length: pad the shorter ones on the right, and give "
                "their lengths"
            ) from error
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(
                f"input_ids must be whole numbers [batch, sequence], not {_described(ids)}"
            )
        if ids.size == 0:
            raise InputError(f"input_ids are empty: their shape is {list(ids.shape)}")
        self.config.check_ids(int(ids.min()), int(ids.max()), ids.shape[1])
        # Contiguous: torch knows no negative strides, and a view such as ids[::-1] has them.
        return np.ascontiguousarray(ids, np.int64)

    def _require_open(self) -> None:
        if self._closed:
            raise InputError(f"the session is closed: {self.label}")

    @abstractmethod
    def _forward(self, input_ids: Array) -> Array: ...

    @abstractmethod
    def _prefill(self, input_ids: Array, lengths: Array) -> Array:
        """Logits [B, V]."""

    @abstractmethod
    def _step(self, input_ids: Array, active: Array) -> Array:
        """Logits [B, V]."""

    def close(self) -> None:
        """Give the memory back. The session is of no use afterwards."""
        self._logits, self._closed = None, True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _described(array: Array) -> str:
    return f"{array.dtype} {array.shape}"

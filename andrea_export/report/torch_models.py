"""The torch models that a candidate is held against, as sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from andrea_export.graph.options import DTYPES
from andrea_export.session.protocol import Array
from andrea_export.session.torch_session import TorchSession
from andrea_model.checkpoint import Checkpoint

__all__ = ["BaselineSession", "reference_session", "rounded_weights_session"]

PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, F.linear)
)


class HalfProducts(TorchFunctionMode):
    """fp16 matrix products on a CPU: multiplied in float32, rounded once.

    torch's own fp16 kernel sums in float32 and rounds once as well, but on CPUs without fp16
    arithmetic it takes twenty times as long (measured: 512·768·3072 in 3.6 s instead of 0.16 s).
    Only the order of the sums differs.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in PRODUCTS and args[0].dtype == torch.float16:
            return func(*(x.float() for x in args), **(kwargs or {})).half()
        return func(*args, **(kwargs or {}))


class BaselineSession(TorchSession):
    """torch in the candidate's own dtype: how good the model can be expected to be there."""

    def _forward(self, input_ids: Array) -> Array:
        with HalfProducts():
            return super()._forward(input_ids)


class ReferenceSession(TorchSession):
    """The truth: the checkpoint's original weights, computed in float64.

    `seconds` counts what it takes.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint, "fp64")
        self.seconds = 0.0

    def forward(self, input_ids: Array) -> Array:
        with self._counted():
            return super().forward(input_ids)

    def prefill(self, input_ids: Array, lengths: Array | None = None) -> None:
        with self._counted():
            super().prefill(input_ids, lengths)

    def step(self, input_ids: Array, active: Array | None = None) -> None:
        with self._counted():
            super().step(input_ids, active)

    def forget(self) -> None:
        """Let go of the key/value cache: what follows does not step."""
        self._cache = self._logits = None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


def reference_session(checkpoint: Checkpoint) -> ReferenceSession:
    """The truth, opened."""
    return ReferenceSession(checkpoint)


def rounded_weights_session(checkpoint: Checkpoint, dtype: str) -> TorchSession:
    """The model with its weights rounded to `dtype` and nothing else.

    It computes in float32, whose own error (~5e-7 relative) is a thousandth of what rounding to a
    half precision does: float64 would cost twice the time and memory for the same figures.
    """
    rounded = RoundedTensors(checkpoint.tensors, DTYPES[dtype])
    return TorchSession(replace(checkpoint, tensors=rounded), "fp32")


class RoundedTensors(Mapping[str, Array]):
    """Float32 tensors that hold values of another dtype, rounded when looked at."""

    def __init__(self, tensors: Mapping[str, Array], dtype: np.dtype[Any]) -> None:
        self._tensors, self._dtype = tensors, dtype

    def __getitem__(self, name: str) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(self._tensors[name]).astype(self._dtype).astype(np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

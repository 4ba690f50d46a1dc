"""From what a running engine tells of its tensors to the values of taps. No driver is needed here.

TensorRT gives a name, a type, a shape and an address. A tensor marked by name comes under the
graph's name. An unfused one comes under TensorRT's internal name, which is the graph's where the
tensor has survived as it was, with " [profile N]" behind it for all optimization profiles but the
first, and something of TensorRT's own where it has not. Only the first two are taken for a tap, and
only with the very shape of that tap: a wrong guess would blame a module for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from andrea_export.errors import BackendError
from andrea_export.layer_names import value_name
from andrea_export.session.protocol import Array

__all__ = ["LayerValues", "byte_count", "decode"]

# TensorRT's name of a type → numpy's.
TYPES = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def byte_count(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor.

    Raises:
        BackendError: a type that no layer's value has.
    """
    if dtype not in TYPES:
        raise BackendError(f"type {dtype} is none of {', '.join(TYPES)}")
    return math.prod(shape) * int(TYPES[dtype].itemsize)


def decode(raw: bytes, dtype: str, shape: Sequence[int]) -> Array:
    """Memory as float32 of that shape; every half and bfloat16 is one exactly.

    Raises:
        BackendError: another type, or another number of bytes than type and shape say.
    """
    wanted = byte_count(dtype, shape)
    if len(raw) != wanted:
        raise BackendError(f"{dtype} {list(shape)} is {wanted} bytes, {len(raw)} were read")
    return np.frombuffer(raw, TYPES[dtype]).astype(np.float32).reshape(shape)


class LayerValues:
    """Takes the tensors of one run, and keeps those that are surely taps.

    Attributes:
        values: tap → float32 [B, T, width].
        refused: tap → why what came under its name was not used.
        errors: what went wrong while reading; TensorRT does not pass it on.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], profile: int) -> None:
        """Args: shapes: of every wanted tap. profile: the optimization profile that runs."""
        self._shapes = shapes
        self._taps = {value_name(tap): tap for tap in shapes}
        if profile:
            self._taps |= {f"{name} [profile {profile}]": tap for name, tap in self._taps.items()}
        self.values: dict[str, Array] = {}
        self.refused: dict[str, str] = {}
        self.errors: list[str] = []

    def wants(self, name: str, dtype: str, shape: Sequence[int]) -> bool:
        """Whether a tensor is worth its copy; says in `refused` why a tap's is not."""
        tap = self._taps.get(name)
        if tap is None:
            return False
        if tuple(shape) != self._shapes[tap]:
            self._refuse(tap, f"shape {list(shape)} instead of {list(self._shapes[tap])}")
        elif dtype not in TYPES:
            self._refuse(tap, f"type {dtype}")
        return tap not in self.refused

    def take(self, name: str, dtype: str, shape: Sequence[int], raw: bytes) -> None:
        """One tensor. A tap that comes twice must be the same both times."""
        if not self.wants(name, dtype, shape):
            return
        tap, value = self._taps[name], decode(raw, dtype, shape)
        if tap in self.values and not np.array_equal(self.values[tap], value, equal_nan=True):
            self._refuse(tap, "two different values")
        else:
            self.values[tap] = value

    def _refuse(self, tap: str, reason: str) -> None:
        self.refused[tap] = reason
        self.values.pop(tap, None)

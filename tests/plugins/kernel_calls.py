"""The C interface of the kernels, called on memory that is watched.

Every tensor lies between canaries. Before a call its exact bytes are declared to the host library,
which ends the launch on any other access, read or write; afterwards the canaries must be unchanged.
Outputs start poisoned.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.plugins.reference import DTYPES

__all__ = ["Kernels", "Tensor"]

CANARY = 0xFF  # not a number in all three types: a read that gets through spoils the result
POISON = 0xA5
MARGIN = 256

DTYPE_CODES = {"float32": 0, "float16": 1, "bfloat16": 2}
GELU_CODES = {"none": 0, "tanh": 1}


class Tensor:
    """An array at `offset` elements from a 16-byte boundary, between canaries."""

    def __init__(self, shape: Sequence[int], dtype: str, offset: int = 0) -> None:
        kind = DTYPES[dtype]
        nbytes = int(np.prod(shape)) * kind.itemsize
        self.memory = np.full(nbytes + 2 * MARGIN + 16, CANARY, np.uint8)
        start = MARGIN + -(self.memory.ctypes.data + MARGIN) % 16 + offset * kind.itemsize
        self.inside = slice(start, start + nbytes)
        self.memory[self.inside] = POISON
        self.array = self.memory[self.inside].view(kind).reshape(shape)

    @classmethod
    def of(cls, values: np.ndarray[Any, Any], offset: int = 0) -> "Tensor":
        tensor = cls(values.shape, values.dtype.name, offset)
        tensor.array[...] = values
        return tensor

    @property
    def address(self) -> int:
        return self.memory.ctypes.data + self.inside.start

    @property
    def nbytes(self) -> int:
        return self.inside.stop - self.inside.start

    def canaries_are_intact(self) -> bool:
        before, after = self.memory[: self.inside.start], self.memory[self.inside.stop :]
        return bool((before == CANARY).all() and (after == CANARY).all())


class Kernels:
    """One host library. Calls raise when the launcher reports anything but success."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.andrea_status_string.restype = ctypes.c_char_p
        self.library.andrea_host_schedule.argtypes = [ctypes.c_uint64]
        self.library.andrea_host_allow.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def schedule(self, seed: int) -> None:
        """The order in which CUDA threads run: 0 ascending, 1 descending, otherwise shuffled."""
        self.library.andrea_host_schedule(seed)

    def layer_norm(self, x: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, epsilon: float) -> None:
        rows, width = x.array.shape
        self._call("layer_norm", [x, gamma, beta, y], [], [rows, width], epsilon)

    def add_layer_norm(
        self,
        x: Tensor,
        r: Tensor,
        gamma: Tensor,
        beta: Tensor,
        y: Tensor,
        s: Tensor,
        epsilon: float,
    ) -> None:
        rows, width = x.array.shape
        self._call("add_layer_norm", [x, r, gamma, beta, y, s], [], [rows, width], epsilon)

    def gelu(self, x: Tensor, y: Tensor, approximate: str) -> None:
        self._call("gelu", [x, y], [GELU_CODES[approximate]], [x.array.size])

    def bias_gelu(self, x: Tensor, bias: Tensor, y: Tensor, approximate: str) -> None:
        rows, width = x.array.shape
        self._call("bias_gelu", [x, bias, y], [GELU_CODES[approximate]], [rows, width])

    def _call(
        self,
        name: str,
        tensors: list[Tensor],
        codes: list[int],
        sizes: list[int],
        epsilon: float | None = None,
    ) -> None:
        self.library.andrea_host_allow(None, 0)
        for tensor in tensors:
            self.library.andrea_host_allow(tensor.address, tensor.nbytes)
        dtype = DTYPE_CODES[tensors[0].array.dtype.name]
        status = getattr(self.library, f"andrea_{name}")(
            *map(ctypes.c_int, (dtype, *codes)),
            *(ctypes.c_void_p(tensor.address) for tensor in tensors),
            *map(ctypes.c_int64, sizes),
            *([] if epsilon is None else [ctypes.c_float(epsilon)]),
            None,
        )
        self.library.andrea_host_allow(None, 0)
        for index, tensor in enumerate(tensors):
            assert tensor.canaries_are_intact(), f"{name} wrote outside of tensor {index}"
        if status != 0:
            raise RuntimeError(f"{status}: {self.library.andrea_status_string(status).decode()}")

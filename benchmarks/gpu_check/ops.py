"""The ops as data: how each is called, what it should give, and how many bytes it must move."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_check.v3_harness import FieldValue

__all__ = ["DTYPES", "EPSILON", "OPS", "Launchers", "Op", "Placed", "allowed_error"]

EPSILON = 1e-5
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DTYPE_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
GELU_CODES = {"none": 0, "tanh": 1}

# Half a unit in the last place; what is lost below the smallest normal number; and what float32
# arithmetic inside may add, in roundings of the terms' size (as in tests/plugins/reference.py).
ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
BOTTOM = {torch.float32: 2.0**-122, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-122}
ARITHMETIC = 24 * 2.0**-24

# (expected output, size of its terms), in float64
Expected = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Op:
    """`activations` inputs of one shape, then `vectors` as long as the last axis."""

    label: str
    plugin: str
    activations: int
    vectors: int
    outputs: int
    attributes: dict[str, FieldValue]
    torch_form: Callable[..., tuple[Tensor, ...]]
    expected: Callable[..., list[Expected]]

    def bytes_moved(self, rows: int, width: int, dtype: torch.dtype) -> int:
        """What has to cross the memory bus: activations in and out (vectors stay in cache)."""
        return (self.activations + self.outputs) * rows * width * dtype.itemsize


class Placed(Protocol):
    """A tensor, or something that lies in memory like one."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def data_ptr(self) -> int: ...


class Launchers:
    """The C interface of a plugin library, on addresses."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.andrea_status_string.restype = ctypes.c_char_p

    def run(
        self, op: Op, inputs: Sequence[Placed], outputs: Sequence[Placed], stream: int | None
    ) -> None:
        """Queue one call. Raises RuntimeError with CUDA's own words when it is refused."""
        x = inputs[0]
        rows, width = x.shape
        tensors = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*inputs, *outputs)]
        codes = [ctypes.c_int(DTYPE_CODES[x.dtype])]
        sizes: list[ctypes.c_int64 | ctypes.c_float] = [ctypes.c_int64(rows), ctypes.c_int64(width)]
        if "epsilon" in op.attributes:
            sizes.append(ctypes.c_float(EPSILON))
        else:
            codes.append(ctypes.c_int(GELU_CODES[str(op.attributes["approximate"])]))
        if op.plugin == "AndreaGelu":
            sizes = [ctypes.c_int64(rows * width)]
        function = getattr(self._library, C_NAMES[op.plugin])
        status = function(*codes, *tensors, *sizes, ctypes.c_void_p(stream))
        if status != 0:
            text = self._library.andrea_status_string(status).decode()
            raise RuntimeError(f"{C_NAMES[op.plugin]}: {text} ({status})")


C_NAMES = {
    "AndreaLayerNorm": "andrea_layer_norm",
    "AndreaAddLayerNorm": "andrea_add_layer_norm",
    "AndreaGelu": "andrea_gelu",
    "AndreaBiasGelu": "andrea_bias_gelu",
}


def allowed_error(dtype: torch.dtype, expected: Tensor, size: Tensor) -> Tensor:
    """Correct rounding, plus the arithmetic inside, plus what is lost at the bottom."""
    return 1.001 * ROUNDING[dtype] * expected.abs() + ARITHMETIC * size + BOTTOM[dtype]


def _expect_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> list[Expected]:
    x, gamma, beta = x.double(), gamma.double(), beta.double()
    y = F.layer_norm(x, x.shape[-1:], gamma, beta, EPSILON)
    return [(y, (y - beta).abs() + beta.abs() + gamma.abs())]


def _expect_add_layer_norm(x: Tensor, r: Tensor, gamma: Tensor, beta: Tensor) -> list[Expected]:
    total = (x.double() + r.double()).to(x.dtype)
    return [
        *_expect_layer_norm(total, gamma, beta),
        (total.double(), torch.zeros_like(total).double()),
    ]


def _expect_gelu(x: Tensor, approximate: str) -> list[Expected]:
    """Without the 1 + tanh and 1 + erf of torch's own form, which cancel left of -7 even here."""
    x = x.double()
    if approximate == "tanh":
        argument = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        y, condition = x * torch.sigmoid(argument), argument.abs()
    else:
        y, condition = 0.5 * x * torch.special.erfc(-x / math.sqrt(2)), x**2
    return [(y, torch.where(y == 0, 0.0, y.abs() * (1 + condition)))]


def _gelu(label: str, approximate: str) -> Op:
    return Op(
        label=f"GELU {label}",
        plugin="AndreaGelu",
        activations=1,
        vectors=0,
        outputs=1,
        attributes={"approximate": approximate},
        torch_form=lambda x: (F.gelu(x, approximate=approximate),),
        expected=lambda x: _expect_gelu(x, approximate),
    )


def _bias_gelu(label: str, approximate: str) -> Op:
    return Op(
        label=f"BiasGELU {label}",
        plugin="AndreaBiasGelu",
        activations=1,
        vectors=1,
        outputs=1,
        attributes={"approximate": approximate},
        torch_form=lambda x, bias: (F.gelu(x + bias, approximate=approximate),),
        expected=lambda x, bias: _expect_gelu(x.float() + bias.float(), approximate),
    )


def _add_layer_norm(x: Tensor, r: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    total = x + r
    return F.layer_norm(total, x.shape[-1:], gamma, beta, EPSILON), total


OPS = (
    Op(
        label="LayerNorm",
        plugin="AndreaLayerNorm",
        activations=1,
        vectors=2,
        outputs=1,
        attributes={"epsilon": EPSILON},
        torch_form=lambda x, g, b: (F.layer_norm(x, x.shape[-1:], g, b, EPSILON),),
        expected=_expect_layer_norm,
    ),
    Op(
        label="AddLayerNorm",
        plugin="AndreaAddLayerNorm",
        activations=2,
        vectors=2,
        outputs=2,
        attributes={"epsilon": EPSILON},
        torch_form=_add_layer_norm,
        expected=_expect_add_layer_norm,
    ),
    _gelu("tanh", "tanh"),
    _gelu("erf", "none"),
    _bias_gelu("tanh", "tanh"),
    _bias_gelu("erf", "none"),
)

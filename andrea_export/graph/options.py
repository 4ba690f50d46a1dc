"""What one can ask of an export, and the choices that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import ml_dtypes
import numpy as np

from andrea_export.errors import GraphError

__all__ = ["DTYPES", "OPSETS", "Dtype", "GraphOptions", "Ops"]

Dtype = Literal["fp32", "fp16", "bf16"]
Ops = Literal["plugin", "standard"]

# ml_dtypes registers bfloat16 with numpy.
DTYPES: dict[str, np.dtype] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}

# 20 is the first opset with Gelu; beyond 24 nothing here was tried.
OPSETS = range(20, 25)
DEFAULT_OPSET = 20


@dataclass(frozen=True)
class GraphOptions:
    """Options of `export_graph`.

    Attributes:
        dtype: type of weights and activations. Norm statistics and logits are float32 always.
        ops: "plugin" writes custom ops that carry their own definition, "standard" writes none.
        opset: ONNX opset of the model and of the functions in it.

    Raises:
        GraphError: a value outside these.
    """

    dtype: Dtype = "fp32"
    ops: Ops = "plugin"
    opset: int = DEFAULT_OPSET

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            hint = " (int8 and fp8 are not supported)" if "8" in str(self.dtype) else ""
            raise GraphError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}{hint}")
        if self.ops not in get_args(Ops):
            raise GraphError(f"ops {self.ops!r} is not one of {', '.join(get_args(Ops))}")
        if self.opset not in OPSETS:
            raise GraphError(
                f"opset {self.opset} is not between {OPSETS.start} and {OPSETS.stop - 1}"
            )

    @property
    def numpy_dtype(self) -> np.dtype:
        return DTYPES[self.dtype]

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
Logits = Literal["all", "last"]

# ml_dtypes registers bfloat16 with numpy.
DTYPES: dict[str, np.dtype] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}

# 20 is the first opset with Gelu, 24 the first with TensorScatter; beyond it nothing was tried.
OPSETS = range(20, 25)
DEFAULT_OPSET = 20
CACHE_OPSET = 24


@dataclass(frozen=True)
class GraphOptions:
    """Options of `export_graph`.

    Attributes:
        dtype: type of weights and activations. Norm statistics and logits are float32 always.
        ops: "plugin" writes custom ops that carry their own definition, "standard" writes none.
        opset: ONNX opset of the model and of the functions in it; 0 takes the lowest that has
            all the graph needs: 20, with a cache 24. From 23 on attention is the Attention op.
        kv_cache: a static key/value cache, written in place.
        logits: of "all" new tokens, or of the "last" one of each row (with a cache only).

    Raises:
        GraphError: a value outside these.
    """

    dtype: Dtype = "fp32"
    ops: Ops = "plugin"
    opset: int = 0
    kv_cache: bool = False
    logits: Logits = "all"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            hint = " (int8 and fp8 are not supported)" if "8" in str(self.dtype) else ""
            raise GraphError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}{hint}")
        for name, allowed in (("ops", get_args(Ops)), ("logits", get_args(Logits))):
            if getattr(self, name) not in allowed:
                raise GraphError(
                    f"{name} {getattr(self, name)!r} is not one of {', '.join(allowed)}"
                )
        if self.logits == "last" and not self.kv_cache:
            raise GraphError("logits 'last' needs the key/value cache (--kv-cache)")
        lowest = CACHE_OPSET if self.kv_cache else DEFAULT_OPSET
        if self.opset == 0:
            object.__setattr__(self, "opset", lowest)
        if self.opset not in OPSETS:
            raise GraphError(
                f"opset {self.opset} is not between {OPSETS.start} and {OPSETS.stop - 1}"
            )
        if self.opset < lowest:
            raise GraphError(
                f"opset {self.opset} has no TensorScatter: a key/value cache needs {CACHE_OPSET}"
            )

    @property
    def numpy_dtype(self) -> np.dtype:
        return DTYPES[self.dtype]

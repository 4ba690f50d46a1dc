"""The weights of a graph: one initializer per tensor of the checkpoint, converted when written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from andrea_export.errors import GraphError
from andrea_model.parameters import parameter_shapes

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint

__all__ = ["weight_initializers"]


def weight_initializers(checkpoint: Checkpoint, dtype: np.dtype) -> dict[str, ir.Value]:
    """Initializers named as the checkpoint's tensors, in their canonical order.

    No weight is read here: each is read, converted and let go when the graph is saved, so that
    memory never holds more than one of them.
    """
    onnx_dtype = ir.DataType.from_numpy(dtype)
    initializers = {}
    for name, dims in parameter_shapes(checkpoint.config).items():
        convert, shape = partial(_convert, checkpoint, name, dtype), ir.Shape(dims)
        tensor = ir.LazyTensor(convert, dtype=onnx_dtype, shape=shape, name=name)
        initializers[name] = ir.Value(
            name=name, type=ir.TensorType(onnx_dtype), shape=shape, const_value=tensor
        )
    return initializers


def _convert(checkpoint: Checkpoint, name: str, dtype: np.dtype) -> ir.TensorProtocol:
    stored = np.asarray(checkpoint.tensors[name])
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(stored, dtype)
    if dtype.itemsize < 4 and not np.isfinite(array).all() and np.isfinite(stored).all():
        raise GraphError(
            f"{name} does not fit {dtype.name}: its largest weight is {np.abs(stored).max():.4g}, "
            f"the type ends at {float(ir.DataType.from_numpy(dtype).max):.4g}; use --dtype fp32"
        )
    return ir.Tensor(array, name=name)

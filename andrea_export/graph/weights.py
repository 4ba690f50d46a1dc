"""The weights of a graph: one initializer per tensor of the checkpoint, converted when written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from andrea_export.errors import GraphError
from andrea_export.graph.emitter import initializer
from andrea_model.parameters import parameter_shapes

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint

__all__ = ["weight_initializers"]


def weight_initializers(checkpoint: Checkpoint, dtype: np.dtype) -> dict[str, ir.Value]:
    """Initializers named as the checkpoint's tensors, in their canonical order.

    No weight is read here: each is read, converted and let go when the graph is saved, so that
    memory never holds more than one of them.
    """
    return {
        name: initializer(
            name,
            ir.LazyTensor(
                partial(_convert, checkpoint, name, dtype),
                dtype=ir.DataType.from_numpy(dtype),
                shape=ir.Shape(shape),
                name=name,
            ),
        )
        for name, shape in parameter_shapes(checkpoint.config).items()
    }


def _convert(checkpoint: Checkpoint, name: str, dtype: np.dtype) -> ir.Tensor:
    stored = np.asarray(checkpoint.tensors[name])
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(stored, dtype)
    if dtype.itemsize < 4 and not np.isfinite(array).all() and np.isfinite(stored).all():
        raise GraphError(
            f"{name} does not fit {dtype.name}: its largest weight is {np.abs(stored).max():.4g}, "
            f"the type ends at {float(ir.DataType.from_numpy(dtype).max):.4g}; use --dtype fp32"
        )
    return ir.Tensor(array, name=name)

"""Writes named, typed nodes into a graph or a function body: one call per node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = ["Dims", "Emitter", "graph_input"]

Dims = Sequence[int | str | ir.SymbolicDim]


class Emitter:
    """Collects nodes, and the constants that they need.

    Every node gets a name and gives it to its first output, so that a module's output is found in
    the graph under the module's own name.
    """

    def __init__(self, dtype: ir.DataType) -> None:
        self.dtype = dtype
        self.nodes: list[ir.Node] = []
        self._constants: dict[str, ir.Value] = {}

    def __call__(self, op_type: str, *inputs: ir.Value | None, name: str, **rest: Any) -> ir.Value:
        """Add one node of one output, which is called `name`; see `multi`."""
        return self.multi(op_type, *inputs, names=[name], **rest)[0]

    def multi(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        names: Sequence[str],
        shape: Dims | None = None,
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> list[ir.Value]:
        """Add one node and return its outputs, called `names`; the node has the first one's name.

        The outputs are of `dtype` (default: the emitter's) and, where given, of `shape`.
        """
        outputs = [
            ir.Value(
                name=name,
                type=ir.TensorType(dtype or self.dtype),
                shape=None if shape is None else ir.Shape(shape),
            )
            for name in names
        ]
        attrs = [
            value if isinstance(value, ir.Attr) else ir.convenience.convert_attribute(key, value)
            for key, value in attributes.items()
        ]
        self.nodes.append(
            ir.Node(domain, op_type, inputs, attributes=attrs, outputs=outputs, name=names[0])
        )
        return outputs

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """A small constant, written in the model file and shared by all who ask for that name."""
        if name not in self._constants:
            self._constants[name] = self(
                "Constant",
                name=name,
                shape=array.shape,
                dtype=ir.DataType.from_numpy(array.dtype),
                value=ir.tensor(array, name=name),
            )
        return self._constants[name]


def graph_input(name: str, dtype: ir.DataType, shape: Dims) -> ir.Value:
    """An input of the graph; a dimension given by name is dynamic."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))

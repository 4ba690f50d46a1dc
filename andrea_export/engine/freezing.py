"""Giving the cache of a graph its fixed size, which TensorRT needs before it parses."""

from __future__ import annotations

from pathlib import Path

from andrea_export.engine.onnx_nodes import read_graph
from andrea_export.errors import EngineError

__all__ = ["CAPACITY", "freeze_axis"]

CAPACITY = "capacity"


def freeze_axis(path: Path, size: int, axis: str = CAPACITY) -> bytes:
    """The ONNX model at `path` with every axis called `axis` of that size; weights stay outside.

    TensorScatter becomes an in-place update only if the sequence axis of the cache is static.

    Returns:
        The model, serialized.

    Raises:
        EngineError: the file cannot be read as ONNX, or no axis has that name.
    """
    model = read_graph(path)
    graph = model.graph
    frozen = 0
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == axis:
                dimension.dim_value = size
                frozen += 1
    if not frozen:
        raise EngineError(f"{path}: the graph has no axis called {axis}: it has no cache to size")
    serialized: bytes = model.SerializeToString()
    return serialized

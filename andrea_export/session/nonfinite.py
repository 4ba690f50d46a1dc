"""Where a model first gives NaN or Inf: the module to look at when its logits fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from andrea_export.session.in_memory import over_weights
from andrea_export.session.protocol import Array

if TYPE_CHECKING:
    import torch

    from andrea_export.graph.folder import GraphFolder

__all__ = ["first_nonfinite_in_graph", "first_nonfinite_in_torch"]


def first_nonfinite_in_torch(model: torch.nn.Module, input_ids: Array) -> str | None:
    """Name of the first module, in order of execution, whose output is not finite."""
    import torch

    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            if not found and not torch.isfinite(output).all():
                found.append(name)

        return hook

    handles = [
        module.register_forward_hook(watch(name or "logits"))
        for name, module in model.named_modules()
    ]
    try:
        with torch.inference_mode():
            model(torch.from_numpy(input_ids))
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def first_nonfinite_in_graph(graph: GraphFolder, input_ids: Array) -> str | None:
    """Name of the first node, in order of execution, whose output is not finite.

    The graph runs once with every float tensor as an output: only for a model that has failed.
    """
    import onnx_ir as ir
    import onnxruntime as ort

    model = ir.load(graph.model_path)
    floats = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    names = [
        node.outputs[0].name
        for node in model.graph
        if node.op_type != "Constant" and node.outputs[0].dtype in floats
    ]
    present = {value.name for value in model.graph.outputs}
    by_name = {node.outputs[0].name: node.outputs[0] for node in model.graph}
    model.graph.outputs.extend(by_name[name] for name in names if name not in present)
    proto = ir.to_proto(model)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    runtime = ort.InferenceSession(over_weights(proto, graph, options), options)
    rows, width = input_ids.shape
    feed: dict[str, Array] = {"input_ids": input_ids}
    for argument in runtime.get_inputs():
        if argument.name == "past_length":
            feed[argument.name] = np.zeros(rows, np.int64)
        elif argument.name == "new_length":
            feed[argument.name] = np.full(rows, width, np.int64)
        elif argument.name.startswith("past_key_values."):
            shape = (rows, graph.config.n_head, width, graph.config.head_dim)
            feed[argument.name] = np.zeros(shape, graph.options.numpy_dtype)
    for name, value in zip(names, runtime.run(names, feed), strict=True):
        if not np.isfinite(value).all():
            return name
    return None

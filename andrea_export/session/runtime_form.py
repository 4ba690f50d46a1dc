"""A cached graph in ONNX Runtime's own ops: the same model, faster to run there.

A file holds standard ops alone, so that every runtime can take it. ONNX Runtime's op for attention
over a cache reads only what is filled. So a graph that is to the last node what this toolkit writes
for its config and options is written once more, with that op, over the same weights in the same
file. A graph that differs anywhere (changed by hand, or from another version) runs as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from andrea_export.graph.folder import GraphFolder
from andrea_model.config import AndreaConfig
from andrea_model.parameters import parameter_shapes

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from andrea_export.graph.attention import Attention

__all__ = ["runtime_form"]


def runtime_form(graph: GraphFolder) -> onnx.ModelProto | None:
    """The model, its weights where the file says; None: it has no such form.

    float32 only: in half precision the op rounds elsewhere than the standard ones.
    """
    from andrea_export.graph.runtime_attention import HEAD_DIM_MULTIPLE, RuntimeAttention

    config, options = graph.config, graph.options
    if not options.kv_cache or options.dtype != "fp32" or config.head_dim % HEAD_DIM_MULTIPLE:
        return None
    import onnx

    found = onnx.load(graph.model_path, load_external_data=False)
    if _written(graph, found) != found:
        return None
    return _written(graph, found, RuntimeAttention)


def _written(
    graph: GraphFolder, found: onnx.ModelProto, attention: type[Attention] | None = None
) -> onnx.ModelProto:
    """The graph as this version writes it, with the weights of `found` as they stand there."""
    import onnx_ir as ir

    from andrea_export.graph.build import build_model

    weights = _placeholders(graph.config)
    model: onnx.ModelProto = ir.to_proto(
        build_model(graph.config, graph.options, weights, attention=attention)
    )
    model.producer_version = found.producer_version
    # The file's own, whatever they are: what is wrong with one is for ONNX Runtime to say.
    del model.graph.initializer[:]
    model.graph.initializer.extend(found.graph.initializer)
    return model


def _placeholders(config: AndreaConfig) -> dict[str, ir.Value]:
    """A weight for each that the model has: of its name and shape, and stored nowhere."""
    import onnx_ir as ir

    float32 = ir.DataType.FLOAT
    weights = {}
    for name, dims in parameter_shapes(config).items():
        shape = ir.Shape(dims)
        nowhere = ir.ExternalTensor("", 0, 0, float32, shape=shape, name=name)
        weights[name] = ir.Value(
            name=name, type=ir.TensorType(float32), shape=shape, const_value=nowhere
        )
    return weights

"""A cached graph in ONNX Runtime's own ops: the same model, faster to run there.

A file holds standard ops alone, so that every runtime can take it. ONNX Runtime's op for attention
over a cache reads only what is filled. So a graph that is to the last node what this toolkit writes
for its config and options is written once more, with that op, over the same weights in the same
file. A graph that differs anywhere (changed by hand, or from another version) runs as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from andrea_export.graph.folder import GraphFolder

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

__all__ = ["runtime_form"]


def runtime_form(graph: GraphFolder) -> bytes | None:
    """The serialized model, its weights external in the graph's folder; None: it has no such form.

    float32 only: in half precision the op rounds elsewhere than the standard ones.
    """
    from andrea_export.graph.runtime_attention import HEAD_DIM_MULTIPLE, RuntimeAttention

    config, options = graph.config, graph.options
    if not options.kv_cache or options.dtype != "fp32" or config.head_dim % HEAD_DIM_MULTIPLE:
        return None
    import onnx
    import onnx_ir as ir

    from andrea_export.graph.build import build_model

    found = onnx.load(graph.model_path, load_external_data=False)
    own = ir.to_proto(build_model(config, options, _weights(found)))
    own.producer_version = found.producer_version
    if own != found:
        return None
    fused = build_model(config, options, _weights(found), attention=RuntimeAttention)
    return ir.to_proto(fused).SerializeToString()  # type: ignore[no-any-return]


def _weights(model: onnx.ModelProto) -> dict[str, ir.Value]:
    """The initializers of a file, each pointing at where its weight lies beside it."""
    import onnx_ir as ir

    weights = {}
    for proto in model.graph.initializer:
        tensor = ir.from_proto(proto)
        weights[proto.name] = ir.Value(
            name=proto.name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape),
            const_value=tensor,
        )
    return weights

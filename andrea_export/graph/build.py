"""From a configuration to an ONNX model: the graph, written node by node.

Nothing is traced, so neither torch nor a single weight is touched here: the graph is a function of
the config and the options alone, and comes out the same to the byte every time. That it is still
the reference model is proved afterwards, by figures.

Every node carries its module's name (`blocks.3.attn.q`), and so does the value it gives.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from andrea_export import __version__
from andrea_export.graph.attention import Attention
from andrea_export.graph.emitter import Dims, graph_input
from andrea_export.graph.ops import DOMAIN, DOMAIN_VERSION, custom_op_functions
from andrea_export.graph.options import GraphOptions
from andrea_export.graph.runtime_attention import RUNTIME_DOMAIN, RUNTIME_DOMAIN_VERSION
from andrea_export.graph.sublayers import SublayerWriter
from andrea_model.config import AndreaConfig

__all__ = ["build_model"]

DOMAIN_VERSIONS = {DOMAIN: DOMAIN_VERSION, RUNTIME_DOMAIN: RUNTIME_DOMAIN_VERSION}
# The IR version that came with each opset; a newer one would shut out older runtimes for nothing.
IR_VERSIONS = {20: 9, 21: 10, 22: 10, 23: 11, 24: 12}


def build_model(
    config: AndreaConfig,
    options: GraphOptions,
    weights: Mapping[str, ir.Value],
    *,
    attention: type[Attention] | None = None,
) -> ir.Model:
    """The model `input_ids` int64 [batch, sequence] → `logits` float32 [batch, sequence, vocab].

    With a cache also `past_length` int64 [batch] and `past_key_values.{i}.key|value`
    [batch, n_head, capacity, head_dim] → `present.{i}.key|value`, the same shape and dtype;
    with `options.logits` "last" also `new_length` int64 [batch], and logits [batch, 1, vocab].

    Args:
        config: shape and options of the model.
        options: dtype, op form, opset and cache of the graph.
        weights: one initializer per name of `parameter_shapes(config)`, in `options.dtype`.
        attention: instead of the one that the options ask for.
    """
    writer = _ModelWriter(config, options, weights, attention)
    inputs, outputs = writer.write()
    domains = {node.domain for node in writer.emit.nodes}
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=writer.emit.nodes,
        initializers=list(weights.values()),
        opset_imports={"": options.opset}
        | {name: number for name, number in DOMAIN_VERSIONS.items() if name in domains},
        name="andrea",
    )
    return ir.Model(
        graph,
        ir_version=IR_VERSIONS[options.opset],
        producer_name="andrea-export",
        producer_version=__version__,
        functions=custom_op_functions(writer.ops.used, writer.emit.dtype, options.opset),
    )


class _ModelWriter(SublayerWriter):
    def write(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """All nodes; returns the graph's inputs and outputs."""
        input_ids = graph_input("input_ids", ir.DataType.INT64, ["batch", "sequence"])
        self.attend.prepare(input_ids)
        x = self._blocks(self._embedding(input_ids))
        inputs = [input_ids, *self.attend.inputs]
        if self.options.logits == "last":
            new_length = graph_input("new_length", ir.DataType.INT64, ["batch"])
            inputs.insert(2, new_length)
            x = self._last_token(x, new_length)
        return inputs, [self.head(x), *self.attend.outputs]

    def _embedding(self, input_ids: ir.Value) -> ir.Value:
        emit, positions = self.emit, self.attend.positions
        tokens = emit(
            "Gather", self.weights["wte.weight"], input_ids, name="wte", shape=self.hidden
        )
        shape = [*(positions.shape or ()), self.config.d_model]
        places = emit("Gather", self.weights["wpe.weight"], positions, name="wpe", shape=shape)
        return emit("Add", tokens, places, name="embedding", shape=self.hidden)

    def _blocks(self, residual: ir.Value) -> ir.Value:
        """All blocks and the final norm. [B, T, d]"""
        # Pre-norm keeps one addition waiting, so that the norm after it can take it in.
        pending: ir.Value | None = None
        for i in range(self.config.n_layer):
            block = f"blocks.{i}"
            if self.config.norm_position == "pre":
                x, residual = self.norm(f"{block}.norm1", residual, pending, self._sum_before(i))
                pending = self.attention(i, x)
                x, residual = self.norm(f"{block}.norm2", residual, pending, f"{block}.attn_sum")
                pending = self.mlp(f"{block}.mlp", x)
            else:
                update = self.attention(i, residual)
                residual, _ = self.norm(f"{block}.norm1", residual, update, f"{block}.attn_sum")
                update = self.mlp(f"{block}.mlp", residual)
                residual, _ = self.norm(f"{block}.norm2", residual, update, f"{block}.mlp_sum")
        x, _ = self.norm("norm_f", residual, pending, self._sum_before(self.config.n_layer))
        return x

    def _last_token(self, x: ir.Value, new_length: ir.Value) -> ir.Value:
        """Of each row the token new_length - 1. [B, 1, d]"""
        emit, int64 = self.emit, ir.DataType.INT64
        one = emit.constant("constants.one", np.array(1, np.int64))
        last = emit("Sub", new_length, one, name="last_token", shape=["batch"], dtype=int64)
        axis = emit.constant("constants.axes_1", np.array([1], np.int64))
        index = emit(
            "Unsqueeze", last, axis, name="last_token/index", shape=["batch", 1], dtype=int64
        )
        shape: Dims = ["batch", 1, self.config.d_model]
        # One index per row: GatherND takes the rows of the batch one by one.
        y = emit("GatherND", x, index, name="last_hidden/flat", shape=shape[::2], batch_dims=1)
        return emit("Unsqueeze", y, axis, name="last_hidden", shape=shape)

    @staticmethod
    def _sum_before(i: int) -> str:
        return f"blocks.{i - 1}.mlp_sum"

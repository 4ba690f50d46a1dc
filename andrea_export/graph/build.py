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
from andrea_export.graph.ops import DOMAIN, DOMAIN_VERSION, custom_op_functions
from andrea_export.graph.options import GraphOptions
from andrea_export.graph.sublayers import SublayerWriter
from andrea_model.config import AndreaConfig

__all__ = ["build_model"]

# The IR version that came with each opset; a newer one would shut out older runtimes for nothing.
IR_VERSIONS = {20: 9, 21: 10, 22: 10, 23: 11, 24: 12}


def build_model(
    config: AndreaConfig, options: GraphOptions, weights: Mapping[str, ir.Value]
) -> ir.Model:
    """The model `input_ids` int64 [batch, sequence] → `logits` float32 [batch, sequence, vocab].

    Args:
        config: shape and options of the model.
        options: dtype, op form and opset of the graph.
        weights: one initializer per name of `parameter_shapes(config)`, in `options.dtype`.
    """
    writer = _ModelWriter(config, options, weights)
    input_ids = ir.Value(
        name="input_ids",
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape(["batch", "sequence"]),
    )
    logits = writer.write(input_ids)
    emit = writer.emit
    graph = ir.Graph(
        [input_ids],
        [logits],
        nodes=emit.nodes,
        initializers=list(weights.values()),
        opset_imports={"": options.opset} | ({DOMAIN: DOMAIN_VERSION} if writer.ops.used else {}),
        name="andrea",
    )
    return ir.Model(
        graph,
        ir_version=IR_VERSIONS[options.opset],
        producer_name="andrea-export",
        producer_version=__version__,
        functions=custom_op_functions(writer.ops.used, emit.dtype, options.opset),
    )


class _ModelWriter(SublayerWriter):
    def write(self, input_ids: ir.Value) -> ir.Value:
        emit, config = self.emit, self.config
        positions = self._positions(input_ids)
        mask = self._causal_mask(positions)
        tokens = emit(
            "Gather", self.weights["wte.weight"], input_ids, name="wte", shape=self.hidden
        )
        places = emit(
            "Gather", self.weights["wpe.weight"], positions, name="wpe", shape=self.hidden[1:]
        )
        residual = emit("Add", tokens, places, name="embedding", shape=self.hidden)

        # Pre-norm keeps one addition waiting, so that the norm after it can take it in.
        pending: ir.Value | None = None
        for i in range(config.n_layer):
            block = f"blocks.{i}"
            if config.norm_position == "pre":
                x, residual = self.norm(f"{block}.norm1", residual, pending, self._sum_before(i))
                pending = self.attention(f"{block}.attn", x, mask)
                x, residual = self.norm(f"{block}.norm2", residual, pending, f"{block}.attn_sum")
                pending = self.mlp(f"{block}.mlp", x)
            else:
                update = self.attention(f"{block}.attn", residual, mask)
                residual, _ = self.norm(f"{block}.norm1", residual, update, f"{block}.attn_sum")
                update = self.mlp(f"{block}.mlp", residual)
                residual, _ = self.norm(f"{block}.norm2", residual, update, f"{block}.mlp_sum")
        x, _ = self.norm("norm_f", residual, pending, self._sum_before(config.n_layer))
        return self.head(x)

    @staticmethod
    def _sum_before(i: int) -> str:
        return f"blocks.{i - 1}.mlp_sum"

    def _positions(self, input_ids: ir.Value) -> ir.Value:
        emit, int64 = self.emit, ir.DataType.INT64
        length = emit("Shape", input_ids, name="sequence", shape=[1], dtype=int64, start=1, end=2)
        scalar = emit("Squeeze", length, name="sequence/scalar", shape=[], dtype=int64)
        return emit(
            "Range",
            emit.constant("constants.zero", np.array(0, np.int64)),
            scalar,
            emit.constant("constants.one", np.array(1, np.int64)),
            name="positions",
            shape=["sequence"],
            dtype=int64,
        )

    def _causal_mask(self, positions: ir.Value) -> ir.Value:
        """0 where a token may look, the lowest finite number where it may not. [T, T]

        Finite, because Inf in a mask would hide the Inf that a fault makes.
        """
        emit, square = self.emit, ["sequence", "sequence"]
        query, key = (
            emit(
                "Unsqueeze",
                positions,
                emit.constant(f"constants.axis{axis}", np.array([axis], np.int64)),
                name=f"mask/{name}",
                shape=shape,
                dtype=ir.DataType.INT64,
            )
            for name, axis, shape in (("query", 1, ["sequence", 1]), ("key", 0, [1, "sequence"]))
        )
        seen = emit(
            "LessOrEqual", key, query, name="mask/seen", shape=square, dtype=ir.DataType.BOOL
        )
        lowest = ir.DataType.from_numpy(self.numpy_dtype).min
        return emit(
            "Where",
            seen,
            self.scalar("constants.no_penalty", 0.0),
            self.scalar("constants.masked", float(lowest)),
            name="mask",
            shape=square,
        )

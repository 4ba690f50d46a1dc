"""The parts of a block as ONNX nodes: norm, linear, attention, MLP, and the output head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from andrea_export.graph.attention import Attention, attention_for
from andrea_export.graph.emitter import Dims, Emitter
from andrea_export.graph.ops import OpWriter
from andrea_export.graph.options import GraphOptions
from andrea_model.config import AndreaConfig

__all__ = ["SublayerWriter"]

GELU_APPROXIMATION = {"gelu_tanh": "tanh", "gelu_erf": "none"}


class SublayerWriter:
    """Writes one sublayer per call; each is named after the module that it stands for."""

    def __init__(
        self,
        config: AndreaConfig,
        options: GraphOptions,
        weights: Mapping[str, ir.Value],
        attention: type[Attention] | None = None,
    ) -> None:
        self.config, self.options, self.weights = config, options, weights
        self.emit = Emitter(ir.DataType.from_numpy(options.numpy_dtype))
        self.ops = OpWriter(self.emit, plugin=options.ops == "plugin")
        kind = attention or attention_for(options)
        self.attend = kind(config, options, self.emit)
        self.hidden: Dims = ["batch", "sequence", config.d_model]

    def norm(
        self, name: str, residual: ir.Value, update: ir.Value | None, sum_name: str
    ) -> tuple[ir.Value, ir.Value]:
        """norm(residual + update), and the sum itself. A norm without an update sums nothing."""
        if self.config.norm == "rmsnorm":
            if update is not None:
                residual = self.emit("Add", update, residual, name=sum_name, shape=self.hidden)
            return self._rms_norm(name, residual), residual
        gamma = self.weights.get(f"{name}.weight") or self._vector("constants.ones", 1.0)
        beta = self.weights.get(f"{name}.bias") or self._vector("constants.zeros", 0.0)
        eps = self.config.norm_eps
        if update is None:
            return self.ops.layer_norm(residual, gamma, beta, epsilon=eps, name=name), residual
        return self.ops.add_layer_norm(
            update, residual, gamma, beta, epsilon=eps, name=name, sum_name=sum_name
        )

    def _rms_norm(self, name: str, x: ir.Value) -> ir.Value:
        """weight · x / sqrt(mean(x²) + eps) + bias, in float32 up to the last cast."""
        emit, f32 = self.emit, ir.DataType.FLOAT
        half = emit.dtype != f32
        shape, column = self.hidden, [*self.hidden[:-1], 1]

        def step(
            op: str, *inputs: ir.Value, part: str, dims: Dims = shape, **attrs: Any
        ) -> ir.Value:
            return emit(op, *inputs, name=f"{name}/{part}", shape=dims, dtype=f32, **attrs)

        def cast(value: ir.Value, part: str, dims: Dims) -> ir.Value:
            return step("Cast", value, part=part, dims=dims, to=f32) if half else value

        x = cast(x, "x", shape)
        square = step("Mul", x, x, part="square")
        axis = emit.constant("constants.last_axis", np.array([-1], np.int64))
        mean = step("ReduceMean", square, axis, part="mean", dims=column, keepdims=1)
        eps = emit.constant("constants.norm_eps", np.array(self.config.norm_eps, np.float32))
        root = step(
            "Sqrt", step("Add", mean, eps, part="mean_eps", dims=column), part="rms", dims=column
        )
        y = step("Div", x, root, part="normalized")
        for leaf, op in (("weight", "Mul"), ("bias", "Add")):
            if f"{name}.{leaf}" in self.weights:
                parameter = cast(self.weights[f"{name}.{leaf}"], leaf, shape[-1:])
                y = step(op, y, parameter, part=op.lower())
        if half:
            return emit("Cast", y, name=name, shape=shape, to=emit.dtype)
        y.name = name
        return y

    def linear(self, name: str, x: ir.Value, n_out: int, add_bias: bool = True) -> ir.Value:
        """x @ weight, plus the bias where there is one and it is wanted here."""
        shape = [*self.hidden[:-1], n_out]
        bias = self.weights.get(f"{name}.bias") if add_bias else None
        weight = self.weights[f"{name}.weight"]
        if bias is None:
            return self.emit("MatMul", x, weight, name=name, shape=shape)
        product = self.emit("MatMul", x, weight, name=f"{name}/matmul", shape=shape)
        return self.emit("Add", product, bias, name=name, shape=shape)

    def attention(self, block: int, x: ir.Value) -> ir.Value:
        name, d_model = f"blocks.{block}.attn", self.config.d_model
        q, k, v = (self.linear(f"{name}.{leaf}", x, d_model) for leaf in "qkv")
        return self.linear(f"{name}.o", self.attend(block, q, k, v), d_model)

    def mlp(self, name: str, x: ir.Value) -> ir.Value:
        emit, config = self.emit, self.config
        shape = [*self.hidden[:-1], config.mlp_dim]
        activation = f"{name}.activation"
        if config.activation == "swiglu":
            both = self.linear(f"{name}.fc1", x, 2 * config.mlp_dim)
            names = [f"{name}.gate", f"{name}.value"]
            gate, value = emit.multi(
                "Split", both, names=names, shape=shape, axis=-1, num_outputs=2
            )
            sigmoid = emit("Sigmoid", gate, name=f"{name}.gate/sigmoid", shape=shape)
            silu = emit("Mul", gate, sigmoid, name=f"{name}.gate/silu", shape=shape)
            hidden = emit("Mul", silu, value, name=activation, shape=shape)
        elif config.activation == "relu":
            hidden = emit(
                "Relu", self.linear(f"{name}.fc1", x, config.mlp_dim), name=activation, shape=shape
            )
        else:
            hidden = self.ops.gelu(
                self.linear(f"{name}.fc1", x, config.mlp_dim, add_bias=False),
                self.weights.get(f"{name}.fc1.bias"),
                approximate=GELU_APPROXIMATION[config.activation],
                name=activation,
            )
        return self.linear(f"{name}.fc2", hidden, config.d_model)

    def head(self, x: ir.Value) -> ir.Value:
        """x @ headᵀ as float32; a tied head reads the one stored embedding."""
        emit, config = self.emit, self.config
        table = self.weights["wte.weight" if config.tied_head else "head.weight"]
        turned: Dims = [config.d_model, config.vocab_size]
        transposed = emit("Transpose", table, name="head/transposed", shape=turned, perm=[1, 0])
        tokens = 1 if self.options.logits == "last" else "sequence"
        shape: Dims = ["batch", tokens, config.vocab_size]
        if emit.dtype == ir.DataType.FLOAT:
            return emit("MatMul", x, transposed, name="logits", shape=shape)
        half = emit("MatMul", x, transposed, name="head", shape=shape)
        f32 = ir.DataType.FLOAT
        return emit("Cast", half, name="logits", shape=shape, dtype=f32, to=f32)

    def _vector(self, name: str, value: float) -> ir.Value:
        return self.emit.constant(
            name, np.full(self.config.d_model, value, self.options.numpy_dtype)
        )

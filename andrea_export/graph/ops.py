"""The custom ops: what each one computes in standard ops, and how a node of it is written.

One definition serves three ways: as the FunctionProto that travels in the model (so any runtime
can run it), written out in place (`--ops standard`), and as the specification of the CUDA plugins.

In half precision a body casts to float32, computes, and casts back: without the casts TensorRT
would take the statistics of a norm in half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from andrea_export.graph.emitter import Dims, Emitter

__all__ = ["CUSTOM_OPS", "DOMAIN", "CustomOp", "custom_op_functions"]

DOMAIN = "andrea"
DOMAIN_VERSION = 1
PLUGIN_ATTRIBUTES = {"plugin_namespace": "andrea", "plugin_version": "1"}

Attributes = dict[str, ir.Attr]
Body = Callable[[Emitter, str, list[ir.Value], Attributes, Dims | None], list[ir.Value]]


@dataclass(frozen=True)
class CustomOp:
    """Signature and definition of one op of the domain `andrea`."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attribute: str
    attribute_type: ir.AttributeType
    body: Body


def _to_float(emit: Emitter, x: ir.Value, name: str, shape: Dims | None) -> ir.Value:
    if emit.dtype == ir.DataType.FLOAT:
        return x
    return emit("Cast", x, name=name, shape=shape, dtype=ir.DataType.FLOAT, to=ir.DataType.FLOAT)


def _from_float(
    emit: Emitter, op_type: str, *inputs: ir.Value, name: str, shape: Dims | None, **attrs: Any
) -> ir.Value:
    """An op computed in float32 whose result has the emitter's dtype."""
    if emit.dtype == ir.DataType.FLOAT:
        return emit(op_type, *inputs, name=name, shape=shape, **attrs)
    wide = emit(
        op_type, *inputs, name=f"{name}/float", shape=shape, dtype=ir.DataType.FLOAT, **attrs
    )
    return emit("Cast", wide, name=name, shape=shape, to=emit.dtype)


def _layer_norm(
    emit: Emitter, name: str, inputs: list[ir.Value], attrs: Attributes, shape: Dims | None
) -> list[ir.Value]:
    x, gamma, beta = inputs
    width = None if shape is None else shape[-1:]
    wide = [
        _to_float(emit, x, f"{name}/x", shape),
        _to_float(emit, gamma, f"{name}/gamma", width),
        _to_float(emit, beta, f"{name}/beta", width),
    ]
    return [
        _from_float(emit, "LayerNormalization", *wide, name=name, shape=shape, axis=-1, **attrs)
    ]


def _add_layer_norm(
    emit: Emitter, name: str, inputs: list[ir.Value], attrs: Attributes, shape: Dims | None
) -> list[ir.Value]:
    x, residual, gamma, beta = inputs
    # The sum is rounded to the dtype of X first: the norm sees what the next block sees.
    total = emit("Add", x, residual, name=f"{name}/sum", shape=shape)
    return [*_layer_norm(emit, name, [total, gamma, beta], attrs, shape), total]


def _gelu(
    emit: Emitter, name: str, inputs: list[ir.Value], attrs: Attributes, shape: Dims | None
) -> list[ir.Value]:
    x = _to_float(emit, inputs[0], f"{name}/x", shape)
    return [_from_float(emit, "Gelu", x, name=name, shape=shape, **attrs)]


def _bias_gelu(
    emit: Emitter, name: str, inputs: list[ir.Value], attrs: Attributes, shape: Dims | None
) -> list[ir.Value]:
    x = _to_float(emit, inputs[0], f"{name}/x", shape)
    bias = _to_float(emit, inputs[1], f"{name}/bias", None if shape is None else shape[-1:])
    total = emit("Add", x, bias, name=f"{name}/sum", shape=shape, dtype=ir.DataType.FLOAT)
    return [_from_float(emit, "Gelu", total, name=name, shape=shape, **attrs)]


_FLOAT, _STRING = ir.AttributeType.FLOAT, ir.AttributeType.STRING
CUSTOM_OPS: dict[str, CustomOp] = {
    op.name: op
    for op in (
        CustomOp("AndreaLayerNorm", ("X", "gamma", "beta"), ("Y",), "epsilon", _FLOAT, _layer_norm),
        CustomOp(
            "AndreaAddLayerNorm",
            ("X", "R", "gamma", "beta"),
            ("Y", "S"),
            "epsilon",
            _FLOAT,
            _add_layer_norm,
        ),
        CustomOp("AndreaGelu", ("X",), ("Y",), "approximate", _STRING, _gelu),
        CustomOp("AndreaBiasGelu", ("X", "bias"), ("Y",), "approximate", _STRING, _bias_gelu),
    )
}


def custom_op_functions(used: set[str], dtype: ir.DataType, opset: int) -> list[ir.Function]:
    """The definitions of the ops in `used`, for a model of that dtype and opset.

    A function's opset must equal the model's: the checker refuses 20 inside 24.
    """
    return [_function(op, dtype, opset) for name, op in CUSTOM_OPS.items() if name in used]


def _function(op: CustomOp, dtype: ir.DataType, opset: int) -> ir.Function:
    emit = Emitter(dtype)
    inputs = [ir.Value(name=name) for name in op.inputs]
    reference = ir.RefAttr(op.attribute, op.attribute, op.attribute_type)
    outputs = op.body(emit, op.outputs[0], inputs, {op.attribute: reference}, None)
    for value, name in zip(outputs, op.outputs, strict=True):
        value.name = name
    return ir.Function(
        DOMAIN,
        op.name,
        graph=ir.Graph(inputs, outputs, nodes=emit.nodes, opset_imports={"": opset}, name=op.name),
        # Attributes without a value are parameters; the plugin's two are there because every
        # attribute of a node must be one of its function's.
        attributes=[
            ir.Attr(op.attribute, op.attribute_type, None),
            *(ir.Attr(name, _STRING, None) for name in PLUGIN_ATTRIBUTES),
        ],
    )


class OpWriter:
    """Writes the custom ops into a graph, as nodes of the domain `andrea` or in standard ops."""

    def __init__(self, emit: Emitter, plugin: bool) -> None:
        self._emit, self._plugin = emit, plugin
        self.used: set[str] = set()

    def layer_norm(
        self, x: ir.Value, gamma: ir.Value, beta: ir.Value, *, epsilon: float, name: str
    ) -> ir.Value:
        return self._write("AndreaLayerNorm", [x, gamma, beta], epsilon, [name])[0]

    def add_layer_norm(
        self,
        x: ir.Value,
        residual: ir.Value,
        gamma: ir.Value,
        beta: ir.Value,
        *,
        epsilon: float,
        name: str,
        sum_name: str,
    ) -> tuple[ir.Value, ir.Value]:
        """LayerNorm(x + residual), and x + residual itself."""
        y, total = self._write(
            "AndreaAddLayerNorm", [x, residual, gamma, beta], epsilon, [name, sum_name]
        )
        return y, total

    def gelu(self, x: ir.Value, bias: ir.Value | None, *, approximate: str, name: str) -> ir.Value:
        if bias is None:
            return self._write("AndreaGelu", [x], approximate, [name])[0]
        return self._write("AndreaBiasGelu", [x, bias], approximate, [name])[0]

    def _write(
        self, op_name: str, inputs: list[ir.Value], attribute: float | str, names: list[str]
    ) -> list[ir.Value]:
        op = CUSTOM_OPS[op_name]
        shape: Dims | None = None if inputs[0].shape is None else inputs[0].shape.dims
        if self._plugin:
            self.used.add(op_name)
            attributes: dict[str, Any] = {op.attribute: attribute, **PLUGIN_ATTRIBUTES}
            return self._emit.multi(
                op_name, *inputs, names=names, shape=shape, domain=DOMAIN, **attributes
            )
        attr = ir.convenience.convert_attribute(op.attribute, attribute)
        outputs = op.body(self._emit, names[0], inputs, {op.attribute: attr}, shape)
        for value, name in zip(outputs, names, strict=True):
            value.name = name
        return outputs

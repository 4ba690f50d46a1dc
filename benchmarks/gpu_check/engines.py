"""Where full TensorRT is installed: each plugin in an engine, beside the function form.

The same node twice. With `plugin_namespace` on it and our library loaded it becomes the plugin;
without, and before the library is loaded (10.7 to 10.14 prefer a plugin unasked), the model's own
function, made of standard ops.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.device import Device
from benchmarks.gpu_check.numerics import Findings, compare, draw
from benchmarks.gpu_check.ops import DTYPES, EPSILON, OPS, Op

__all__ = ["check_engines", "make_graph", "missing_for_engines", "parse_graph"]

SHAPE = (8, 768)
INPUT_NAMES = {
    "AndreaLayerNorm": ("X", "gamma", "beta"),
    "AndreaAddLayerNorm": ("X", "R", "gamma", "beta"),
    "AndreaGelu": ("X",),
    "AndreaBiasGelu": ("X", "bias"),
}
OPSET = 20


def missing_for_engines() -> str | None:
    """Why no engine can be built here, or None."""
    for module in ("tensorrt", "onnx"):
        if find_spec(module) is None:
            return f"{module} is not installed"
    return None


def make_graph(op: Op, dtype: torch.dtype, *, as_plugin: bool) -> bytes:
    """A model of one custom node, with its function beside it.

    In half precision the function computes in float32, as the toolkit's own graphs do.
    """
    from onnx import TensorProto, checker, helper

    kind = {
        torch.float32: TensorProto.FLOAT,
        torch.float16: TensorProto.FLOAT16,
        torch.bfloat16: TensorProto.BFLOAT16,
    }[dtype]
    names = INPUT_NAMES[op.plugin]
    outputs = ("Y", "S")[: op.outputs]
    attributes: dict[str, Any] = dict(op.attributes)
    if as_plugin:
        attributes |= {"plugin_namespace": "andrea", "plugin_version": "1"}
    node = helper.make_node(op.plugin, names, outputs, domain="andrea", name="layer", **attributes)
    shapes = [("rows", SHAPE[1])] * op.activations + [(SHAPE[1],)] * op.vectors
    graph = helper.make_graph(
        [node],
        "one_plugin",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, shape in zip(names, shapes, strict=True)
        ],
        [helper.make_tensor_value_info(name, kind, shapes[0]) for name in outputs],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("andrea", 1)]
    function = helper.make_function(
        "andrea",
        op.plugin,
        names,
        outputs,
        _body(op, names, kind),
        [helper.make_opsetid("", OPSET)],
        attributes=[*op.attributes, "plugin_namespace", "plugin_version"],
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _body(op: Op, names: Sequence[str], kind: int) -> list[Any]:
    from onnx import TensorProto, helper

    nodes = []

    def add(op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        nodes.append(
            helper.make_node(op_type, inputs, [output], name=f"{output}_node", **attributes)
        )
        return output

    def wide(name: str) -> str:
        return add("Cast", [name], f"{name}_wide", to=TensorProto.FLOAT)

    if "epsilon" in op.attributes:
        x = names[0]
        if op.outputs == 2:
            add("Add", [wide(names[0]), wide(names[1])], "total")
            x = add("Cast", ["total"], "S", to=kind)
        inputs = [wide(x), wide(names[-2]), wide(names[-1])]
        add("LayerNormalization", inputs, "normal", epsilon=EPSILON, axis=-1)
        add("Cast", ["normal"], "Y", to=kind)
    else:
        x = wide(names[0])
        if op.vectors:
            x = add("Add", [x, wide(names[1])], "total")
        add("Gelu", [x], "curve", approximate=op.attributes["approximate"])
        add("Cast", ["curve"], "Y", to=kind)
    return nodes


def check_engines(library: Path, device: Device) -> Findings:
    """Build, run and compare both forms of every op and type."""
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.ERROR)
    trt.init_libnvinfer_plugins(logger, "")
    found = Findings()
    _check_form(trt, logger, device, found, as_plugin=False)
    trt.get_plugin_registry().load_library(str(library))
    _check_form(trt, logger, device, found, as_plugin=True)
    return found


def _check_form(trt: Any, logger: Any, device: Device, found: Findings, *, as_plugin: bool) -> None:
    for op, (dtype_name, dtype) in itertools.product(OPS, DTYPES.items()):
        values = draw(op, *SHAPE, dtype, device)
        what = f"engine of {op.label} {dtype_name}, {'plugin' if as_plugin else 'function'}"
        engine = _build_engine(trt, logger, make_graph(op, dtype, as_plugin=as_plugin), op)
        layers = engine.create_engine_inspector().get_engine_information(
            trt.LayerInformationFormat.JSON
        )
        has_plugin = re.search(r'"LayerType"\s*:\s*"Plugin', layers) is not None
        found.note(has_plugin == as_plugin, f"{what}: the layer is of the other form")
        outputs = _run_engine(engine, op, values)
        if as_plugin:
            compare(what, op, values, outputs, found)
            continue
        for output, (expected, _) in zip(outputs, op.expected(*values), strict=True):
            is_close = torch.allclose(output.double(), expected, rtol=2e-2, atol=2e-2)
            found.note(is_close, f"{what}: differs from the formula")


def parse_graph(trt: Any, builder: Any, logger: Any, graph: bytes) -> Any:
    """A network of `graph`. Raises RuntimeError with the parser's own words."""
    # 10.x has to be asked to take types from the graph; newer versions know no other way.
    strongly_typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if strongly_typed is None else 1 << int(strongly_typed))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(graph):
        errors = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise RuntimeError(f"TensorRT cannot parse the graph: {errors}")
    return network


def _build_engine(trt: Any, logger: Any, graph: bytes, op: Op) -> Any:
    builder = trt.Builder(logger)
    network = parse_graph(trt, builder, logger, graph)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    profile = builder.create_optimization_profile()
    for name in INPUT_NAMES[op.plugin][: op.activations]:
        profile.set_shape(name, (1, SHAPE[1]), SHAPE, (64, SHAPE[1]))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError(f"TensorRT cannot build an engine of {op.plugin}")
    # From its bytes, so that the plugin is restored from its serialized fields.
    return trt.Runtime(logger).deserialize_cuda_engine(plan)


def _run_engine(engine: Any, op: Op, values: list[Tensor]) -> list[Tensor]:
    context = engine.create_execution_context()
    for name, value in zip(INPUT_NAMES[op.plugin], values, strict=True):
        context.set_input_shape(name, tuple(value.shape))
        context.set_tensor_address(name, value.data_ptr())
    outputs = [torch.full_like(values[0], float("nan")) for _ in range(op.outputs)]
    for name, output in zip(("Y", "S"), outputs, strict=False):
        context.set_tensor_address(name, output.data_ptr())
    stream = torch.cuda.current_stream()
    if not context.execute_async_v3(stream.cuda_stream):
        raise RuntimeError(f"the engine of {op.plugin} does not run")
    stream.synchronize()
    return outputs

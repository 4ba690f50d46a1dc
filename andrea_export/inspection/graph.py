"""Looking into an ONNX file; its weights stay on the disk."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from andrea_export.engine.onnx_nodes import STANDARD_DOMAINS, check_names, read_graph
from andrea_export.engine.source import GraphSource
from andrea_export.errors import InputError
from andrea_export.inspection.inspection import Inspection, Layer, Tensor, part_of

__all__ = ["inspect_graph"]

OUR_DOMAIN, PLUGIN_NAMESPACE = "andrea", b"andrea"
# Of an op without a definition in the file. A runtime may have foreign ones built in.
CANNOT_RUN, NOT_KNOWN = "none: it cannot run", "not known"
RUNTIMES = ("ONNX Runtime", "TensorRT", "TensorRT-RTX")


def inspect_graph(source: GraphSource) -> Inspection:
    """Everything that the file itself says.

    Raises:
        EngineError: it cannot be read as ONNX, or has names that are no text.
    """
    model = read_graph(source.onnx)
    check_names(model, source.onnx)
    graph = model.graph
    types = _types(graph)
    custom = Counter(n.op_type for n in graph.node if n.domain not in STANDARD_DOMAINS)
    ours = {n.op_type for n in graph.node if n.domain == OUR_DOMAIN}
    functions = {function.name for function in model.functions}
    weights = {t.name: _weight(t) for t in graph.initializer}
    stored = sum(path.stat().st_size for path in source.files() if path.is_file())
    opsets = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    facts = {
        "opset": ", ".join(f"{domain} {version}" for domain, version in opsets.items()),
        "made by": f"{model.producer_name} {model.producer_version}".strip() or "unknown",
        "nodes": str(len(graph.node)),
        "parameters": f"{sum(count for count, _, _ in weights.values()):,}",
        "size": f"{stored / 1e6:.1f} MB",
    }
    if source.record is not None:
        facts = {"precision": str(source.dtype), **facts}
        facts["checkpoint"] = str(source.record["checkpoint"]["path"] or "random weights")
    library = _library()
    plugin_nodes = {
        n.op_type
        for n in graph.node
        if any(a.name == "plugin_namespace" and a.s == PLUGIN_NAMESPACE for a in n.attribute)
    }
    return Inspection(
        kind="graph",
        path=str(source.onnx.parent if source.record is not None else source.onnx),
        facts=facts,
        inputs=tuple(_tensor(value) for value in graph.input),
        outputs=tuple(_tensor(value) for value in graph.output),
        profiles=(),
        layers=tuple(_layer(node, types) for node in graph.node),
        weights=weights,
        custom_ops={
            op: {
                "nodes": count,
                "forms": _forms(
                    op in functions,
                    op in plugin_nodes and library is not None,
                    otherwise=CANNOT_RUN if op in ours else NOT_KNOWN,
                ),
            }
            for op, count in sorted(custom.items())
        },
        notes=()
        if library is not None or not ours & functions
        else ("no plugin library is built here: TensorRT would use the definitions in the graph",),
    )


def _forms(has_function: bool, has_plugin: bool, *, otherwise: str) -> dict[str, str]:
    """What each runtime would make of a node of that op."""
    forms = dict.fromkeys(RUNTIMES, "function" if has_function else otherwise)
    if has_plugin:
        forms["TensorRT"] = "plugin"
    return forms


def _library() -> Path | None:
    from andrea_export.plugins import newest_library

    try:
        return newest_library()
    except InputError:
        return None


def _types(graph: Any) -> dict[str, str]:
    """Value name → dtype, as far as the file says."""
    values = (*graph.input, *graph.output, *graph.value_info)
    return {value.name: _type_name(value.type.tensor_type.elem_type) for value in values}


def _layer(node: Any, types: dict[str, str]) -> Layer:
    is_custom = node.domain not in STANDARD_DOMAINS
    name = node.name or node.output[0]
    return Layer(
        name=name,
        op=node.op_type,
        part=part_of(name),
        dtypes=tuple(types.get(output, "unknown") for output in node.output if output),
        form="custom op" if is_custom else "",
        custom_op=node.op_type if is_custom else "",
    )


def _tensor(value: Any) -> Tensor:
    dims = value.type.tensor_type.shape.dim
    return Tensor(
        value.name,
        _type_name(value.type.tensor_type.elem_type),
        tuple(d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in dims),
    )


def _weight(tensor: Any) -> tuple[int, int, str]:
    count = math.prod(tensor.dims)
    name = _type_name(tensor.data_type)
    return count, count * BYTES.get(name, 0), name


def _type_name(number: int) -> str:
    from onnx import TensorProto

    try:
        return str(TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return f"type {number}"


BYTES = {
    "float": 4,
    "float16": 2,
    "bfloat16": 2,
    "double": 8,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

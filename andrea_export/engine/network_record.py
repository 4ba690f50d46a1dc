"""A record of a parsed network: its layers, their types, and the ONNX nodes that they came from.

It is what `inspect` shows of an engine where no GPU can open it, and what the checks before a build
read. Only plain values are kept, so everything here works without TensorRT.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DTYPE_BYTES", "LayerRecord", "TensorRecord", "forms_of_ops", "node_of", "tensor_types"]

# Bits would be more exact for the 4-bit types, which no network here has.
DTYPE_BYTES: dict[str, int] = {
    "FLOAT": 4,
    "HALF": 2,
    "BF16": 2,
    "INT64": 8,
    "INT32": 4,
    "INT8": 1,
    "UINT8": 1,
    "BOOL": 1,
    "FP8": 1,
}
PLUGIN_TYPES = ("PLUGIN", "PLUGIN_V2", "PLUGIN_V3")
# "[ONNX Layer: Y/x | blocks.0.norm1 (AndreaLayerNorm)]": a node inside a function, who calls it.
METADATA = re.compile(r"\[ONNX Layer: ([^|\]]*?)(?: \| ([^|\]]*?) \((\w+)\))?\]")


@dataclass(frozen=True)
class TensorRecord:
    """A tensor: TensorRT's name of its type, and its shape with -1 for a dynamic axis.

    `shape` is None where TensorRT cannot say the rank.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class LayerRecord:
    """A layer of the network.

    Attributes:
        name, type: as TensorRT says them.
        node: the ONNX node, "" for a layer that the parser added.
        function: op type of the model-local function that the node is inside of, or "".
        caller: the node that calls it, or "".
        inputs: names of its inputs. outputs: its outputs.
    """

    name: str
    type: str
    node: str
    function: str
    caller: str
    inputs: tuple[str, ...]
    outputs: tuple[TensorRecord, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "outputs": [vars(output) for output in self.outputs]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LayerRecord:
        outputs = tuple(
            TensorRecord(o["name"], o["dtype"], None if o["shape"] is None else tuple(o["shape"]))
            for o in values["outputs"]
        )
        return cls(**{**values, "inputs": tuple(values["inputs"]), "outputs": outputs})


def node_of(metadata: str) -> tuple[str, str, str]:
    """(node, function, caller) from what the ONNX parser writes at a layer."""
    match = METADATA.search(metadata)
    if match is None:
        return "", "", ""
    return match[1], match[3] or "", match[2] or ""


def tensor_types(layers: Iterable[LayerRecord]) -> dict[str, int]:
    """How many tensors of the network have each type, the commonest first."""
    return dict(Counter(o.dtype for layer in layers for o in layer.outputs).most_common())


def forms_of_ops(
    layers: Iterable[LayerRecord],
    ops: Mapping[str, str],
    expected: Mapping[str, int] | None,
) -> dict[str, dict[str, int]]:
    """For each custom op, how many of its nodes became a plugin and how many their definition.

    A node that is seen in neither form counts as "unknown": parsers differ in what they say of a
    layer's origin.

    Args:
        layers: of the network.
        ops: node name → op type, for nodes that became plugins.
        expected: op type → nodes in the graph; None: not known.
    """
    callers: dict[str, set[str]] = {}
    forms: dict[str, Counter[str]] = {}
    for layer in layers:
        if layer.type in PLUGIN_TYPES:
            op = ops.get(layer.node) or ops.get(layer.name) or "(unknown plugin)"
            forms.setdefault(op, Counter())["plugin"] += 1
        elif layer.function:
            callers.setdefault(layer.function, set()).add(layer.caller)
    for op, nodes in callers.items():
        forms.setdefault(op, Counter())["function"] += len(nodes)
    for op, count in (expected or {}).items():
        counter = forms.setdefault(op, Counter())
        if missing := count - sum(counter.values()):
            counter["unknown"] = missing
    return {op: dict(sorted(counter.items())) for op, counter in sorted(forms.items())}

"""Graph or engine, seen alike: inputs, outputs, layers, and what each part of the model holds."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "MASK",
    "OTHER",
    "PARSER",
    "Inspection",
    "Layer",
    "Part",
    "Tensor",
    "part_of",
    "size_text",
]

# Name of a node, layer or weight → the part of the model that it belongs to; the first that fits.
PARTS: tuple[tuple[str, str], ...] = (
    (r"(blocks\.\d+)\.norm1\b", r"\1.norm1"),
    (r"(blocks\.\d+)\.norm2\b", r"\1.norm2"),
    (r"(blocks\.\d+)\.attn_sum\b", r"\1.norm2"),  # the addition before it, where it is not fused
    (r"(blocks\.\d+)\.mlp_sum\b", r"\1.mlp"),
    (r"(blocks\.\d+)\.(attn|mlp)\b", r"\1.\2"),
    (r"(?:past_key_values|present)\.(\d+)\.", r"blocks.\1.attn"),
    (r"(?:wte|wpe|embedding)\b", "embedding"),
    (r"norm_f\b", "norm_f"),
    (r"(?:head|logits)\b", "head"),
    (r"(?:last_token|last_hidden)\b", "head"),
    (r"ONNXTRT_|\(Unnamed Layer", "added by the parser"),
    (
        r"(?:sequence|positions|mask|constants|capacity|slots|steps|past_length)\b",
        "positions and mask",
    ),
)
PARSER, MASK, OTHER = "added by the parser", "positions and mask", "other"


@dataclass(frozen=True)
class Tensor:
    """An input or output: type as its file says it, a size or a name per axis."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Layer:
    """A node of a graph, or a layer of an engine's network.

    Attributes:
        name: as in the file. op: ONNX op type, or TensorRT's layer type.
        part: of the model. dtypes: of its outputs.
        form: of a custom op: "plugin", "function" or "custom op"; "" for all others.
        custom_op: the custom op that it is, or is a piece of; "" for all others.
    """

    name: str
    op: str
    part: str
    dtypes: tuple[str, ...]
    form: str = ""
    custom_op: str = ""


@dataclass
class Part:
    """A part of the model: how many layers, of which types, and the weights that it holds.

    A tied embedding counts where it is stored: in the embedding.
    """

    name: str
    layers: int = 0
    dtypes: Counter[str] = field(default_factory=Counter)
    parameters: int = 0
    weight_bytes: int = 0


@dataclass(frozen=True)
class Inspection:
    """What was seen.

    Attributes:
        kind: "graph" or "engine". path: of the folder or file.
        facts: what there is to say in a word each, in the order to show it.
        inputs, outputs: of the model.
        profiles: of an engine: per profile, input → min, opt, max shape.
        layers: all of them. weights: name → (parameters, bytes, dtype).
        custom_ops: op type → how many nodes, and the form by runtime or as built.
        notes: what cannot be known here, and why.
    """

    kind: str
    path: str
    facts: dict[str, str]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    profiles: tuple[dict[str, Any], ...]
    layers: tuple[Layer, ...]
    weights: dict[str, tuple[int, int, str]]
    custom_ops: dict[str, dict[str, Any]]
    notes: tuple[str, ...] = ()

    def parts(self) -> list[Part]:
        """The parts in the order of the model."""
        parts: dict[str, Part] = {}
        for layer in self.layers:
            part = parts.setdefault(layer.part, Part(layer.part))
            part.layers += 1
            part.dtypes.update(layer.dtypes)
        for name, (parameters, size, _) in self.weights.items():
            part = parts.setdefault(part_of(name), Part(part_of(name)))
            part.parameters += parameters
            part.weight_bytes += size
        return sorted(parts.values(), key=lambda part: _place(part.name))

    def ops(self) -> dict[str, Counter[str]]:
        """Op or layer type → how many outputs of each dtype."""
        ops: dict[str, Counter[str]] = {}
        for layer in self.layers:
            ops.setdefault(layer.op, Counter()).update(layer.dtypes)
        return dict(sorted(ops.items(), key=lambda item: -item[1].total()))

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": self.path,
            "facts": self.facts,
            "inputs": [vars(tensor) for tensor in self.inputs],
            "outputs": [vars(tensor) for tensor in self.outputs],
            "profiles": list(self.profiles),
            "custom_ops": self.custom_ops,
            "parts": [{**vars(part), "dtypes": dict(part.dtypes)} for part in self.parts()],
            "ops": {op: dict(counts) for op, counts in self.ops().items()},
            "layers": [vars(layer) for layer in self.layers],
            "notes": list(self.notes),
        }


def size_text(size: int) -> str:
    """Bytes as people read them: 512 B, 1.5 kB, 0.66 MB."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e3:.1f} kB" if size < 100_000 else f"{size / 1e6:.2f} MB"


def part_of(name: str) -> str:
    """The part of the model that a node, layer or weight of that name belongs to."""
    for pattern, part in PARTS:
        if match := re.match(pattern, name):
            return match.expand(part)
    return OTHER


def _place(part: str) -> tuple[int, int, int]:
    ends = ("embedding", MASK, "norm_f", "head", PARSER, OTHER)
    match = re.fullmatch(r"blocks\.(\d+)\.(\w+)", part)
    if match:
        return 2, int(match[1]), ("norm1", "attn", "norm2", "mlp").index(match[2])
    index = ends.index(part)
    return (index if index < 2 else index + 1), 0, 0

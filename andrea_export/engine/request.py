"""What the building process is told, and what it says back: plain values, sent as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

__all__ = ["BuildRequest"]


@dataclass(frozen=True)
class BuildRequest:
    """One engine to build. Paths are absolute.

    Attributes:
        flavor: name of the flavor.
        onnx: the graph. engine, network: where the engine and the record of its network go.
        dtype: "fp32", "fp16" or "bf16" that the matrix products must have; None takes any.
        custom_ops: op type → how many nodes of it the graph is known to hold; None: not known.
        plugin_library: to load before parsing; None leaves custom ops to their definitions.
        profiles: texts of `--profile`. batch, sequence: texts of the ranges.
        context_length: of the model; None: not known.
        capacity: to freeze the axis of that name at; None: there is none.
        capabilities: text of `--compute-capability`; None: the GPU of this machine.
        workspace_bytes, optimization_level, timing_cache, version_compatible,
        hardware_compatible, strip_weights, layer_tensors: see `EngineOptions`.
        layer_names: of the tensors that `layer_tensors` is about.
        read_back: open the built engine again and count its tensor types; needs its GPU.
    """

    flavor: str
    onnx: str
    engine: str
    network: str
    dtype: str | None = None
    custom_ops: dict[str, int] | None = None
    plugin_library: str | None = None
    profiles: tuple[str, ...] = ()
    batch: str | None = None
    sequence: str | None = None
    context_length: int | None = None
    capacity: int | None = None
    capabilities: str | None = None
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: str | None = None
    version_compatible: bool = False
    hardware_compatible: bool = False
    strip_weights: bool = False
    layer_tensors: str = "off"
    layer_names: tuple[str, ...] = ()
    read_back: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BuildRequest:
        values = json.loads(text)
        for name in ("profiles", "layer_names"):
            values[name] = tuple(values[name])
        return cls(**{f.name: values[f.name] for f in fields(cls)})

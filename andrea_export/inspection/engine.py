"""Looking into an engine folder without a GPU: its sidecar, and the record of its network."""

from __future__ import annotations

import math
from typing import Any

from andrea_export.engine.network_record import DTYPE_BYTES, PLUGIN_TYPES, LayerRecord
from andrea_export.engine.sidecar import EngineFolder
from andrea_export.inspection.inspection import MASK, PARSER, Inspection, Layer, Tensor, part_of

__all__ = ["inspect_engine"]

CLOSED = (
    "layers are those of the network before TensorRT fused them: "
    "the engine itself opens only on the GPU that it was built for"
)
STRIPPED = (
    "the weights are those that it was built with: they were stripped, and "
    "`andrea-export refit` puts them back"
)


def inspect_engine(engine: EngineFolder) -> Inspection:
    """Everything that was recorded when it was built.

    Raises:
        EngineError: the record of the network is missing or damaged.
    """
    sidecar = engine.sidecar
    layers = engine.read_network()
    weights = {
        layer.name: _weight(layer)
        for layer in layers
        # Constants of the mask, and the parser's own, hold shapes and limits, no weights.
        if layer.type == "CONSTANT" and part_of(layer.name) not in (MASK, PARSER)
    }
    facts = {
        "precision": engine.precision,
        "flavor": f"{engine.flavor} {sidecar['version']}",
        "compute capability": ", ".join(sidecar["compute_capabilities"]),
        "size": f"{sidecar['bytes'] / 1e6:.1f} MB",
        "layers": str(len(layers)),
    }
    if sidecar["capacity"] is not None:
        facts["cache"] = f"{sidecar['capacity']} tokens a row"
        facts["cache memory"] = f"{_cache_bytes(sidecar['inputs']) / 1e6:.1f} MB a row"
    if sidecar["plugin_library"] is not None:
        facts["plugin library"] = str(sidecar["plugin_library"]["file"])
    if engine.layer_tensors is not None:
        facts["layer tensors"] = str(engine.layer_tensors)
    built = sidecar.get("engine")
    if built:
        kinds = ", ".join(f"{count} {kind}" for kind, count in built["layer_types"].items())
        facts["built layers"] = f"{built['layers']}: {kinds}"
        if built.get("device_memory_bytes"):
            facts["scratch memory"] = f"{built['device_memory_bytes'] / 1e6:.1f} MB"
    return Inspection(
        kind="engine",
        path=str(engine.path),
        facts=facts,
        inputs=_tensors(sidecar["inputs"]),
        outputs=_tensors(sidecar["outputs"]),
        profiles=tuple(sidecar["profiles"]),
        layers=tuple(_layer(layer) for layer in layers),
        weights=weights,
        custom_ops={
            op: {"nodes": sum(forms.values()), "forms": forms}
            for op, forms in sidecar["custom_ops"].items()
        },
        notes=(*(STRIPPED,) * engine.is_stripped, *(CLOSED,) * (not built)),
    )


def _layer(layer: LayerRecord) -> Layer:
    form = "plugin" if layer.type in PLUGIN_TYPES else "function" if layer.function else ""
    return Layer(
        name=layer.name,
        op=layer.type,
        part=part_of(layer.caller or layer.node or layer.name),
        dtypes=tuple(output.dtype for output in layer.outputs),
        form=form,
        custom_op=layer.function,
    )


def _weight(layer: LayerRecord) -> tuple[int, int, str]:
    output = layer.outputs[0]
    count = math.prod(output.shape or ())
    return count, count * DTYPE_BYTES.get(output.dtype, 0), output.dtype


def _tensors(records: list[dict[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(r["name"], r["dtype"], tuple(r["shape"] or ())) for r in records)


def _cache_bytes(inputs: list[dict[str, Any]]) -> int:
    caches = (i for i in inputs if i["name"].startswith("past_key_values."))
    return sum(math.prod(i["shape"][1:]) * DTYPE_BYTES.get(i["dtype"], 0) for i in caches)

"""What was really built: the types and layers of a finished engine, as TensorRT itself tells them.

Only a machine that could run the engine can open it; elsewhere the network's record has to do.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from andrea_export.errors import EngineError

__all__ = ["check_engine", "inspect_engine", "summarize"]

# Words of the engine inspector for a tensor's type, as they begin its "Format/Datatype".
TYPE_WORDS = {
    "FP16": "HALF",
    "Half": "HALF",
    "FP32": "FLOAT",
    "Float": "FLOAT",
    "BF16": "BF16",
    "BFloat16": "BF16",
    "Int64": "INT64",
    "INT64": "INT64",
    "Int32": "INT32",
    "INT32": "INT32",
    "Bool": "BOOL",
    "BOOL": "BOOL",
}
NEEDED = {"fp16": "HALF", "bf16": "BF16"}
# A plan that is fused into a few nodes shows only what goes in and comes out of them.
TELLING_LAYERS = 8


def inspect_engine(path: Path, logger: Any) -> dict[str, Any]:
    """Open an engine and summarize what is in it.

    Raises:
        EngineError: TensorRT cannot open what it has just built.
    """
    from andrea_export.engine.binding import trt

    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise EngineError(f"{path.name} was built, but this machine cannot open it again")
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    memory = getattr(engine, "device_memory_size_v2", None)
    return {**summarize(text), "device_memory_bytes": memory}


def summarize(text: str) -> dict[str, Any]:
    """Count tensor types and layer types in the JSON of TensorRT's engine inspector.

    Raises:
        EngineError: it is no such JSON.
    """
    try:
        layers = json.loads(text)["Layers"]
        types = Counter(
            _type(output["Format/Datatype"])
            for layer in layers
            if isinstance(layer, dict)
            for output in layer.get("Outputs", [])
        )
        kinds = Counter(
            layer.get("LayerType", "unknown") if isinstance(layer, dict) else "unknown"
            for layer in layers
        )
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"TensorRT's description of the engine is not readable: {error!r}") from (
            error
        )
    return {
        "layers": len(layers),
        "tensor_types": dict(types.most_common()),
        "layer_types": dict(kinds.most_common()),
    }


def check_engine(summary: dict[str, Any], asked: str) -> None:
    """Refuse an engine without a single tensor of the half precision that was asked for.

    An engine of which TensorRT shows too few layers is no evidence, and passes.

    Raises:
        EngineError: with the types that it has.
    """
    needed, types = NEEDED.get(asked), summary["tensor_types"]
    if needed is None or summary["layers"] < TELLING_LAYERS:
        return
    if not types.get(needed):
        raise EngineError(
            f"{asked} was asked for, but the built engine has no {needed} tensor: "
            f"{', '.join(f'{count} {name}' for name, count in types.items())}"
        )


def _type(words: str) -> str:
    return next((name for word, name in TYPE_WORDS.items() if word in words), words)

"""What a graph is, read from the graph itself: a record beside it can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from andrea_export.errors import GraphError
from andrea_export.graph.options import GraphOptions

__all__ = ["check_options"]


def check_options(model_path: Path, recorded: GraphOptions) -> None:
    """Hold the options in `export.json` against the graph.

    Raises:
        GraphError: no ONNX model, or one of another dtype, opset or kind.
    """
    for name, seen in _read_options(model_path).items():
        if seen != getattr(recorded, name):
            raise GraphError(
                f"{model_path.parent}: export.json says {name} {getattr(recorded, name)}, "
                f"the graph has {seen}: export it again"
            )


def _read_options(path: Path) -> dict[str, Any]:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError) as error:
        raise GraphError(f"{path} is no ONNX model: {error}") from error
    inputs = {value.name for value in model.graph.input}
    dtypes = {
        onnx.TensorProto.FLOAT: "fp32",
        onnx.TensorProto.FLOAT16: "fp16",
        onnx.TensorProto.BFLOAT16: "bf16",
    }
    embedding = next((t for t in model.graph.initializer if t.name == "wte.weight"), None)
    if embedding is None:
        raise GraphError(f"{path} has no wte.weight: it is not a graph of andrea-export")
    return {
        "dtype": dtypes.get(embedding.data_type, "another type"),
        "opset": next((o.version for o in model.opset_import if not o.domain), 0),
        "kv_cache": "past_length" in inputs,
        "logits": "last" if "new_length" in inputs else "all",
    }

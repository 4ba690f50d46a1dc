"""What an ONNX file says of itself, without its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea_export.errors import EngineError

__all__ = ["check_names", "custom_nodes", "external_files", "read_graph"]

STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


def read_graph(path: Path):  # type: ignore[no-untyped-def]
    """The model, its external weights left where they are.

    Raises:
        EngineError: not an ONNX model.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # google.protobuf's own, which is no declared dependency
        raise EngineError(f"{path} cannot be read as ONNX: {error}") from error
    if not model.HasField("graph"):
        raise EngineError(f"{path} cannot be read as ONNX: it is empty or damaged, with no graph")
    return model


def check_names(model: Any, path: Path) -> None:
    """Refuse a model with a name that is no text, for which protobuf gives its bytes.

    Raises:
        EngineError: shows the first of them.
    """
    wrong = next((text for text in _texts(model) if not isinstance(text, str)), None)
    if wrong is not None:
        raise EngineError(f"{path}: the file is damaged: a name in it is no text ({wrong!r})")


def _texts(message: Any) -> Iterator[str | bytes]:
    for field, value in message.ListFields():
        values = (
            [value] if isinstance(value, (str, bytes)) or hasattr(value, "ListFields") else value
        )
        if field.type == field.TYPE_STRING:
            yield from values
        elif field.type == field.TYPE_MESSAGE:
            for inner in values:
                yield from _texts(inner)


def custom_nodes(path: Path) -> dict[str, str]:
    """Node name → op type, for the nodes of other domains than ONNX's own."""
    return {
        node.name: node.op_type
        for node in read_graph(path).graph.node
        if node.domain not in STANDARD_DOMAINS
    }


def external_files(path: Path) -> list[Path]:
    """The files beside `path` that hold its weights, sorted by name.

    Raises:
        EngineError: not an ONNX model, or a file name that cannot be one.
    """
    names = {
        entry.value
        for tensor in read_graph(path).graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    # protobuf gives bytes where a text is not UTF-8.
    if wrong := [name for name in names if not isinstance(name, str) or "\0" in name]:
        raise EngineError(f"{path}: the file is damaged: no weights can lie in {wrong[0]!r}")
    return [path.parent / name for name in sorted(names)]

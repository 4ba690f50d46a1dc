"""Telling graphs and engines apart, and looking into whichever it is."""

from __future__ import annotations

from pathlib import Path

from andrea_export.errors import InputError
from andrea_export.inspection.inspection import Inspection

__all__ = ["inspect_path"]


def inspect_path(path: Path) -> Inspection:
    """Look into an exported folder, an ONNX file or an engine folder. Needs no GPU.

    Raises:
        InputError: it is none of them.
        GraphError, EngineError: it is one, and damaged.
    """
    from andrea_export.engine.sidecar import open_engine
    from andrea_export.engine.source import is_engine_folder, is_graph_source, open_source

    if is_engine_folder(path):
        from andrea_export.inspection.engine import inspect_engine

        return inspect_engine(open_engine(path))
    if is_graph_source(path):
        from andrea_export.inspection.graph import inspect_graph

        return inspect_graph(open_source(path))
    if not path.exists():
        raise InputError(f"{path} does not exist")
    raise InputError(
        f"{path} is neither an exported folder, an ONNX file nor an engine folder "
        "(`andrea-export info` shows checkpoints)"
    )

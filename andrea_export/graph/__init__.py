"""Checkpoint → ONNX."""

from typing import TYPE_CHECKING

from andrea_export.graph.folder import GraphFolder, is_graph_folder, open_graph
from andrea_export.graph.options import GraphOptions

if TYPE_CHECKING:
    from andrea_export.graph.export import export_graph

__all__ = ["GraphFolder", "GraphOptions", "export_graph", "is_graph_folder", "open_graph"]


def __getattr__(name: str) -> object:
    # Writing a graph needs onnx-ir, which takes its time to import; running one does not.
    if name == "export_graph":
        from andrea_export.graph.export import export_graph

        return export_graph
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

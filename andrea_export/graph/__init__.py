"""Checkpoint → ONNX."""

from andrea_export.graph.export import export_graph
from andrea_export.graph.folder import GraphFolder, is_graph_folder, open_graph
from andrea_export.graph.options import GraphOptions

__all__ = ["GraphFolder", "GraphOptions", "export_graph", "is_graph_folder", "open_graph"]

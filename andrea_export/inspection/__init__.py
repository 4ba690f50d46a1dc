"""What is inside a graph or an engine."""

from andrea_export.inspection.inspect import inspect_path
from andrea_export.inspection.inspection import Inspection, Layer, Part
from andrea_export.inspection.picture import picture

__all__ = ["Inspection", "Layer", "Part", "inspect_path", "picture"]

"""ONNX → TensorRT.

Names are looked up when they are asked for: the building process imports only its own modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from andrea_export.engine.build import build_engine
    from andrea_export.engine.options import EngineOptions
    from andrea_export.engine.sidecar import EngineFolder, open_engine, open_trusted_engine
    from andrea_export.engine.source import is_engine_folder

__all__ = [
    "EngineFolder",
    "EngineOptions",
    "build_engine",
    "is_engine_folder",
    "open_engine",
    "open_trusted_engine",
]

_HOMES = {
    "EngineFolder": "sidecar",
    "EngineOptions": "options",
    "build_engine": "build",
    "is_engine_folder": "source",
    "open_engine": "sidecar",
    "open_trusted_engine": "sidecar",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

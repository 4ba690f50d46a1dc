"""The TensorRT plugin library: compile it, and see what is in it."""

from andrea_export.plugins.architectures import ALL_ARCHITECTURES, parse_architectures
from andrea_export.plugins.build import BuildOptions, BuiltLibrary, build_plugins
from andrea_export.plugins.contents import (
    LibraryContents,
    PluginContents,
    newest_library,
    read_library,
)

__all__ = [
    "ALL_ARCHITECTURES",
    "BuildOptions",
    "BuiltLibrary",
    "LibraryContents",
    "PluginContents",
    "build_plugins",
    "newest_library",
    "parse_architectures",
    "read_library",
]

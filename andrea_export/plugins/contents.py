"""What a compiled library contains, as it says itself: no TensorRT and no GPU needed."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from pathlib import Path

from andrea_export.errors import BackendError, InputError
from andrea_export.plugins.build import LIBRARY_NAME, cache_folder

__all__ = ["LibraryContents", "PluginContents", "newest_library", "read_library"]


@dataclass(frozen=True)
class PluginContents:
    """One plugin, as TensorRT's registry will know it."""

    name: str
    version: str
    namespace: str
    inputs: str
    outputs: int
    fields: dict[str, str]


@dataclass(frozen=True)
class LibraryContents:
    library: Path
    architectures: tuple[str, ...]
    types: tuple[str, ...]
    max_width: int
    tensorrt_headers: str
    plugins: tuple[PluginContents, ...]


def read_library(library: Path) -> LibraryContents:
    """Load a plugin library and ask it.

    Raises:
        InputError: no such file, or not one of ours.
        BackendError: the system cannot load it.
    """
    if not library.is_file():
        raise InputError(f"{library} is not a file: name a {LIBRARY_NAME}")
    try:
        loaded = ctypes.CDLL(str(library.resolve()))
    except OSError as error:
        raise BackendError(f"{library} cannot be loaded: {error}") from error
    try:
        describe = loaded.andrea_library_info
    except AttributeError:
        raise InputError(
            f"{library} is a library, but not one of andrea-export's: it has no andrea_library_info"
        ) from None
    describe.restype = ctypes.c_char_p
    info = json.loads(describe())
    return LibraryContents(
        library=library,
        architectures=tuple(info["architectures"].split(",")),
        types=tuple(info["types"]),
        max_width=info["max_width"],
        tensorrt_headers=info["tensorrt_headers"],
        plugins=tuple(PluginContents(**plugin) for plugin in info["plugins"]),
    )


def newest_library(cache: Path | None = None) -> Path:
    """The library built last.

    Raises:
        InputError: none was built yet.
    """
    folder = cache or cache_folder()
    found = sorted(folder.glob(f"*/{LIBRARY_NAME}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputError(
            f"no plugin library in {folder}: make one with andrea-export plugins build, or name one"
        )
    return found[-1]

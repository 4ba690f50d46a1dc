"""From a stripped engine and the graph that it was built from to a whole engine."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from andrea_export.engine.admission import find_plugin_library, refusal
from andrea_export.engine.child import Child
from andrea_export.engine.flavors import FLAVORS, installed_version, is_installed
from andrea_export.engine.gpus import machine
from andrea_export.engine.sidecar import (
    CONFIG_FILE,
    ENGINE_FILE,
    NETWORK_FILE,
    SIDECAR_FILE,
    TOKENIZER_FILE,
    EngineFolder,
    open_engine,
)
from andrea_export.engine.source import GraphSource, open_source
from andrea_export.errors import BackendError, EngineError
from andrea_export.whole_folder import whole_folder
from andrea_model.file_hash import file_sha256

__all__ = ["check_refit", "refit_engine"]

WORKER = (sys.executable, "-m", "andrea_export.engine.refit_worker")


def refit_engine(engine: Path, graph: Path, output: Path, *, force: bool = False) -> EngineFolder:
    """Put the weights of `graph` back into the stripped engine in `engine`.

    Args:
        engine: an engine folder, built with weights stripped.
        graph: the exported folder or ONNX file that it was built from.
        output: the folder to make.
        force: replace an older output of this toolkit.

    Raises:
        EngineError: an engine that was not stripped, another graph than the engine's, or weights
            that do not fit.
        BackendError: this machine cannot open the engine.
        OutputError: the folder exists or cannot be written.
    """
    stripped, source = open_engine(engine), open_source(graph)
    check_refit(stripped, source)
    whole = _as_whole(stripped)
    flavor = FLAVORS[stripped.flavor]
    version = installed_version(flavor) if is_installed(flavor) else None
    if reason := refusal(whole, flavor, version, machine()):
        raise BackendError(f"{engine} cannot be opened here: {reason}")
    library = find_plugin_library(stripped)
    stripped.check_file()
    with whole_folder(output, force=force, record=SIDECAR_FILE) as folder:
        request = {
            "flavor": flavor.name,
            "engine": str(stripped.engine_path.absolute()),
            "onnx": str(source.onnx),
            "output": str((folder / ENGINE_FILE).absolute()),
            "library": None if library is None else str(library),
        }
        with Child(WORKER) as child:
            result = child.run(json.dumps(request), str(engine))
        for name in (CONFIG_FILE, TOKENIZER_FILE, NETWORK_FILE):
            if (engine / name).is_file():
                shutil.copyfile(engine / name, folder / name)
        sidecar = {**whole.sidecar, "bytes": (folder / ENGINE_FILE).stat().st_size}
        sidecar["sha256"] = {**sidecar["sha256"], ENGINE_FILE: result["sha256"]}
        (folder / SIDECAR_FILE).write_text(json.dumps(sidecar, indent=2) + "\n", "utf-8")
    return open_engine(output)


def check_refit(engine: EngineFolder, graph: GraphSource) -> None:
    """Refuse what cannot be refitted, before anything is opened.

    The weights must be those that the engine was built with: its kernels were chosen knowing them.

    Raises:
        EngineError: the engine has its weights, or the graph is not the engine's.
    """
    if not engine.is_stripped:
        raise EngineError(f"{engine.path} has its weights: only --strip-weights leaves them out")
    for name, wanted in engine.sidecar["graph"]["sha256"].items():
        path = graph.onnx.with_name(name)
        if not path.is_file() or file_sha256(path) != wanted:
            raise EngineError(
                f"{graph.onnx.parent} is not the graph that {engine.path} was built from: "
                f"{name} is {'another file' if path.is_file() else 'missing'}"
            )


def _as_whole(engine: EngineFolder) -> EngineFolder:
    options: dict[str, Any] = {**engine.sidecar["options"], "strip_weights": False}
    return replace(engine, sidecar={**engine.sidecar, "options": options})

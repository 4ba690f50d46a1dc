"""From a graph or a checkpoint to an engine folder: the one public function of this stage."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_export import __version__
from andrea_export.engine.child import Child
from andrea_export.engine.compute_capability import split_capabilities
from andrea_export.engine.flavors import Flavor, choose_flavor
from andrea_export.engine.gpus import machine
from andrea_export.engine.options import EngineOptions
from andrea_export.engine.planning import check_cache_options, check_machine, plan_request
from andrea_export.engine.request import BuildRequest
from andrea_export.engine.sidecar import (
    ENGINE_FILE,
    NETWORK_FILE,
    SCHEMA,
    SIDECAR_FILE,
    EngineFolder,
    open_engine,
)
from andrea_export.engine.source import (
    GraphSource,
    check_recorded,
    graph_from_checkpoint,
    open_source,
    with_dtype,
)
from andrea_export.errors import AndreaExportError, EngineError, GraphError, InputError
from andrea_export.progress import Progress
from andrea_export.whole_folder import check_output, whole_folder
from andrea_model.file_hash import file_sha256

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint

__all__ = ["build_engine"]

SCRATCH = "graph"  # inside the unfinished folder, so that it goes when that goes
DEFAULT_OPTIONS = EngineOptions()


def build_engine(
    source: Path | Checkpoint,
    output: Path,
    options: EngineOptions = DEFAULT_OPTIONS,
    *,
    force: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> EngineFolder:
    """Build an engine into the folder `output`, whole or not at all.

    Args:
        source: an exported folder, an ONNX file, or an opened checkpoint.
        output: the folder to make.
        options: precision, flavor, profiles and the builder's settings.
        force: replace an older output of this toolkit.
        progress: called with (done, total).
        note: called with lines for the user.

    Raises:
        OutputError: the folder exists or cannot be written.
        GraphError: a source that is missing, incomplete, or cannot have that precision.
        InputError: `plugins` is "on" and no plugin library is built, or the one named is not ours.
        EngineError: an option that this flavor does not have, profiles that the graph cannot take,
            a graph that TensorRT cannot parse or build, or an engine of another precision.
        BackendError, MissingDependencyError: this machine cannot build that flavor.
    """
    started = time.monotonic()
    check_output(output, force=force, record=SIDECAR_FILE)
    opened = open_source(source) if isinstance(source, Path) else None
    flavor = choose_flavor(options.flavor, gpu=lambda: bool(machine().gpus))
    options.check_flavor(flavor)
    check_cache_options(opened, options)
    check_machine(flavor, options)
    library = _plugin_library(flavor, options, note)
    with Child() as child, whole_folder(output, force=force, record=SIDECAR_FILE) as folder:
        graph = _graph(source, opened, options, folder / SCRATCH, progress, note)
        request = plan_request(graph, folder, flavor, options, library)
        result, hashes = _run(child, request, graph, progress)
        if options.plugins == "on":
            _check_plugins(graph, result["custom_ops"])
        for path in graph.companions():
            shutil.copyfile(path, folder / path.name)
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)
        sidecar = _sidecar(graph, flavor, options, library, result, hashes)
        sidecar["sha256"][NETWORK_FILE] = file_sha256(folder / NETWORK_FILE)
        sidecar["seconds"]["total"] = round(time.monotonic() - started, 3)
        (folder / SIDECAR_FILE).write_text(json.dumps(sidecar, indent=2) + "\n", "utf-8")
    for line in sidecar["warnings"]:
        note(f"{flavor.title}: {line}")
    return open_engine(output)


def _graph(
    source: Path | Checkpoint,
    opened: GraphSource | None,
    options: EngineOptions,
    scratch: Path,
    progress: Progress | None,
    note: Callable[[str], None],
) -> GraphSource:
    """The graph to build from, exported into `scratch` where there is none of that precision."""
    if opened is None:
        return graph_from_checkpoint(
            source,  # type: ignore[arg-type]
            dtype=options.dtype,
            kv_cache=options.kv_cache,
            scratch=scratch,
            progress=progress,
        )
    graph = with_dtype(opened, options.dtype, scratch, progress)
    if graph is not opened:
        origin = graph.record["checkpoint"] if graph.record is not None else {}
        own = " from its own weights (its checkpoint is gone or has changed)"
        note(
            f"{opened.onnx.parent} is {opened.dtype}: exported again as {options.dtype}"
            + own * (origin.get("format") == "graph")
        )
    return graph


def _plugin_library(
    flavor: Flavor, options: EngineOptions, note: Callable[[str], None]
) -> Path | None:
    """The library to load, if any, known to be one of ours."""
    if options.plugins == "off" or not flavor.takes_plugins:
        return None
    from andrea_export.plugins import newest_library, read_library

    path = options.plugin_library
    if path is None:
        try:
            path = newest_library()
        except InputError as error:
            if options.plugins == "on":
                raise
            note(f"custom ops use their definitions inside the graph: {error}")
            return None
    read_library(path)
    return path.absolute()


def _run(
    child: Child, request: BuildRequest, graph: GraphSource, progress: Progress | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Build in the child, hash the graph meanwhile. Returns the child's result and the hashes."""
    with ThreadPoolExecutor(1) as pool:
        hashing = pool.submit(_hash, graph)
        try:
            result = child.run(request.to_json(), str(graph.onnx), progress)
        except AndreaExportError:
            _check_hashes(graph, hashing)  # a damaged file is the better explanation
            raise
        return result, _check_hashes(graph, hashing)


def _check_plugins(graph: GraphSource, forms: dict[str, dict[str, int]]) -> None:
    if not any("plugin" in form for form in forms.values()):
        raise EngineError(
            f"--plugins on, but no node of {graph.onnx} became a plugin "
            f"({', '.join(forms) or 'it has no custom ops'}): export it with --ops plugin"
        )


def _hash(graph: GraphSource) -> dict[str, str]:
    for path in (files := graph.files()):
        if not path.is_file():
            raise GraphError(f"{graph.onnx}: its weights file {path.name} is not beside it")
    return {path.name: file_sha256(path) for path in files}


def _check_hashes(graph: GraphSource, hashing: Future[dict[str, str]]) -> dict[str, str]:
    hashes = hashing.result()
    if graph.record is None:
        return hashes
    for name in graph.record["sha256"]:
        check_recorded(graph.onnx.with_name(name), graph.record, hashes[name])
    return hashes


def _sidecar(
    graph: GraphSource,
    flavor: Flavor,
    options: EngineOptions,
    library: Path | None,
    result: dict[str, Any],
    hashes: dict[str, str],
) -> dict[str, Any]:
    asked = options.compute_capability
    own = (gpu.compute_capability for gpu in machine().gpus[:1])
    engine_sha256 = result.pop("sha256")
    return {
        "schema": SCHEMA,
        "andrea_export": __version__,
        "flavor": flavor.name,
        "version": result.pop("version"),
        "compute_capabilities": list(own if asked is None else split_capabilities(asked)),
        "sha256": {ENGINE_FILE: engine_sha256},
        "graph": {"sha256": hashes, "export": graph.record},
        "plugin_library": None
        if library is None
        else {"file": library.name, "sha256": file_sha256(library)},
        "options": {
            key: str(value) if isinstance(value, Path) else value
            for key, value in asdict(options).items()
        },
        **result,
    }

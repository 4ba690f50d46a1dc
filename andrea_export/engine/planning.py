"""What to ask the building process for: options and graph, resolved on this machine."""

from __future__ import annotations

from pathlib import Path

from andrea_export.engine.compute_capability import split_capabilities
from andrea_export.engine.flavors import Flavor
from andrea_export.engine.gpus import machine
from andrea_export.engine.layer_tensors import tensor_names
from andrea_export.engine.options import EngineOptions
from andrea_export.engine.request import BuildRequest
from andrea_export.engine.sidecar import ENGINE_FILE, NETWORK_FILE
from andrea_export.engine.source import GraphSource
from andrea_export.errors import EngineError

__all__ = ["check_cache_options", "check_machine", "plan_request"]


def check_cache_options(opened: GraphSource | None, options: EngineOptions) -> None:
    """Refuse what would be ignored: a cache is made when a graph is.

    Raises:
        EngineError: `capacity` without a cache, or `kv_cache` for a graph.
    """
    if opened is None and options.capacity is not None and not options.kv_cache:
        raise EngineError("--capacity is the length of a cache: give the graph one with --kv-cache")
    if opened is not None and options.kv_cache and not opened.has_cache:
        raise EngineError(
            f"--kv-cache is for checkpoints, and {opened.onnx} is a graph already: "
            "export it with `andrea-export onnx --kv-cache`"
        )


def check_machine(flavor: Flavor, options: EngineOptions) -> None:
    """Refuse what a machine without a GPU cannot build.

    Raises:
        EngineError: no compute capability is named, or weights are to be stripped.
    """
    if machine().gpus or flavor.name != "rtx":
        return
    if options.compute_capability is None:
        raise EngineError(
            "there is no GPU here to build for: name the one that will run the engine with "
            "--compute-capability, as 8.9 (GeForce RTX 40) or 12.0 (RTX 50)"
        )
    if options.strip_weights:
        raise EngineError(
            f"{flavor.title} strips weights only on a machine with a GPU, and there is none here"
        )


def plan_request(
    graph: GraphSource,
    folder: Path,
    flavor: Flavor,
    options: EngineOptions,
    library: Path | None,
) -> BuildRequest:
    """The request for an engine of `graph` into `folder`.

    Raises:
        EngineError: a capacity beyond the context, or layers of a model that is not known.
    """
    context = None if graph.config is None else graph.config.context_length
    capacity = options.capacity
    if capacity is not None and context is not None and capacity > context:
        raise EngineError(
            f"a cache of capacity {capacity} would be longer than the model's context length, "
            f"{context}"
        )
    if capacity is None and graph.has_cache:
        capacity = context
    if options.shows_layers and graph.config is None:
        raise EngineError(
            f"--layer-tensors needs to know the model, and no config.json of this toolkit lies "
            f"beside {graph.onnx}"
        )
    return BuildRequest(
        flavor=flavor.name,
        onnx=str(graph.onnx),
        engine=str((folder / ENGINE_FILE).absolute()),
        network=str((folder / NETWORK_FILE).absolute()),
        dtype=options.dtype or graph.dtype,
        custom_ops=graph.custom_ops,
        plugin_library=None if library is None else str(library),
        profiles=options.profiles,
        batch=options.batch,
        sequence=options.sequence,
        context_length=context,
        capacity=capacity,
        capabilities=_capabilities(flavor, options),
        workspace_bytes=options.workspace_bytes,
        optimization_level=options.optimization_level,
        timing_cache=None if options.timing_cache is None else str(options.timing_cache.absolute()),
        version_compatible=options.version_compatible,
        hardware_compatible=options.hardware_compatible,
        strip_weights=options.strip_weights,
        layer_tensors=options.layer_tensors,
        layer_names=() if graph.config is None else tensor_names(graph.config),
        read_back=_runs_here(options),
    )


def _capabilities(flavor: Flavor, options: EngineOptions) -> str | None:
    """The GPUs to name to the builder: those asked for, or this machine's own."""
    if flavor.name != "rtx" or options.compute_capability is not None:
        return options.compute_capability
    return machine().gpus[0].compute_capability


def _runs_here(options: EngineOptions) -> bool:
    """Whether this machine could open the engine again, to see what was really built."""
    if not machine().gpus or options.strip_weights:
        return False
    asked = options.compute_capability
    capability = machine().gpus[0].compute_capability
    return asked is None or capability in split_capabilities(asked)

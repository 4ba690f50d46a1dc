"""From a network to a serialized engine: the builder's settings, its progress, and the file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from andrea_export.engine.binding import trt
from andrea_export.engine.compute_capability import (
    from_member,
    parse_capabilities,
    to_member,
)
from andrea_export.engine.direct_write import write_to_disk
from andrea_export.engine.profiles import Profile
from andrea_export.engine.progress import BuildProgress
from andrea_export.engine.request import BuildRequest
from andrea_export.errors import EngineError

if TYPE_CHECKING:
    import tensorrt

__all__ = ["add_profile", "build_to_file", "configure", "known_capabilities", "progress_monitor"]

# Option of the request → builder flags that it sets.
FLAGS: dict[str, tuple[str, ...]] = {
    "version_compatible": ("VERSION_COMPATIBLE",),
    # REFIT_IDENTICAL: the weights that come back are those that were built with, so that the
    # engine is as fast as one that never lost them.
    "strip_weights": ("STRIP_PLAN", "REFIT_IDENTICAL"),
}


def known_capabilities() -> tuple[str, ...]:
    """Compute capabilities that the installed TensorRT-RTX builds for."""
    found = (from_member(name) for name in _capabilities().__members__)
    return tuple(capability for capability in found if capability is not None)


def configure(builder: tensorrt.Builder, request: BuildRequest) -> Any:
    """The builder's settings for a request.

    Raises:
        EngineError: a setting that the installed TensorRT does not have, or an unknown capability.
    """
    config: Any = builder.create_builder_config()
    if _capabilities() is not None:
        _set_capabilities(config, request.capabilities)
    # Layers stay readable in the engine, where a GPU can open it; it changes nothing else.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for option, names in FLAGS.items():
        if getattr(request, option):
            for name in names:
                config.set_flag(_member(trt.BuilderFlag, name, option))
    if request.hardware_compatible:
        level = _member(trt.HardwareCompatibilityLevel, "AMPERE_PLUS", "hardware_compatible")
        config.hardware_compatibility_level = level
    if request.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace_bytes)
    if request.optimization_level is not None:
        config.builder_optimization_level = request.optimization_level
    if request.timing_cache is not None:
        _open_timing_cache(config, Path(request.timing_cache))
    return config


def _set_capabilities(config: Any, text: str | None) -> None:
    if text is None:
        raise EngineError("TensorRT-RTX needs the compute capability to build for")
    names = [to_member(c) for c in parse_capabilities(text, known_capabilities())]
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        config.set_compute_capability(getattr(_capabilities(), name), index)


def _capabilities() -> Any:
    """The enum that TensorRT-RTX alone has."""
    return getattr(trt, "ComputeCapability", None)


def _open_timing_cache(config: Any, path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():  # else it would be told after the build
        raise EngineError(f"{path}: the timing cache is a file, in a folder that exists")
    try:
        cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror or error}") from error
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise EngineError(
            f"{path}: the timing cache is damaged, or of another GPU or TensorRT version; "
            "name another file"
        )


def save_timing_cache(config: Any, path: Path) -> None:
    """Write back what this build has learned; a crash leaves the older file.

    Raises:
        EngineError: it cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(config.get_timing_cache().serialize())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise EngineError(f"{path} cannot be written: {error.strerror or error}") from error


def add_profile(builder: tensorrt.Builder, config: Any, profile: Profile) -> None:
    """Add an optimization profile, given as shapes of every input.

    Raises:
        EngineError: TensorRT does not take it.
    """
    wanted = builder.create_optimization_profile()
    for name, bounds in profile.items():
        corners = (trt.Dims(list(shape)) for shape in (bounds.min, bounds.opt, bounds.max))
        try:
            wanted.set_shape(name, *corners)
        except RuntimeError as error:
            raise EngineError(
                f"TensorRT does not take the optimization profile of {name}: {error}"
            ) from error
    if config.add_optimization_profile(wanted) < 0:
        raise EngineError(f"TensorRT does not take the optimization profile {profile}")


def progress_monitor(report: Callable[[float, str], None], cancelled: Callable[[], bool]) -> Any:
    """A progress monitor: `report(fraction, phase)`; the build stops when `cancelled()` says so."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.progress = BuildProgress()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.progress.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self.progress.step(phase_name, step)
            report(self.progress.fraction, phase_name)
            return not cancelled()

        def phase_finish(self, phase_name: str) -> None:
            self.progress.finish(phase_name)

    return Monitor()


def build_to_file(
    builder: tensorrt.Builder, network: tensorrt.INetworkDefinition, config: Any, path: Path
) -> str | None:
    """Build, and write the engine.

    Streaming it into the file was tried: TensorRT copies every piece, which takes longer.

    Returns:
        Its sha256; None where TensorRT gave up, whose reason is in the log.
    """
    plan: Any = builder.build_serialized_network(network, config)
    if plan is None:
        return None
    digest = hashlib.sha256()
    hashing = Thread(target=digest.update, args=(plan,))  # on the other core
    hashing.start()
    write_to_disk(path, plan)
    hashing.join()
    return digest.hexdigest()


def _member(enum: Any, name: str, option: str) -> Any:
    found = getattr(enum, name, None)
    if found is None:
        raise EngineError(
            f"the installed TensorRT {trt.__version__} has no {enum.__name__}.{name}, "
            f"which --{option.replace('_', '-')} needs"
        )
    return found


def profiles_as_json(profiles: Sequence[Profile]) -> list[dict[str, dict[str, list[int]]]]:
    return [
        {
            name: {corner: list(getattr(bounds, corner)) for corner in ("min", "opt", "max")}
            for name, bounds in profile.items()
        }
        for profile in profiles
    ]

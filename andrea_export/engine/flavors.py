"""The two flavors of TensorRT: what each is called, what it can do, and which one to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

from andrea_export.errors import BackendError, EngineError, MissingDependencyError

__all__ = ["FLAVORS", "Flavor", "choose_flavor", "installed_version", "is_installed"]


@dataclass(frozen=True)
class Flavor:
    """A flavor of TensorRT.

    Attributes:
        name: as in `--flavor` and in the sidecar.
        title: what its maker calls it.
        module: the Python module. extra: of this package, which installs it.
        distributions: the pip packages that may bring the module.
        builds_without_gpu: for a named compute capability.
        takes_plugins: whether a user's plugin library can be loaded.
        lacks: option → why this flavor does not have it.
    """

    name: str
    title: str
    module: str
    extra: str
    distributions: tuple[str, ...]
    builds_without_gpu: bool
    takes_plugins: bool
    lacks: dict[str, str] = field(default_factory=dict)


FLAVORS: dict[str, Flavor] = {
    flavor.name: flavor
    for flavor in (
        Flavor(
            name="tensorrt",
            title="TensorRT",
            module="tensorrt",
            extra="gpu",
            distributions=("tensorrt-cu13", "tensorrt-cu12", "tensorrt"),
            builds_without_gpu=False,
            takes_plugins=True,
            lacks={
                "--compute-capability": "it builds for the GPU that it runs on; "
                "--hardware-compatible widens that",
            },
        ),
        Flavor(
            name="rtx",
            title="TensorRT-RTX",
            module="tensorrt_rtx",
            extra="rtx",
            distributions=("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
            builds_without_gpu=True,
            takes_plugins=False,
            lacks={
                "--timing-cache": "it times no kernels while building",
                # Its builder takes the flag, then looks for a library that it does not ship.
                "--version-compatible": "it ships no lean runtime",
                # Its builder takes the level, logs a warning, and ignores it.
                "--hardware-compatible": "name several GPUs with --compute-capability instead",
                "--plugin-library": "it has no interface for user plugins",
                "--plugins on": "it has no interface for user plugins; the definitions inside the "
                "graph are used, which --plugins auto and off both mean here",
            },
        ),
    )
}


def is_installed(flavor: Flavor) -> bool:
    """Whether the module is there. A folder of type stubs alone does not count."""
    spec = find_spec(flavor.module)
    return spec is not None and spec.origin is not None


def installed_version(flavor: Flavor) -> str | None:
    """Version of the installed package, without importing it."""
    from importlib import metadata

    for name in flavor.distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def choose_flavor(name: str, *, gpu: Callable[[], bool]) -> Flavor:
    """The flavor to build with.

    Args:
        name: "tensorrt", "rtx", or "auto": full TensorRT where it is installed and there is a GPU,
            else TensorRT-RTX.
        gpu: whether this machine has one; asked only when it matters.

    Raises:
        EngineError: no such flavor.
        MissingDependencyError: not installed.
        BackendError: full TensorRT, and no GPU.
    """
    if name != "auto" and name not in FLAVORS:
        raise EngineError(f"flavor {name!r} is not one of auto, {', '.join(FLAVORS)}")
    full, rtx = FLAVORS["tensorrt"], FLAVORS["rtx"]
    if name == "auto":
        if is_installed(full) and (gpu() or not is_installed(rtx)):
            name = full.name
        elif is_installed(rtx):
            name = rtx.name
        else:
            raise MissingDependencyError(
                "building an engine needs TensorRT, and neither flavor is installed: "
                "pip install 'andrea-export[gpu]' (full, needs a GPU) or 'andrea-export[rtx]' "
                "(TensorRT-RTX, builds without one)"
            )
    flavor = FLAVORS[name]
    if not is_installed(flavor):
        raise MissingDependencyError(
            f"{flavor.title} is not installed: pip install 'andrea-export[{flavor.extra}]'"
        )
    if not flavor.builds_without_gpu and not gpu():
        raise BackendError(
            f"{flavor.title} builds on the GPU that runs the engine, and none is found here; "
            "--flavor rtx builds without one"
        )
    return flavor

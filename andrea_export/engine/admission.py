"""Whether an engine may run here: what its sidecar says against what this machine is.

TensorRT itself would answer with an error code, or crash. Everything here needs no driver.
"""

from __future__ import annotations

from pathlib import Path

from andrea_export.engine.flavors import FLAVORS, Flavor, installed_version, is_installed
from andrea_export.engine.gpus import Machine, machine
from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import BackendError, InputError
from andrea_model.file_hash import file_sha256

__all__ = ["admit", "find_plugin_library", "refusal"]

AMPERE = (8, 0)


def admit(engine: EngineFolder, plugin_library: Path | None = None) -> Path | None:
    """Let an engine in, or say why not, before TensorRT sees a byte of it.

    Args:
        engine: with its sidecar.
        plugin_library: to use instead of the newest one that was built here.

    Returns:
        The plugin library to load, if the engine needs one.

    Raises:
        BackendError: this machine cannot run it.
        EngineError: the file is not the one that the sidecar describes.
    """
    flavor = FLAVORS.get(engine.flavor)
    if flavor is None:
        raise BackendError(f"{engine.path} is of an unknown flavor of TensorRT, {engine.flavor!r}")
    version = installed_version(flavor) if is_installed(flavor) else None
    reason = refusal(engine, flavor, version, machine())
    if reason is not None:
        raise BackendError(f"{engine.path} cannot run here: {reason}")
    library = find_plugin_library(engine, plugin_library)
    engine.check_file()
    return library


def refusal(engine: EngineFolder, flavor: Flavor, version: str | None, here: Machine) -> str | None:
    """Why this engine cannot run on that machine; None where nothing speaks against it.

    Args:
        engine: with its sidecar.
        flavor: of the engine.
        version: of that flavor on this machine; None: not installed.
        here: the machine's GPUs and driver.
    """
    sidecar = engine.sidecar
    if engine.is_stripped:
        return "its weights were stripped; `andrea-export refit` puts them back"
    if version is None:
        return f"{flavor.title} is not installed: pip install 'andrea-export[{flavor.extra}]'"
    built = sidecar["version"]
    compatible = bool(sidecar["options"].get("version_compatible"))
    if version != built and not (compatible and _major(version) == _major(built)):
        return f"it was built by {flavor.title} {built}, installed is {version}: build it again" + (
            "" if compatible else ", or with --version-compatible"
        ) * (flavor.name == "tensorrt")
    if not here.gpus:
        return here.problem
    return _gpu_refusal(engine, flavor, here.gpus[0].compute_capability)


def _gpu_refusal(engine: EngineFolder, flavor: Flavor, capability: str) -> str | None:
    built = engine.sidecar["compute_capabilities"]
    if capability in built:
        return None
    if engine.sidecar["options"].get("hardware_compatible"):
        if min(_number(capability), *map(_number, built)) >= AMPERE:
            return None
        return f"it runs on GPUs from compute capability 8.0 on, this GPU has {capability}"
    hint = {
        "rtx": f"--compute-capability {capability}",
        "tensorrt": "on this GPU, or with --hardware-compatible",
    }[flavor.name]
    return (
        f"it was built for compute capability {', '.join(built) or 'unknown'}, this GPU has "
        f"{capability}: build it again {'with ' if flavor.name == 'rtx' else ''}{hint}"
    )


def find_plugin_library(engine: EngineFolder, given: Path | None = None) -> Path | None:
    """The very library that the engine was built with, if it was built with one.

    Raises:
        BackendError: it is not here, another one is, or the engine needs none.
    """
    wanted = engine.sidecar["plugin_library"]
    if wanted is None and given is not None:
        raise BackendError(
            f"{engine.path} was built without a plugin library: leave --plugin-library out"
        )
    if wanted is None:
        return None
    path = given
    if path is None:
        from andrea_export.plugins import newest_library

        try:
            path = newest_library()
        except InputError as error:
            raise BackendError(
                f"{engine.path} needs the plugin library {wanted['file']}: {error}"
            ) from error
    if not path.is_file():
        raise BackendError(f"{engine.path} needs the plugin library, and {path} is not there")
    if file_sha256(path) != wanted["sha256"]:
        raise BackendError(
            f"{engine.path} was built with another plugin library than {path} (its sha256 begins "
            f"{wanted['sha256'][:12]}): name that one with --plugin-library, or build the engine "
            "again"
        )
    return path


def _major(version: str) -> str:
    return version.split(".", maxsplit=1)[0]


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))

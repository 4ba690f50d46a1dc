"""One look at each thing that the toolkit can use. Nothing is changed, nothing is downloaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from andrea_export.engine.flavors import FLAVORS, Flavor, installed_version, is_installed
from andrea_export.engine.gpus import machine
from andrea_export.errors import AndreaExportError

__all__ = ["PROBES", "Finding"]

LOAD_SECONDS = 60
ONNXRUNTIMES = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True)
class Finding:
    """What was found of one thing.

    Attributes:
        name: of the thing; `JOBS` refers to it.
        found: whether it is there and works.
        detail: version and place, or what is wrong with it.
        enables: what it is good for.
        install: the one command that brings it.
    """

    name: str
    found: bool
    detail: str
    enables: str
    install: str


def _gpu() -> Finding:
    here = machine()
    names = ", ".join(
        f"{gpu.name} (compute capability {gpu.compute_capability}, "
        f"{gpu.memory_bytes / 2**30:.0f} GiB)"
        for gpu in here.gpus
    )
    return Finding(
        "gpu",
        bool(here.gpus),
        names or here.problem,
        "running engines and kernels",
        "a machine with an NVIDIA GPU",
    )


def _driver() -> Finding:
    here = machine()
    return Finding(
        "driver",
        here.cuda is not None,
        here.problem if here.cuda is None else f"runs CUDA up to {here.cuda}",
        "everything on a GPU",
        "apt install nvidia-driver",
    )


def _torch() -> Finding:
    enables, install = "exporting and the reference", "pip install torch"
    try:
        version = metadata.version("torch")
        import torch
    except (metadata.PackageNotFoundError, ImportError, OSError) as error:
        return Finding("torch", False, _first_line(error), enables, install)
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Finding("torch", True, f"{version}, {build}", enables, install)


def _torch_on_gpu() -> Finding:
    """A build for the CPU runs everything but engines, whose buffers are torch's."""
    enables = "running engines, whose tensors torch keeps on the GPU"
    install = "pip install --force-reinstall torch"
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch-gpu", False, _first_line(error), enables, install)
    if torch.version.cuda is None:
        return Finding("torch-gpu", False, f"{torch.__version__} is a CPU build", enables, install)
    detail = f"built for CUDA {torch.version.cuda}"
    if machine().gpus and not torch.cuda.is_available():
        return Finding("torch-gpu", False, f"{detail}, finds no GPU", enables, install)
    return Finding("torch-gpu", True, detail, enables, install)


def _onnx() -> Finding:
    versions = {name: _version(name) for name in ("onnx", "onnx-ir")}
    detail = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    return Finding("onnx", all(versions.values()), detail, "exporting", "pip install onnx onnx-ir")


def _onnxruntime() -> Finding:
    packages = {name: version for name in ONNXRUNTIMES if (version := _version(name))}
    enables = "running and comparing graphs"
    install = "pip install 'andrea-export[cpu]'"
    if not packages:
        return Finding("onnxruntime", False, "not installed", enables, install)
    try:
        import onnxruntime

        providers = [
            name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers()
        ]
    except (ImportError, OSError) as error:
        return Finding(
            "onnxruntime", False, f"does not load: {_first_line(error)}", enables, install
        )
    detail = ", ".join(f"{name} {version}" for name, version in packages.items())
    detail += f"; providers {', '.join(providers)}"
    if len(packages) > 1:
        # Both bring the module `onnxruntime`, and whichever came last has overwritten the other.
        detail += (
            "; both packages are installed: pip uninstall one of them, then reinstall the other"
        )
    return Finding("onnxruntime", True, detail, enables, install)


def _flavor(flavor: Flavor, enables: str) -> Finding:
    install = f"pip install 'andrea-export[{flavor.extra}]'"
    if not is_installed(flavor):
        return Finding(flavor.name, False, "not installed", enables, install)
    version = installed_version(flavor) or "of unknown version"
    problem = _loading_problem(flavor.module)
    detail = f"{flavor.title} {version}" + (f", does not load: {problem}" if problem else "")
    return Finding(flavor.name, not problem, detail, enables, install)


def _loading_problem(module: str) -> str:
    """Load it in a process of its own: two flavors do not go into one."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS)
    except subprocess.TimeoutExpired:
        return f"not within {LOAD_SECONDS} s"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _tensorrt() -> Finding:
    return _flavor(FLAVORS["tensorrt"], "engines with our CUDA plugins, built on the GPU")


def _rtx() -> Finding:
    return _flavor(FLAVORS["rtx"], "engines built ahead of time, without a GPU")


def _nvcc() -> Finding:
    from andrea_export.plugins.toolchain import find_nvcc

    path = find_nvcc()
    return Finding(
        "nvcc",
        path is not None,
        "not found" if path is None else str(path),
        "compiling the plugins",
        "pip install 'andrea-export[plugins]'",
    )


def _compiler() -> Finding:
    path = shutil.which("g++")
    return Finding(
        "g++", path is not None, path or "not found", "compiling the plugins", "apt install g++"
    )


def _headers() -> Finding:
    from andrea_export.plugins.toolchain import find_tensorrt_include, tensorrt_header_version

    enables, install = "compiling the plugins", "pip install 'andrea-export[plugins]'"
    try:
        path = find_tensorrt_include()
        if path is None:
            return Finding("headers", False, "not found", enables, install)
        version = ".".join(map(str, tensorrt_header_version(path)))
    except AndreaExportError as error:
        return Finding("headers", False, str(error), enables, install)
    return Finding("headers", True, f"TensorRT {version}, {path}", enables, install)


def _plugin_library() -> Finding:
    from andrea_export.plugins import newest_library, read_library

    enables, install = "CUDA kernels for the custom ops", "andrea-export plugins build"
    try:
        contents = read_library(newest_library())
    except AndreaExportError as error:
        return Finding("plugins", False, str(error), enables, install)
    detail = f"{contents.library}, for sm_{', sm_'.join(contents.architectures)}"
    return Finding("plugins", True, detail, enables, install)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


PROBES: tuple[Callable[[], Finding], ...] = (
    _torch,
    _onnx,
    _onnxruntime,
    _driver,
    _gpu,
    _torch_on_gpu,
    _tensorrt,
    _rtx,
    _headers,
    _nvcc,
    _compiler,
    _plugin_library,
)

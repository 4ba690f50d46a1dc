"""The three things that a check compiles: the library, one with a fault, and the harness."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from andrea_export.errors import BackendError, MissingDependencyError
from andrea_export.plugins import BuildOptions, build_plugins, parse_architectures
from andrea_export.plugins.build import plugin_sources
from andrea_export.plugins.toolchain import find_cuda_include, find_tensorrt_include

__all__ = ["Built", "build_all", "prepare_headers", "prepared_headers"]

REPOSITORY = Path(__file__).parents[2]
PREPARED = REPOSITORY / "build" / "tensorrt-include"
LAUNCH = "const andrea_status status = op_.launch(call, settings_);"
NO_LAUNCH = "const andrea_status status = 0; (void)call;"


@dataclass(frozen=True)
class Built:
    library: Path
    idle_library: Path  # its enqueue does nothing: the check has to see that
    harness: Path
    seconds: float


def build_all(folder: Path, architectures: str) -> Built:
    """Compile into `folder` for an --arch as of `plugins build`.

    Raises:
        MissingDependencyError, InputError, BackendError: as `build_plugins` does.
    """
    headers = prepared_headers()
    options = BuildOptions(
        architectures=parse_architectures(architectures),
        tensorrt_include=headers,
        cache=folder / "libraries",
    )
    library = build_plugins(options)
    idle = build_plugins(
        BuildOptions(
            architectures=options.architectures,
            tensorrt_include=headers,
            cache=options.cache,
            sources=_idle_sources(folder / "idle-sources"),
        )
    )
    harness = _build_harness(folder / "libandrea_v3_harness.so", headers)
    return Built(library.library, idle.library, harness, library.seconds + idle.seconds)


def prepare_headers() -> Path:
    """Copy TensorRT's headers to where a check looks for them on a machine that has none.

    Raises:
        MissingDependencyError: there are none here either.
    """
    found = find_tensorrt_include()
    if found is None:
        raise MissingDependencyError(
            "no TensorRT headers to prepare: pip install --no-deps kernel-lens"
        )
    PREPARED.mkdir(parents=True, exist_ok=True)
    for path in found.glob("NvInfer*.h"):
        shutil.copyfile(path, PREPARED / path.name)
    return PREPARED


def prepared_headers() -> Path | None:
    """The copy, where this machine has no headers of its own."""
    if find_tensorrt_include() is None and (PREPARED / "NvInferRuntime.h").is_file():
        return PREPARED
    return None


def _idle_sources(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(plugin_sources(), folder)
    plugin = folder / "trt" / "plugin.cpp"
    text = plugin.read_text()
    if text.count(LAUNCH) != 1:
        raise BackendError(f"{plugin} has no line {LAUNCH!r}: the fault cannot be made")
    plugin.write_text(text.replace(LAUNCH, NO_LAUNCH))
    return folder


def _build_harness(path: Path, headers: Path | None) -> Path:
    source = plugin_sources() / "harness" / "v3_harness.cpp"
    include, cuda = headers or find_tensorrt_include(), find_cuda_include()
    if include is None or cuda is None:
        raise MissingDependencyError("the harness needs TensorRT's and CUDA's headers")
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += ["-isystem", str(include), "-isystem", str(cuda), str(source), "-ldl"]
    result = subprocess.run(
        [*command, "-o", str(path)], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise BackendError(f"g++ failed on {source}: {result.stderr[:500]}")
    return path

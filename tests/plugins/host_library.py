"""Compiles the plugin sources with a plain C++ compiler, each object cached by its content.

The library made here is the real one except that CUDA threads are fibers on the CPU
(plugins/host/cuda_on_host.h), so kernels and plugins run where there is no GPU.
"""

import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from andrea_export.plugins.toolchain import find_cuda_include, find_tensorrt_include

__all__ = ["OBJECTS", "SOURCES", "build_harness", "build_host_library", "missing_tool"]

REPOSITORY = Path(__file__).parents[2]
# mutants.py points it at sources with a fault in them.
SOURCES = Path(os.environ.get("ANDREA_PLUGIN_SOURCES", REPOSITORY / "plugins"))
OBJECTS = REPOSITORY / "build" / "plugin-tests"

KERNELS = ("layer_norm.cu", "add_layer_norm.cu", "gelu.cu", "bias_gelu.cu", "status.cu")
# Which folders the sources of a folder include from.
INCLUDES = {
    "kernels": ("include", "host", "kernels"),
    "trt": ("include", "trt"),
    "host": ("host",),
    "harness": ("harness",),
}
# g++ cannot see that a guard on a load and the same guard on its use agree.
FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-maybe-uninitialized"),
    *("-DANDREA_HOST", '-DANDREA_ARCHITECTURES="host"'),
)


def missing_tool() -> str | None:
    """Why nothing can be compiled here, or None."""
    if shutil.which("g++") is None:
        return "g++ is not installed"
    if find_cuda_include() is None:
        return "the CUDA headers are not installed"
    if find_tensorrt_include() is None:
        return "the TensorRT headers are not installed"
    return None


def build_host_library(root: Path = SOURCES, defines: tuple[str, ...] = ()) -> Path:
    """The library from the sources under `root`, with every launcher running on the CPU.

    `defines` are for the kernels alone.
    """
    jobs = [(root / "kernels" / name, defines) for name in KERNELS]
    jobs += [(path, ()) for path in sorted((root / "trt").glob("*.cpp"))]
    jobs.append((root / "host" / "fibers.cpp", ()))
    return link(root, jobs, f"-Wl,--version-script={root / 'exports.map'}")


def build_harness(root: Path = SOURCES) -> Path:
    """The harness that drives a plugin library as TensorRT would."""
    return link(root, [(root / "harness" / "v3_harness.cpp", ())], "-ldl")


def link(root: Path, jobs: list[tuple[Path, tuple[str, ...]]], *flags: str) -> Path:
    with ThreadPoolExecutor(max_workers=2) as pool:
        objects = list(pool.map(lambda job: compile_object(root, *job), jobs))
    library = OBJECTS / f"{digest(*map(str, objects), *flags)}.so"
    if not library.exists():
        run(library, ["g++", "-shared", *map(str, objects), *flags])
    return library


def compile_object(root: Path, source: Path, defines: tuple[str, ...]) -> Path:
    headers = sorted(
        path
        for folder in INCLUDES[source.parent.name]
        for path in (root / folder).glob("*")
        if path.suffix in {".h", ".cuh"}
    )
    content = [path.read_text() for path in (source, *headers)]
    compiled = OBJECTS / f"{digest(source.name, *content, *FLAGS, *defines)}.o"
    if not compiled.exists():
        language = ["-x", "c++"] if source.suffix == ".cu" else []
        own = [f"-I{root / folder}" for folder in INCLUDES[source.parent.name]]
        cuda = find_cuda_include() or Path()
        folders = (find_tensorrt_include(), cuda, cuda / "cccl")
        system = [f"-isystem{folder}" for folder in folders]
        command = ["g++", *FLAGS, *[f"-D{name}" for name in defines], *own, *system]
        run(compiled, [*command, *language, "-c", str(source)])
    return compiled


def run(output: Path, command: list[str]) -> None:
    """Run a compiler into a private file and rename: two test runs may share the folder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(f".{os.getpid()}.partial")
    result = subprocess.run([*command, "-o", str(partial)], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
    partial.rename(output)


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]

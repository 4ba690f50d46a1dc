"""Compile the plugin library, once for each set of sources, tools and architectures."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from andrea_export.errors import BackendError, InputError, OutputError
from andrea_export.plugins.architectures import ALL_ARCHITECTURES
from andrea_export.plugins.toolchain import Toolchain, find_toolchain
from andrea_export.progress import Progress
from andrea_export.whole_folder import whole_folder

__all__ = [
    "LIBRARY_NAME",
    "BuildOptions",
    "BuiltLibrary",
    "build_plugins",
    "cache_folder",
    "plugin_sources",
]

LIBRARY_NAME = "libandrea_plugins.so"
RECORD_NAME = "build.json"
LOG_NAME = "build.log"
# Of the sources; the rest is for tests.
BUILT_FROM = ("include", "kernels", "trt", "exports.map", "nvcc.options")


@dataclass(frozen=True)
class BuildOptions:
    """What to build for, and where the tools are when they are not in the usual places."""

    architectures: tuple[str, ...] = ALL_ARCHITECTURES
    nvcc: Path | None = None
    tensorrt_include: Path | None = None
    sources: Path | None = None
    cache: Path | None = None


@dataclass(frozen=True)
class BuiltLibrary:
    """A library that is ready to be loaded. `cached`: it had been built before."""

    library: Path
    architectures: tuple[str, ...]
    cached: bool
    seconds: float
    sha256: str
    nvcc_version: str
    tensorrt_headers: str
    log: Path
    warnings: tuple[str, ...] = field(default=())


def build_plugins(
    options: BuildOptions | None = None, *, progress: Progress = lambda _done, _total: None
) -> BuiltLibrary:
    """Compile the library, or find the one that an equal build left in the cache.

    Raises:
        MissingDependencyError: a compiler or the headers are missing.
        InputError: an architecture that nvcc does not know, or wrong paths.
        OutputError: the cache folder cannot be written.
        BackendError: the compiler failed.
    """
    options = options or BuildOptions()
    sources = options.sources or plugin_sources()
    tools = find_toolchain(nvcc=options.nvcc, tensorrt_include=options.tensorrt_include)
    _check_architectures(options.architectures, tools)
    steps = _compile_steps(sources, tools, options.architectures)
    cache = options.cache or cache_folder()
    folder = cache / _key(sources, steps, tools)
    built = _read(folder, tools)
    if built is None:
        if folder.exists():  # damaged: it is ours to replace, whatever is left in it
            shutil.rmtree(folder)
        _build(folder, steps, sources, tools, options.architectures, progress)
        built = _read(folder, tools, cached=False)
    if built is None:
        raise OutputError(f"{folder} was written but cannot be read back")
    return built


def plugin_sources() -> Path:
    """The sources: inside the package when it came from a wheel, else in the repository."""
    package = Path(__file__).parents[1]
    for folder in (package / "plugin_sources", package.parent / "plugins"):
        if (folder / "exports.map").is_file():
            return folder
    raise InputError(f"the plugin sources are missing from {package}: install the package again")


def cache_folder() -> Path:
    """Where built libraries are kept: XDG_CACHE_HOME, or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return base / "andrea-export" / "plugins"


def _check_architectures(architectures: tuple[str, ...], tools: Toolchain) -> None:
    listing = subprocess.run(
        [tools.nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False
    ).stdout.split()
    known = [word.removeprefix("sm_") for word in listing]
    unknown = [name for name in architectures if name not in known]
    if unknown:
        raise InputError(
            f"nvcc {tools.nvcc_version} cannot compile for {', '.join(unknown)}; it knows "
            f"{', '.join(known)}"
        )


def _compile_steps(
    sources: Path, tools: Toolchain, architectures: tuple[str, ...]
) -> dict[str, list[str]]:
    """One command for each object file, without its `-o`. The slow files come first."""
    common = ["-std=c++17", "-O3", f"-I{sources / 'include'}", "-c"]
    options = ["--options-file", str(sources / "nvcc.options")]
    code = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in architectures]
    newest = architectures[-1]
    code.append(f"-gencode=arch=compute_{newest},code=compute_{newest}")
    kernels = sorted((sources / "kernels").glob("*.cu"), key=lambda path: -path.stat().st_size)
    names = ",".join(architectures)
    headers = ["-isystem", str(tools.tensorrt_include), f'-DANDREA_ARCHITECTURES="{names}"']
    steps = {}
    for path in kernels:
        steps[path.name] = [str(tools.nvcc), *common, *options, *code, str(path)]
    for path in sorted((sources / "trt").glob("*.cpp")):
        steps[path.name] = [str(tools.nvcc), *common, *options, *headers, str(path)]
    return steps


def _key(sources: Path, steps: dict[str, list[str]], tools: Toolchain) -> str:
    """Whatever changes the result, and nothing else: not where the sources happen to lie."""
    digest = hashlib.sha256()
    files = (path for name in BUILT_FROM for path in [sources / name, *(sources / name).rglob("*")])
    for path in sorted(path for path in files if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(sources)}\0{len(content)}\0".encode() + content)
    versions = (tools.nvcc_version, tools.compiler_version, tools.tensorrt_version)
    commands = json.dumps(list(steps.values())).replace(str(sources), "")
    digest.update(f"{versions}\0{commands}".encode())
    return digest.hexdigest()[:16]


def _build(
    folder: Path,
    steps: dict[str, list[str]],
    sources: Path,
    tools: Toolchain,
    architectures: tuple[str, ...],
    progress: Progress,
) -> None:
    started = time.monotonic()
    with whole_folder(folder, force=False) as partial:
        objects = partial / "objects"
        objects.mkdir()
        total = len(steps) + 1
        progress(0, total)
        log = []
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            jobs = [
                pool.submit(_run, [*command, "-o", str(objects / f"{name}.o")], folder)
                for name, command in steps.items()
            ]
            try:
                for done, job in enumerate(as_completed(jobs), start=1):
                    log.append(job.result())
                    progress(done, total)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        library = partial / LIBRARY_NAME
        log.append(_run(_link_command(library, objects.iterdir(), sources, tools), folder))
        progress(total, total)
        shutil.rmtree(objects)
        (partial / LOG_NAME).write_text("".join(log))
        record = {
            "architectures": architectures,
            "seconds": round(time.monotonic() - started, 1),
            "sha256": _sha256(library),
            "nvcc_version": tools.nvcc_version,
            "tensorrt_headers": ".".join(map(str, tools.tensorrt_version)),
        }
        (partial / RECORD_NAME).write_text(json.dumps(record, indent=2) + "\n")


def _link_command(
    library: Path, objects: Iterable[Path], sources: Path, tools: Toolchain
) -> list[str]:
    # cudart statically: a host process brings its own, of another version perhaps.
    options = [
        f"--version-script={sources / 'exports.map'}",
        f"-soname={LIBRARY_NAME}",
        "--no-undefined",
        "--as-needed",
    ]
    files = [str(path) for path in sorted(objects)]
    command = [str(tools.nvcc), "-shared", "--cudart=static", *files]
    return [*command, *(f"-Xlinker={option}" for option in options), "-o", str(library)]


def _run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    text = f"$ {' '.join(command)}\n{output}"
    if result.returncode == 0:
        return text
    log = folder.with_name(f"{folder.name}.failed.log")
    log.write_text(text)
    lines = [line for line in output.splitlines() if "error" in line.lower()] or [output.strip()]
    raise BackendError(f"nvcc failed: {lines[0][:300]}\nThe whole output is in {log}")


def _read(folder: Path, tools: Toolchain, *, cached: bool = True) -> BuiltLibrary | None:
    """The library in `folder`, unless it is missing or not what its record says."""
    library = folder / LIBRARY_NAME
    try:
        record = json.loads((folder / RECORD_NAME).read_text())
        if _sha256(library) != record["sha256"]:
            return None
        return BuiltLibrary(
            library=library,
            architectures=tuple(record["architectures"]),
            cached=cached,
            seconds=record["seconds"],
            sha256=record["sha256"],
            nvcc_version=record["nvcc_version"],
            tensorrt_headers=record["tensorrt_headers"],
            log=folder / LOG_NAME,
            warnings=tools.warnings,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""What compiling the plugin library needs: nvcc, a C++ compiler, and TensorRT's headers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from andrea_export.errors import InputError, MissingDependencyError

__all__ = [
    "Toolchain",
    "find_cuda_include",
    "find_nvcc",
    "find_tensorrt_include",
    "find_toolchain",
    "tensorrt_header_version",
]

# IPluginV3 came with TensorRT 10.0; its interfaces are the same in 10 and 11.
OLDEST_HEADERS = 10
SYSTEM_INCLUDES = (
    "/usr/include",
    "/usr/include/x86_64-linux-gnu",
    "/usr/include/aarch64-linux-gnu",
    "/usr/local/include",
    "/usr/local/tensorrt/include",
    "/usr/local/TensorRT/include",
    "/opt/tensorrt/include",
    "/usr/local/cuda/include",
)
CUDA_HOMES = ("/usr/local/cuda", "/opt/cuda")
RUNTIME_PACKAGES = ("tensorrt-cu13", "tensorrt-cu12", "tensorrt")


@dataclass(frozen=True)
class Toolchain:
    """The tools of one build, and the versions that decide whether an older build can be reused."""

    nvcc: Path
    nvcc_version: str
    compiler: Path
    compiler_version: str
    tensorrt_include: Path
    tensorrt_version: tuple[int, int, int]
    warnings: tuple[str, ...] = ()


def find_toolchain(*, nvcc: Path | None = None, tensorrt_include: Path | None = None) -> Toolchain:
    """Find every tool, or say which one is missing and how to get it.

    Raises:
        MissingDependencyError: no nvcc, no C++ compiler, or no TensorRT headers.
        InputError: a given path, or an environment variable, does not hold what it should.
    """
    found_nvcc = find_nvcc(nvcc)
    if found_nvcc is None:
        raise MissingDependencyError(
            "compiling the plugins needs nvcc, which is not on PATH, in CUDA_HOME or in "
            "/usr/local/cuda: install the CUDA toolkit 12.8 or newer, or pip install "
            "'andrea-export[plugins]', or name it with --nvcc PATH"
        )
    compiler = shutil.which("g++")
    if compiler is None:
        raise MissingDependencyError(
            "compiling the plugins needs g++, which is not on PATH: apt install g++"
        )
    include = find_tensorrt_include(tensorrt_include)
    if include is None:
        raise MissingDependencyError(
            "compiling the plugins needs TensorRT's headers (NvInferRuntime.h), which are neither "
            "in TENSORRT_INCLUDE_DIR nor in the system folders: apt install libnvinfer-dev, or "
            "pip install 'andrea-export[plugins]', or --tensorrt-include DIR"
        )
    version = tensorrt_header_version(include)
    if version[0] < OLDEST_HEADERS:
        raise InputError(
            f"{include} has TensorRT {'.'.join(map(str, version))}; the plugins need the headers "
            f"of {OLDEST_HEADERS}.0 or newer: name others with --tensorrt-include DIR"
        )
    return Toolchain(
        nvcc=found_nvcc,
        nvcc_version=_first_match(r"V([\d.]+)", _output_of(found_nvcc, "--version")),
        compiler=Path(compiler),
        compiler_version=_output_of(Path(compiler), "-dumpfullversion").strip(),
        tensorrt_include=include,
        tensorrt_version=version,
        warnings=tuple(_version_warnings(include, version)),
    )


def find_nvcc(explicit: Path | None = None) -> Path | None:
    """nvcc from an explicit path, CUDACXX, PATH, CUDA_HOME, the usual folders, or pip."""
    if explicit is not None:
        if not os.access(explicit, os.X_OK) or explicit.is_dir():
            raise InputError(f"{explicit} is not a program: --nvcc takes the path of nvcc itself")
        return explicit
    names = [os.environ.get("CUDACXX"), "nvcc"]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *CUDA_HOMES]
    names += [str(Path(home) / "bin" / "nvcc") for home in homes if home]
    names.append(str(_site_packages() / "nvidia" / "cu13" / "bin" / "nvcc"))
    found = (shutil.which(name) for name in names if name)
    return next((Path(path) for path in found if path), None)


def find_cuda_include() -> Path | None:
    """The folder with cuda_fp16.h, for code that is compiled without nvcc."""
    nvcc = find_nvcc()
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *CUDA_HOMES]
    folders = [Path(home) / "include" for home in homes if home]
    if nvcc is not None:
        folders.insert(0, nvcc.resolve().parent.parent / "include")
    folders.append(_site_packages() / "nvidia" / "cu13" / "include")
    return next((folder for folder in folders if (folder / "cuda_fp16.h").is_file()), None)


def find_tensorrt_include(explicit: Path | None = None) -> Path | None:
    """TensorRT's headers: an explicit folder, TENSORRT_INCLUDE_DIR, the system, the pip package.

    Raises:
        InputError: the explicit folder, or the variable's, has no NvInferRuntime.h.
    """
    variable = os.environ.get("TENSORRT_INCLUDE_DIR")
    for source, named in (("--tensorrt-include", explicit), ("TENSORRT_INCLUDE_DIR", variable)):
        if named:
            if not _has_headers(Path(named)):
                raise InputError(
                    f"{named} has no NvInferRuntime.h: {source} takes the folder that holds it"
                )
            return Path(named)
    folders = [Path(folder) for folder in SYSTEM_INCLUDES]
    folders.append(_site_packages() / "kernel_lens" / "include" / "tensorrt")
    return next((folder for folder in folders if _has_headers(folder)), None)


def tensorrt_header_version(include: Path) -> tuple[int, int, int]:
    """(major, minor, patch) from NvInferVersion.h, whose values may be names of other values.

    Raises:
        InputError: the file is missing or does not define them.
    """
    path = include / "NvInferVersion.h"
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    defined: dict[str, str] = dict(re.findall(r"#define\s+(\w+)\s+(\w+)", text))

    def value(name: str) -> int:
        word = defined.get(f"NV_TENSORRT_{name}", "")
        word = defined.get(word, word)
        if not word.isdigit():
            raise InputError(f"{path} does not define NV_TENSORRT_{name}")
        return int(word)

    return value("MAJOR"), value("MINOR"), value("PATCH")


def _version_warnings(include: Path, headers: tuple[int, int, int]) -> Iterator[str]:
    for package in RUNTIME_PACKAGES:
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if installed.split(".")[0] != str(headers[0]):
            yield (
                f"{include} has the headers of TensorRT {headers[0]}, but {package} {installed} is "
                "installed: the plugin interfaces are the same in 10 and 11; if loading fails, "
                "name matching headers with --tensorrt-include DIR"
            )
        return


def _has_headers(folder: Path) -> bool:
    return (folder / "NvInferRuntime.h").is_file()


def _site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _output_of(program: Path, *arguments: str) -> str:
    try:
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(f"{program} {' '.join(arguments)} does not run: {error}") from error


def _first_match(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else text.strip()

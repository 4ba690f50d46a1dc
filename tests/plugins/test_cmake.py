"""CMake alone, for those who build the library into a project of their own."""

import shutil
import subprocess
from pathlib import Path

import pytest

from andrea_export.plugins.toolchain import find_cuda_include, find_nvcc, find_tensorrt_include
from tests.plugins.host_library import SOURCES
from tests.plugins.test_build import fake_headers
from tests.plugins.test_library import EXPORTED


@pytest.mark.slow
def test_cmake_alone_builds_the_same_interface(tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    include, cuda = find_tensorrt_include(), find_cuda_include()
    if find_nvcc() is None or include is None or cuda is None:
        pytest.skip("nvcc or the headers are not installed")
    configure = [
        *("cmake", "-S", SOURCES, "-B", tmp_path, "-DCMAKE_CUDA_ARCHITECTURES=90"),
        f"-DTENSORRT_INCLUDE_DIR={include}",
    ]
    for command in (configure, ["cmake", "--build", tmp_path, "--parallel", "2"]):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", tmp_path / "libandrea_plugins.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert {line.split()[-1] for line in symbols.splitlines()} == EXPORTED


@pytest.mark.parametrize("what", ["no headers", "old headers"])
def test_cmake_without_usable_headers_says_so(tmp_path: Path, what: str) -> None:
    if shutil.which("cmake") is None or find_nvcc() is None:
        pytest.skip("cmake or nvcc is not installed")
    if what == "old headers":
        arguments, message = [f"-DTENSORRT_INCLUDE_DIR={fake_headers(tmp_path / 'old', 8)}"], "10.0"
    else:
        arguments, message = ["-DCMAKE_FIND_ROOT_PATH=/nowhere"], "No NvInferRuntime.h found"
        arguments += ["-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY"]
    command = ["cmake", "-S", SOURCES, "-B", tmp_path / "build", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert message in " ".join(result.stderr.split())

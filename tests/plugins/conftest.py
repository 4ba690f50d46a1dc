"""One host library and one harness for all tests of the plugins."""

from pathlib import Path

import numpy as np
import pytest

from andrea_export.plugins import BuildOptions, BuiltLibrary, build_plugins
from andrea_export.plugins.toolchain import find_nvcc
from tests.plugins.host_library import OBJECTS, build_harness, build_host_library, missing_tool
from tests.plugins.kernel_calls import Kernels
from tests.plugins.reference import DTYPES


def skip_without_tools() -> None:
    reason = missing_tool()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def host_library() -> Path:
    """The plugin library whose kernels run on the CPU."""
    skip_without_tools()
    return build_host_library()


@pytest.fixture(scope="session")
def kernels(host_library: Path) -> Kernels:
    return Kernels(host_library)


@pytest.fixture(scope="session")
def harness() -> Path:
    skip_without_tools()
    return build_harness()


@pytest.fixture(scope="session")
def small_grids() -> Kernels:
    """The same kernels with at most two blocks to a launch."""
    skip_without_tools()
    return Kernels(build_host_library(defines=("ANDREA_MAX_GRID=2",)))


@pytest.fixture(scope="session")
def built() -> BuiltLibrary:
    """The real library for all architectures: compiled once, then taken from the cache."""
    skip_without_tools()
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    return build_plugins(BuildOptions(cache=OBJECTS / "libraries"))


@pytest.fixture(params=DTYPES, scope="module")
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)

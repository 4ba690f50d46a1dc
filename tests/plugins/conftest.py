"""One host library and one harness for all tests of the plugins."""

from pathlib import Path

import pytest

from tests.plugins.host_library import build_harness, build_host_library, missing_tool
from tests.plugins.kernel_calls import Kernels


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

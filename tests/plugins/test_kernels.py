"""The kernels, on the CPU, against float64 formulas: every op, type, width and alignment."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tests.plugins.kernel_calls import Kernels
from tests.plugins.kernel_checks import (
    FORMS,
    OFFSETS,
    Generator,
    check_add_layer_norm,
    check_bias_gelu,
    check_gelu,
    check_layer_norm,
    draw,
)
from tests.plugins.reference import DTYPES

WIDTHS = (1, 2, 7, 31, 32, 33, 64, 127, 760, 768, 1000, 1023, 3072, 4096, 8193)
ROWS = (0, 1, 3, 65)


def cases() -> Iterator[tuple[int, str, int]]:
    """(rows, alignment, thread order): every row count with every alignment, orders in turn."""
    for turn, (rows, which) in enumerate(itertools.product(ROWS, OFFSETS)):
        yield rows, which, turn % 3


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm_at_any_size_follows_the_formula(
    kernels: Kernels, rng: Generator, dtype: str, width: int
) -> None:
    for rows, which, order in cases():
        kernels.schedule(order)
        x = draw(rng, (rows, width), dtype)
        gamma, beta = draw(rng, (width,), dtype, 1.0), draw(rng, (width,), dtype, 1.0)
        check_layer_norm(kernels, x, gamma, beta, which)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_layer_norm_at_any_size_follows_the_formula(
    kernels: Kernels, rng: Generator, dtype: str, width: int
) -> None:
    for rows, which, order in cases():
        kernels.schedule(order)
        x, r = draw(rng, (rows, width), dtype), draw(rng, (rows, width), dtype)
        gamma, beta = draw(rng, (width,), dtype, 1.0), draw(rng, (width,), dtype, 1.0)
        check_add_layer_norm(kernels, x, r, gamma, beta, which)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", WIDTHS)
def test_gelu_at_any_size_follows_the_formula(
    kernels: Kernels, rng: Generator, dtype: str, width: int, form: str
) -> None:
    for rows, which, order in cases():
        kernels.schedule(order)
        check_gelu(kernels, draw(rng, (rows, width), dtype), form, which)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", WIDTHS)
def test_bias_gelu_at_any_size_follows_the_formula(
    kernels: Kernels, rng: Generator, dtype: str, width: int, form: str
) -> None:
    for rows, which, order in cases():
        kernels.schedule(order)
        x, bias = draw(rng, (rows, width), dtype), draw(rng, (width,), dtype)
        check_bias_gelu(kernels, x, bias, form, which)


# Each is the narrowest or widest row of one line in the dispatch table (row_plan.cuh), in packs.
@pytest.mark.parametrize("packs", [32, 33, 64, 65, 96, 97, 128, 129, 192, 193, 256, 257, 385])
@pytest.mark.parametrize("more", [1, 2, 4, 8])
def test_row_kernels_at_every_edge_of_the_dispatch_table_follow_the_formula(
    kernels: Kernels, rng: Generator, dtype: str, packs: int, more: int
) -> None:
    width = packs * more * 16 // DTYPES[dtype].itemsize
    kernels.schedule(more)
    x, r = draw(rng, (2, width), dtype), draw(rng, (2, width), dtype)
    gamma, beta = draw(rng, (width,), dtype, 1.0), draw(rng, (width,), dtype, 1.0)
    check_layer_norm(kernels, x, gamma, beta, "aligned")
    check_add_layer_norm(kernels, x, r, gamma, beta, "aligned")


@pytest.mark.parametrize("width", [65535, 65536])
def test_row_kernels_at_the_widest_row_follow_the_formula(
    kernels: Kernels, rng: Generator, dtype: str, width: int
) -> None:
    x, r = draw(rng, (2, width), dtype), draw(rng, (2, width), dtype)
    gamma, beta = draw(rng, (width,), dtype, 1.0), draw(rng, (width,), dtype, 1.0)
    check_layer_norm(kernels, x, gamma, beta, "aligned")
    check_add_layer_norm(kernels, x, r, gamma, beta, "aligned")
    check_bias_gelu(kernels, x, gamma, "tanh", "aligned")


@pytest.mark.parametrize("dtype", ["float16"])
def test_more_blocks_than_a_grid_holds_are_split_over_launches(
    small_grids: Kernels, rng: Generator, dtype: str
) -> None:
    for rows, width in ((1, 64), (7, 64), (8, 768), (9, 768), (5, 3072), (70, 33)):
        x, r = draw(rng, (rows, width), dtype), draw(rng, (rows, width), dtype)
        gamma, beta = draw(rng, (width,), dtype), draw(rng, (width,), dtype)
        check_layer_norm(small_grids, x, gamma, beta, "aligned")
        check_add_layer_norm(small_grids, x, r, gamma, beta, "aligned")
        check_bias_gelu(small_grids, np.repeat(x, 5, axis=0), beta, "tanh", "aligned")
        check_gelu(small_grids, np.repeat(x, 40, axis=0), "tanh", "aligned")

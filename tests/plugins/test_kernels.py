"""The kernels, on the CPU, against float64 formulas: every op, type, width and alignment."""

import itertools
from collections.abc import Callable, Iterator
from ctypes import c_int64

import numpy as np
import pytest

from tests.plugins import reference
from tests.plugins.kernel_calls import Kernels, Tensor
from tests.plugins.reference import DTYPES

WIDTHS = (1, 2, 7, 31, 32, 33, 64, 127, 760, 768, 1000, 1023, 3072, 4096, 8193)
ROWS = (0, 1, 3, 65)
# Elements from a 16-byte boundary, for all tensors or, the nastier case, for one of them.
OFFSETS = ("aligned", "all by one", "only the last")
FORMS = ("none", "tanh")
EPSILON = 1e-5

Generator = np.random.Generator
Array = np.ndarray


@pytest.fixture(params=DTYPES, scope="module")
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rng() -> Generator:
    return np.random.default_rng(20)


def draw(rng: Generator, shape: tuple[int, ...], dtype: str, scale: float = 2.0) -> Array:
    return (scale * rng.standard_normal(shape)).astype(DTYPES[dtype])


def offsets(count: int, which: str) -> list[int]:
    return {
        "aligned": [0] * count,
        "all by one": [1] * count,
        "only the last": [0] * (count - 1) + [1],
    }[which]


def cases() -> Iterator[tuple[int, str, int]]:
    """(rows, alignment, thread order): every row count with every alignment, orders in turn."""
    for turn, (rows, which) in enumerate(itertools.product(ROWS, OFFSETS)):
        yield rows, which, turn % 3


def place(values: list[Array], outputs: int, which: str) -> tuple[list[Tensor], list[Tensor]]:
    where = offsets(len(values) + outputs, which)
    tensors = [Tensor.of(value, offset) for value, offset in zip(values, where, strict=False)]
    shape, dtype = values[0].shape, values[0].dtype.name
    return tensors, [Tensor(shape, dtype, offset) for offset in where[len(values) :]]


def assert_close(actual: Array, expected: Array, size: Array) -> None:
    dtype = actual.dtype.name
    error = np.abs(actual.astype(np.float64) - expected)
    allowed = reference.allowed_error(dtype, expected, size)
    wrong = ~(error <= allowed)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} {dtype} values are off, the first at "
        f"{np.argwhere(wrong)[0]}: {actual[wrong][0]} instead of {expected[wrong][0]} "
        f"(allowed {allowed[wrong][0]:.3g})"
    )


def check_layer_norm(kernels: Kernels, x: Array, gamma: Array, beta: Array, which: str) -> None:
    inputs, (y,) = place([x, gamma, beta], 1, which)
    kernels.layer_norm(*inputs, y, EPSILON)
    wide = [value.astype(np.float64) for value in (x, gamma, beta)]
    assert_close(y.array, *reference.layer_norm(*wide, EPSILON))


def check_add_layer_norm(
    kernels: Kernels, x: Array, r: Array, gamma: Array, beta: Array, which: str
) -> None:
    inputs, (y, s) = place([x, r, gamma, beta], 2, which)
    kernels.add_layer_norm(*inputs, y, s, EPSILON)
    total = reference.add(x, r)
    np.testing.assert_array_equal(s.array, total)
    wide = [value.astype(np.float64) for value in (total, gamma, beta)]
    assert_close(y.array, *reference.layer_norm(*wide, EPSILON))


def check_gelu(kernels: Kernels, x: Array, form: str, which: str) -> None:
    (inputs,), (y,) = place([x], 1, which)
    kernels.gelu(inputs, y, form)
    assert_close(y.array, *reference.gelu(x.astype(np.float64), form))


def check_bias_gelu(kernels: Kernels, x: Array, bias: Array, form: str, which: str) -> None:
    inputs, (y,) = place([x, bias], 1, which)
    kernels.bias_gelu(*inputs, y, form)
    total = x.astype(np.float64) + bias.astype(np.float64)
    assert_close(y.array, *reference.gelu(total.astype(np.float32).astype(np.float64), form))


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


@pytest.mark.parametrize("width", [127, 768, 3072, 16384])
def test_layer_norm_of_a_large_mean_does_not_cancel(
    kernels: Kernels, rng: Generator, width: int
) -> None:
    x = (1e4 + rng.standard_normal((5, width))).astype(np.float32)
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    inputs, (y,) = place([x, ones, zeros], 1, "aligned")
    kernels.layer_norm(*inputs, y, EPSILON)
    expected, _ = reference.layer_norm(x.astype(np.float64), 1.0, 0.0, EPSILON)
    assert np.abs(y.array - expected).max() < 2e-5  # the contract says 1e-3


@pytest.mark.parametrize("width", [33, 768, 3072, 32768])
def test_add_layer_norm_normalises_the_sum_as_it_is_stored(
    kernels: Kernels, rng: Generator, width: int
) -> None:
    """With mean 40 a bfloat16 sum is rounded to quarters: a norm of the exact sum would differ."""
    x = (40 + rng.standard_normal((3, width))).astype(DTYPES["bfloat16"])
    r = draw(rng, (3, width), "bfloat16", 0.5)
    ones, zeros = np.ones(width, DTYPES["bfloat16"]), np.zeros(width, DTYPES["bfloat16"])
    check_add_layer_norm(kernels, x, r, ones, zeros, "aligned")
    exact = x.astype(np.float64) + r.astype(np.float64)
    of_exact, _ = reference.layer_norm(exact, 1.0, 0.0, EPSILON)
    of_stored, size = reference.layer_norm(reference.add(x, r).astype(float), 1.0, 0.0, EPSILON)
    difference = np.abs(of_exact - of_stored)
    assert (difference > reference.allowed_error("bfloat16", of_stored, size)).mean() > 0.5


def test_layer_norm_of_a_constant_row_is_beta(kernels: Kernels, dtype: str) -> None:
    for width in (1, 64, 1023, 8192):
        x = np.full((2, width), 3.25, DTYPES[dtype])
        gamma = np.full(width, 2.0, DTYPES[dtype])
        beta = np.linspace(-1, 1, width).astype(DTYPES[dtype])
        inputs, (y,) = place([x, gamma, beta], 1, "aligned")
        kernels.layer_norm(*inputs, y, EPSILON)
        np.testing.assert_array_equal(y.array, np.broadcast_to(beta, x.shape))


def test_layer_norm_of_subnormal_values_keeps_them(kernels: Kernels, dtype: str) -> None:
    tiny = float(np.finfo(np.float32).tiny) if dtype != "float16" else 2.0**-14
    x = (tiny * np.linspace(-0.5, 0.5, 64)).astype(DTYPES[dtype])[None]
    ones, zeros = np.ones(64, DTYPES[dtype]), np.zeros(64, DTYPES[dtype])
    inputs, (y, s) = place([x, np.zeros_like(x), ones, zeros], 2, "aligned")
    kernels.add_layer_norm(*inputs, y, s, 1e-12)
    np.testing.assert_array_equal(s.array, x)
    expected, _ = reference.layer_norm(x.astype(np.float64), 1.0, 0.0, 1e-12)
    assert_close(y.array, expected, np.abs(expected))


@pytest.mark.parametrize("form", FORMS)
def test_gelu_of_subnormal_values_is_half_of_them(kernels: Kernels, dtype: str, form: str) -> None:
    smallest = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}[dtype]
    x = (smallest * np.arange(-60, 61)).astype(DTYPES[dtype])[None]
    (tensor,), (y,) = place([x], 1, "aligned")
    kernels.gelu(tensor, y, form)
    half = x.astype(np.float64) / 2
    assert np.abs(y.array.astype(np.float64) - half).max() <= smallest / 2
    assert (y.array[0, ::2] == half[0, ::2]).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("width", [7, 768, 1023, 3072, 32768])
def test_layer_norm_of_a_row_with_a_bad_value_is_nan_and_only_that_row(
    kernels: Kernels, rng: Generator, dtype: str, width: int, bad: float
) -> None:
    x = draw(rng, (3, width), dtype)
    x[1, width // 2] = bad
    gamma, beta = draw(rng, (width,), dtype), draw(rng, (width,), dtype)
    inputs, (y,) = place([x, gamma, beta], 1, "aligned")
    kernels.layer_norm(*inputs, y, EPSILON)
    is_nan = np.isnan(y.array.astype(np.float64)).all(axis=1)
    assert is_nan.tolist() == [False, True, False]
    assert np.isfinite(y.array[[0, 2]].astype(np.float64)).all()


@pytest.mark.parametrize("form", FORMS)
def test_gelu_of_special_values_follows_torch(kernels: Kernels, dtype: str, form: str) -> None:
    torch = pytest.importorskip("torch")
    largest = float(torch.finfo(getattr(torch, dtype)).max)
    x = np.array([[np.inf, -np.inf, np.nan, largest, -largest, 0.0, -0.0, -30.0]], DTYPES[dtype])
    (tensor,), (y,) = place([x], 1, "aligned")
    kernels.gelu(tensor, y, form)
    wide = torch.tensor(x.astype(np.float64)).to(getattr(torch, dtype)).double()
    expected = torch.nn.functional.gelu(wide, approximate=form).numpy()
    actual = y.array.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
def test_gelu_over_its_whole_range_follows_the_formula(
    kernels: Kernels, dtype: str, form: str
) -> None:
    x = np.concatenate([np.linspace(-14, 14, 40001), np.geomspace(1e-30, 1e4, 2001)])
    check_gelu(kernels, x.astype(DTYPES[dtype])[None], form, "aligned")


@pytest.mark.parametrize("width", [33, 768, 3072, 16392])
def test_outputs_may_replace_activations(
    kernels: Kernels, rng: Generator, dtype: str, width: int
) -> None:
    x, r = draw(rng, (3, width), dtype), draw(rng, (3, width), dtype)
    gamma, beta = draw(rng, (width,), dtype), draw(rng, (width,), dtype)
    (tx, tr, tg, tb), (y, s) = place([x, r, gamma, beta], 2, "aligned")
    kernels.add_layer_norm(tx, tr, tg, tb, y, s, EPSILON)
    kernels.add_layer_norm(tx, tr, tg, tb, tr, tx, EPSILON)
    np.testing.assert_array_equal(tr.array, y.array)
    np.testing.assert_array_equal(tx.array, s.array)

    for run in (
        lambda source, target: kernels.layer_norm(source, tg, tb, target, EPSILON),
        lambda source, target: kernels.gelu(source, target, "tanh"),
        lambda source, target: kernels.bias_gelu(source, tg, target, "none"),
    ):
        (source,), (apart,) = place([x], 1, "aligned")
        run(source, apart)
        run(source, source)
        np.testing.assert_array_equal(source.array, apart.array)


@pytest.mark.parametrize("width", [768, 3072, 8193, 32768])
def test_results_do_not_depend_on_the_order_of_threads(
    kernels: Kernels, rng: Generator, dtype: str, width: int
) -> None:
    x = draw(rng, (5, width), dtype)
    gamma, beta = draw(rng, (width,), dtype), draw(rng, (width,), dtype)
    results = []
    for order in (0, 1, 2, 3, 4):
        kernels.schedule(order)
        inputs, (y,) = place([x, gamma, beta], 1, "aligned")
        kernels.layer_norm(*inputs, y, EPSILON)
        results.append(y.array.tobytes())
    assert len(set(results)) == 1


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


INVALID: dict[str, Callable[[Kernels, Tensor, Tensor], None]] = {
    "epsilon 0": lambda k, x, v: k.layer_norm(x, v, v, x, 0.0),
    "epsilon -1": lambda k, x, v: k.layer_norm(x, v, v, x, -1.0),
    "epsilon NaN": lambda k, x, v: k.add_layer_norm(x, x, v, v, x, x, float("nan")),
}


@pytest.mark.parametrize("what", INVALID)
def test_a_useless_epsilon_is_refused(kernels: Kernels, what: str) -> None:
    x, vector = Tensor((2, 8), "float32"), Tensor((8,), "float32")
    with pytest.raises(RuntimeError, match="1: invalid argument"):
        INVALID[what](kernels, x, vector)


@pytest.mark.parametrize("shape", [(1, 0), (1, 65537)])
def test_a_width_outside_the_limits_is_refused(kernels: Kernels, shape: tuple[int, int]) -> None:
    x, vector = Tensor(shape, "float16"), Tensor(shape[1:], "float16")
    with pytest.raises(RuntimeError, match="1: invalid argument"):
        kernels.layer_norm(x, vector, vector, x, EPSILON)
    with pytest.raises(RuntimeError, match="1: invalid argument"):
        kernels.bias_gelu(x, vector, x, "tanh")


@pytest.mark.parametrize("sizes", [(7, 0, 1, 8), (0, 9, 1, 8), (0, 0, -1, 8)])
def test_an_unknown_type_or_form_or_a_negative_count_is_refused(
    kernels: Kernels, sizes: tuple[int, int, int, int]
) -> None:
    dtype, form, rows, width = sizes
    call = kernels.library.andrea_bias_gelu
    assert call(dtype, form, None, None, None, c_int64(rows), c_int64(width), None) == 1
    assert kernels.library.andrea_gelu(dtype, form, None, None, c_int64(rows), None) == 1


def test_an_access_outside_the_declared_buffers_ends_the_launch(kernels: Kernels) -> None:
    """The watch itself works: a tensor that claims more rows than it has is caught."""
    short, vector, y = Tensor((1, 8), "float32"), Tensor((8,), "float32"), Tensor((2, 8), "float32")
    short.array = np.zeros((2, 8), np.float32)
    with pytest.raises(RuntimeError, match="700: an illegal memory access"):
        kernels.layer_norm(short, vector, vector, y, EPSILON)


def test_an_address_that_breaks_the_type_is_reported(kernels: Kernels) -> None:
    class Misaligned(Tensor):
        @property
        def address(self) -> int:
            return super().address + 2

    x, vector = Misaligned((1, 8), "float32"), Tensor((8,), "float32")
    with pytest.raises(RuntimeError, match="716: misaligned address"):
        kernels.layer_norm(x, vector, vector, Tensor((1, 8), "float32"), EPSILON)

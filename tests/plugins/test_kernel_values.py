"""What a table of sizes does not show: large means, subnormals, Inf and NaN, and repeatability."""

import numpy as np
import pytest

from tests.plugins import reference
from tests.plugins.kernel_calls import Kernels
from tests.plugins.kernel_checks import (
    EPSILON,
    FORMS,
    Generator,
    assert_close,
    check_add_layer_norm,
    check_gelu,
    draw,
    place,
)
from tests.plugins.reference import DTYPES


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

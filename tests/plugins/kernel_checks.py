"""One call of a kernel on random data, compared with the float64 formula."""

import numpy as np

from tests.plugins import reference
from tests.plugins.kernel_calls import Kernels, Tensor
from tests.plugins.reference import DTYPES

__all__ = [
    "EPSILON",
    "FORMS",
    "OFFSETS",
    "Array",
    "Generator",
    "assert_close",
    "check_add_layer_norm",
    "check_bias_gelu",
    "check_gelu",
    "check_layer_norm",
    "draw",
    "place",
]

# Elements from a 16-byte boundary, for all tensors or, the nastier case, for one of them.
OFFSETS = ("aligned", "all by one", "only the last")
FORMS = ("none", "tanh")
EPSILON = 1e-5

Generator = np.random.Generator
Array = np.ndarray


def draw(rng: Generator, shape: tuple[int, ...], dtype: str, scale: float = 2.0) -> Array:
    return (scale * rng.standard_normal(shape)).astype(DTYPES[dtype])


def offsets(count: int, which: str) -> list[int]:
    return {
        "aligned": [0] * count,
        "all by one": [1] * count,
        "only the last": [0] * (count - 1) + [1],
    }[which]


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

"""Calls that the C interface refuses, and proof that the watch over memory works."""

from collections.abc import Callable
from ctypes import c_int64

import numpy as np
import pytest

from tests.plugins.kernel_calls import Kernels, Tensor
from tests.plugins.kernel_checks import EPSILON

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

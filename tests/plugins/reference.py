"""What the ops compute, in float64, from the formulas alone; and how far a result may be off."""

import math

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "add", "allowed_error", "gelu", "layer_norm"]

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

# Half a unit in the last place: what rounding the exact result to the type may cost.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# What is lost at the bottom: half the smallest subnormal of float16; and for the others what the
# GPU's fast reciprocal makes zero, some 2^-126.
BOTTOM = {"float32": 2.0**-122, "float16": 2.0**-25, "bfloat16": 2.0**-122}
# What float32 arithmetic inside may add, relative to the size of the terms: 24 roundings, of which
# the fit of erf in half precision takes 20 (gelu_math.cuh).
ARITHMETIC = 24 * 2.0**-24

Floats = NDArray[np.float64]

_erfc = np.vectorize(math.erfc, otypes=[float])


def layer_norm(x: Floats, gamma: Floats, beta: Floats, epsilon: float) -> tuple[Floats, Floats]:
    """gamma * (x - mean) / sqrt(var + epsilon) + beta over the last axis, and the terms' size."""
    with np.errstate(invalid="ignore"):
        deviation = x - x.mean(-1, keepdims=True)
        variance = (deviation**2).mean(-1, keepdims=True)
        scaled = gamma * deviation / np.sqrt(variance + epsilon)
    return scaled + beta, np.abs(scaled) + np.abs(beta) + np.abs(gamma)


def gelu(x: Floats, approximate: str) -> tuple[Floats, Floats]:
    """x * Phi(x), or its tanh approximation as a logistic, which has no cancellation.

    The second value is |y| times the condition of the exponential inside: rounding its argument
    once, in float32, changes the left tail by that many roundings.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if approximate == "tanh":
            argument = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            y = x / (1 + np.exp(-argument))
            condition = np.abs(argument)
        else:
            y = x * 0.5 * _erfc(-x / math.sqrt(2)) if x.size else x
            condition = x**2
        return y, np.where(y == 0, 0, np.abs(y) * (1 + condition))


def add(x: NDArray[np.generic], r: NDArray[np.generic]) -> NDArray[np.generic]:
    """x + r rounded once to their type (float64 holds such a sum exactly enough)."""
    return (x.astype(np.float64) + r.astype(np.float64)).astype(x.dtype)


def allowed_error(dtype: str, expected: Floats, size: Floats) -> Floats:
    """Correct rounding, plus the arithmetic inside, plus what a subnormal result may lose."""
    return 1.001 * ROUNDING[dtype] * np.abs(expected) + ARITHMETIC * size + BOTTOM[dtype]

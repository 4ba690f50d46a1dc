"""Looking for NaN and Inf in views of every kind: the right count, and no copy of the weights."""

import tracemalloc

import numpy as np
import pytest

from andrea_model.checkpoint.checks import find_nonfinite

ROWS, COLUMNS = 1500, 900
FUSED = np.zeros((ROWS, 3 * COLUMNS), np.float32)  # as GPT-2's c_attn: q, k and v side by side

VIEWS = {
    "whole": FUSED,
    "transposed": FUSED.T,
    "q": FUSED[:, :COLUMNS],
    "k": FUSED[:, COLUMNS : 2 * COLUMNS],
    "v": FUSED[:, 2 * COLUMNS :],
    "k of nn.Linear": FUSED.T[COLUMNS : 2 * COLUMNS],
    "k of nn.Linear, transposed": FUSED.T[COLUMNS : 2 * COLUMNS].T,
    "k transposed": FUSED[:, COLUMNS : 2 * COLUMNS].T,
    "every second row": FUSED[::2],
    "backwards": FUSED[::-1],
    "bias": FUSED[0, COLUMNS : 2 * COLUMNS],
    "column": FUSED[:, 5],
}


@pytest.mark.parametrize("name", VIEWS)
def test_find_nonfinite_when_the_view_has_gaps_then_every_value_is_counted_once(name: str) -> None:
    dice = np.random.default_rng(0)
    FUSED[...] = 0
    FUSED.reshape(-1)[dice.choice(FUSED.size, 20_000, replace=False)] = np.nan
    FUSED[-1, -1] = np.inf
    view = VIEWS[name]
    wanted = int(np.count_nonzero(~np.isfinite(view)))
    assert wanted > 0
    assert find_nonfinite({name: view}) == {name: wanted}


@pytest.mark.parametrize("name", VIEWS)
def test_find_nonfinite_when_the_view_has_gaps_then_nothing_is_copied(name: str) -> None:
    """Only the flags of one chunk: 262,144 bytes, whatever the size of the tensor."""
    tracemalloc.start()
    try:
        find_nonfinite({name: VIEWS[name]})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 600_000

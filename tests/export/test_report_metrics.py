"""Figures against hand-computed cases and against numpy formulas written out here."""

import json
import math

import numpy as np
import pytest

from andrea_export.report.metrics import Accumulator, ReferenceWindow


def figures(reference, candidate, targets=None, baseline=None):
    """Of one window; logits as nested lists or arrays [N, V]."""
    window = ReferenceWindow(
        np.array(reference, np.float64), None if targets is None else np.array(targets, np.int64)
    )
    total = Accumulator()
    total.add(window, np.array(candidate, np.float32), baseline)
    return total.figures()


def log_softmax(logits):
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


@pytest.fixture
def random():
    return np.random.default_rng(0)


def test_errors_by_hand():
    found = figures([[3.0, 4.0], [0.0, 0.0]], [[3.0, 4.5], [0.0, -1.0]])
    assert found.max_abs_error == 1.0
    assert found.rms_abs_error == pytest.approx(math.sqrt((0.25 + 1.0) / 4), rel=1e-15)
    assert found.reference_rms == pytest.approx(math.sqrt(25 / 4), rel=1e-15)
    assert found.max_error == pytest.approx(1.0 / 2.5, rel=1e-15)
    assert found.rms_error == pytest.approx(math.sqrt(1.25 / 25), rel=1e-15)


def test_kl_by_hand():
    # Probabilities 1/2, 1/2 against 3/4, 1/4.
    found = figures([[0.0, 0.0]], np.float32([[math.log(3), 0.0]]))
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert found.kl_mean == pytest.approx(expected, rel=1e-7)  # log 3 is a float32
    assert found.kl_max == found.kl_mean


def test_perplexity_by_hand():
    # The token that came has probability 1/4 in one position and 1 in the other (nearly).
    found = figures([[0.0, math.log(3)], [900.0, 0.0]], [[0.0, 0.0], [900.0, 0.0]], targets=[0, 0])
    assert found.reference_perplexity == pytest.approx(2.0, rel=1e-12)
    assert found.perplexity == pytest.approx(math.sqrt(2), rel=1e-12)
    assert found.loss_change == pytest.approx(math.log(2) / 2, rel=1e-12)


def test_every_figure_agrees_with_numpy(random):
    reference = random.standard_normal((50, 31)) * 4
    candidate = (reference + random.standard_normal((50, 31)) * 0.3).astype(np.float32)
    targets = random.integers(0, 31, 50)
    found = figures(reference, candidate, targets)
    p, q = log_softmax(reference), log_softmax(candidate.astype(np.float64))
    kl = (np.exp(p) * (p - q)).sum(axis=-1)
    error, rms = candidate - reference, np.sqrt((reference**2).mean())
    loss, own_loss = (-each[np.arange(50), targets].mean() for each in (q, p))
    expected = {
        "max_error": np.abs(error).max() / rms,
        "rms_error": np.sqrt((error**2).mean()) / rms,
        "kl_mean": kl.mean(),
        "kl_max": kl.max(),
        "top1_disagreement": (candidate.argmax(-1) != reference.argmax(-1)).mean(),
        "perplexity": np.exp(loss),
        "reference_perplexity": np.exp(own_loss),
        "loss_change": abs(loss - own_loss),
    }
    assert expected["top1_disagreement"] > 0
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-12), name


def test_windows_add_up_to_one_data_set(random):
    reference = random.standard_normal((40, 7))
    candidate = (reference + random.standard_normal((40, 7)) * 0.1).astype(np.float32)
    targets = random.integers(0, 7, 40)
    total = Accumulator()
    for rows in (slice(0, 3), slice(3, 24), slice(24, 40)):
        total.add(ReferenceWindow(reference[rows], targets[rows]), candidate[rows])
    whole = figures(reference, candidate, targets)
    for name, value in total.figures().to_dict().items():
        assert value == pytest.approx(getattr(whole, name), rel=1e-12), name


def test_a_tiny_kl_keeps_its_digits(random):
    """KL ≈ var(δ)/2 for small δ: at 1e-7 it is 1e-14, where a careless sum would only be noise."""
    reference = random.standard_normal((4, 5000))
    delta = random.standard_normal((4, 5000)) * 1e-7
    window, total = ReferenceWindow(reference), Accumulator()
    total.add(window, reference + delta)
    p = np.exp(log_softmax(reference))
    variance = (p * delta**2).sum(-1) - (p * delta).sum(-1) ** 2
    assert total.figures().kl_mean == pytest.approx(variance.mean() / 2, rel=0.1)


def test_kl_is_never_negative(random):
    reference = random.standard_normal((100, 50)) * 10
    total = Accumulator()
    total.add(ReferenceWindow(reference), reference + 1e-15)
    assert total.figures().kl_mean >= 0.0


def test_huge_logits_do_not_overflow():
    found = figures([[1e4, -1e4]], [[-1e4, 1e4]], targets=[0])
    assert found.kl_mean == pytest.approx(2e4)
    assert found.perplexity == math.inf
    assert found.to_dict()["perplexity"] is None


def test_ties_go_to_the_lowest_id_on_both_sides():
    agree = figures([[1.0, 5.0, 5.0]], [[0.0, 7.0, 7.0]])
    differ = figures([[1.0, 5.0, 4.0]], [[7.0, 7.0, 0.0]])
    assert (agree.top1_disagreement, differ.top1_disagreement) == (0.0, 1.0)


def test_a_broken_position_is_counted_and_left_out_of_all_else(random):
    reference = random.standard_normal((10, 6))
    candidate = (reference + 0.01 * random.standard_normal((10, 6))).astype(np.float32)
    targets = random.integers(0, 6, 10)
    broken = candidate.copy()
    broken[2, 1], broken[2, 4], broken[7, 0], broken[7, 5] = np.nan, np.nan, np.inf, -np.inf
    found = figures(reference, broken, targets)
    assert (found.positions, found.broken_positions) == (10, 2)
    assert (found.nan_count, found.inf_count, found.new_nonfinite) == (2, 2, 4)
    rest = np.delete(np.arange(10), [2, 7])
    sound = figures(reference[rest], candidate[rest], targets[rest])
    for name in ("max_error", "rms_error", "kl_mean", "top1_disagreement", "loss_change"):
        assert getattr(found, name) == pytest.approx(getattr(sound, name), rel=1e-12), name


def test_only_nan_that_the_baseline_lacks_is_new():
    baseline = np.float32([[np.nan, 0.0], [0.0, 0.0], [np.inf, 0.0]])
    candidate = [[np.nan, np.nan], [0.0, np.inf], [np.nan, 0.0]]
    found = figures(np.zeros((3, 2)), candidate, baseline=baseline)
    assert (found.nan_count, found.inf_count, found.new_nonfinite) == (3, 1, 2)


def test_where_every_position_is_broken_no_figure_is_invented():
    found = figures([[1.0, 2.0]], [[np.nan, 2.0]], targets=[0])
    assert found.is_empty
    assert math.isnan(found.max_error)
    assert math.isnan(found.kl_mean)
    assert found.perplexity is None
    assert "NaN" not in json.dumps(found.to_dict(), allow_nan=False)


def test_a_perfect_candidate_has_no_error():
    found = figures([[1.0, 2.0]], [[1.0, 2.0]], targets=[1])
    names = ("max_error", "rms_error", "kl_mean", "top1_disagreement", "loss_change")
    assert [getattr(found, name) for name in names] == [0.0] * 5


def test_any_error_beside_a_reference_of_zeros_is_infinite():
    assert figures([[0.0, 0.0]], [[0.0, 1e-9]]).max_error == math.inf

"""The rule of the verdict, on figures made by hand."""

import dataclasses
import math

import pytest

from andrea_export.report.metrics import Figures
from andrea_export.report.texts import EvaluationData
from andrea_export.report.tolerance import TOLERANCE, allowed, judge, ratios
from andrea_export.report.validation import Row, Validation

CLEAN = Figures(
    positions=2000,
    broken_positions=0,
    nan_count=0,
    inf_count=0,
    new_nonfinite=0,
    max_abs_error=1e-3,
    rms_abs_error=1e-4,
    reference_rms=1.0,
    max_error=1e-3,
    rms_error=1e-3,
    kl_mean=1e-7,
    kl_max=1e-6,
    top1_disagreement=0.0,
    perplexity=20.0,
    reference_perplexity=20.0,
    loss_change=1e-6,
)


def make(**changes):
    return dataclasses.replace(CLEAN, **changes)


def failed(figures, baseline=CLEAN, dtype="fp16"):
    return [(failure.figure, failure.kind) for failure in judge(figures, baseline, dtype)]


def test_what_is_as_good_as_the_baseline_passes():
    assert failed(CLEAN) == []


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", TOLERANCE["fp32"])
def test_over_the_absolute_limit_fails_even_beside_a_worse_baseline(dtype, name):
    limit = TOLERANCE[dtype][name].absolute
    tiny = dict.fromkeys(TOLERANCE[dtype], 0.0)
    bad = make(**tiny | {name: limit * 1.01})
    assert failed(bad, make(rms_abs_error=1e-9, **{name: limit * 10}), dtype) == [
        (name, "absolute")
    ]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", TOLERANCE["fp32"])
def test_over_the_ratio_and_the_floor_fails(dtype, name):
    limit = TOLERANCE[dtype][name]
    # Large data, where chance plays no part; the baseline just above the floor.
    own = limit.floor * 1.5
    baseline = make(positions=10**9, rms_abs_error=1e-9, **{name: own})
    quiet = dict.fromkeys(TOLERANCE[dtype], 0.0)
    assert limit.ratio * own < limit.absolute, "the ratio has nothing to say"
    over = make(**quiet | {name: limit.ratio * own * 1.01})
    under = make(**quiet | {name: limit.ratio * own * 0.99})
    assert failed(over, baseline, dtype) == [(name, "ratio")]
    assert failed(under, baseline, dtype) == []


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", TOLERANCE["fp32"])
def test_any_ratio_passes_below_the_floor(dtype, name):
    quiet = dict.fromkeys(TOLERANCE[dtype], 0.0)
    below = make(**quiet | {name: TOLERANCE[dtype][name].floor * 0.99})
    assert failed(below, make(positions=10**9, **{name: 0.0}), dtype) == []


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_floors_lie_under_absolute_limits(dtype):
    for name, limit in TOLERANCE[dtype].items():
        assert 0 < limit.floor < limit.absolute, name
        assert limit.ratio > 1, name


def test_a_nonfinite_logit_that_the_baseline_lacks_fails():
    assert failed(make(new_nonfinite=1, nan_count=1, broken_positions=1)) == [
        ("new_nonfinite", "nonfinite")
    ]


def test_a_nonfinite_logit_that_the_baseline_has_too_does_not():
    both = make(nan_count=7, broken_positions=1, new_nonfinite=0)
    assert failed(both, both) == []


@pytest.mark.parametrize(("own", "most"), [(0, 4), (2, 8), (3, 11)])  # n + 4·sqrt(n + 1)
def test_flipped_tokens_are_a_count_that_scatters(own, most):
    baseline = make(positions=400, top1_disagreement=own / 400)
    assert failed(make(positions=400, top1_disagreement=most / 400), baseline) == []
    assert failed(make(positions=400, top1_disagreement=(most + 1) / 400), baseline) == [
        ("top1_disagreement", "ratio")
    ]


def test_a_text_of_twenty_tokens_may_flip_four_and_not_five():
    short = make(positions=20)
    assert failed(make(positions=20, top1_disagreement=4 / 20), short) == []
    assert failed(make(positions=20, top1_disagreement=5 / 20), short) == [
        ("top1_disagreement", "absolute")
    ]


def test_the_loss_of_a_single_token_may_move_as_much_as_its_logits():
    one = make(positions=1, rms_abs_error=1e-2)
    assert allowed("loss_change", one, "fp16") == pytest.approx(4 * math.sqrt(2) * 1e-2)


def test_without_text_the_loss_is_not_judged():
    none = make(perplexity=None, reference_perplexity=None, loss_change=None)
    assert failed(none, none) == []
    assert ratios(none, none)["loss_change"] is None


def test_a_failure_says_figure_value_limit_and_by_how_much():
    (absolute,) = judge(make(max_error=0.5), make(max_error=0.4), "fp16")
    assert str(absolute) == "max_error 0.5 is 2.5 times the limit 0.2"
    (ratio,) = judge(make(rms_error=0.004), make(rms_error=0.002), "fp16")
    assert str(ratio) == "rms_error 0.004 is over 0.003: torch's own in this dtype is 0.002"
    (broken,) = judge(make(new_nonfinite=5), CLEAN, "fp16")
    assert str(broken) == "5 logits are NaN or Inf where torch's are finite"


def row(*, failures=(), error=None, executes_dtype=True):
    return Row("row", executes_dtype, None, CLEAN, {"rms_error": 1.0}, failures, error, 0.0)


def verdict(*rows):
    data = EvaluationData("text", True, ())
    return Validation("ckpt", "dir", "fp16", data, 20.0, CLEAN, None, rows, ())


BAD = judge(make(new_nonfinite=1), CLEAN, "fp16")


@pytest.mark.parametrize(
    ("rows", "exit_code"),
    [
        ([row()], 0),
        ([row(), row(executes_dtype=False)], 0),
        ([row(), row(failures=BAD)], 1),
        ([row(), row(error="crashed")], 2),
        ([row(executes_dtype=False)], 2),
        ([row(error="crashed"), row(failures=BAD)], 1),
        ([row(error="crashed after a bad window", failures=BAD)], 1),
    ],
)
def test_one_outranks_two_and_only_the_dtype_itself_earns_a_zero(rows, exit_code):
    assert verdict(*rows).exit_code == exit_code

"""Two reports: what counts as worse."""

import copy

import pytest

from andrea_export.errors import InputError
from andrea_export.report.diff import diff_reports

FIGURES = {"rms_error": 1e-3, "max_error": 1e-2, "kl_mean": 1e-6, "kl_max": 1e-4,
           "new_nonfinite": 0}  # fmt: skip
FLOORS = {"rms_error": 5e-4, "max_error": 5e-3, "kl_mean": 5e-7, "kl_max": 5e-5}


def make(**figures):
    result = {"data": "text", "figures": FIGURES | figures}
    way = {"label": "CPU", "status": "within tolerance", "sets": [result]}
    candidate = {"name": "a", "dtype": "fp16", "status": "within tolerance", "ways": [way]}
    limits = {name: {"absolute": 1.0, "ratio": 2.0, "floor": floor}
              for name, floor in FLOORS.items()}  # fmt: skip
    return {
        "checkpoint": {"sha256": "1"},
        "data": [],
        "tolerance": {"limits": {"fp16": limits}},
        "candidates": [candidate],
    }


def regressions(before, after):
    return [change.what for change in diff_reports(before, after).regressions]


def test_a_report_against_itself_shows_nothing():
    difference = diff_reports(make(), make())
    assert (difference.changes, difference.notes, difference.exit_code) == ((), (), 0)


@pytest.mark.parametrize("figure", FLOORS)
def test_ten_times_the_error_is_a_regression_and_the_other_way_none(figure):
    worse = make(**{figure: 10 * FIGURES[figure]})
    assert regressions(make(), worse) == [figure]
    difference = diff_reports(worse, make())
    assert difference.exit_code == 0
    assert [change.what for change in difference.changes] == [figure]


@pytest.mark.parametrize("figure", FLOORS)
def test_the_scatter_of_honest_exports_is_none(figure):
    assert regressions(make(), make(**{figure: 1.3 * FIGURES[figure]})) == []


def test_below_the_floor_nothing_matters():
    assert regressions(make(rms_error=1e-6), make(rms_error=4e-4)) == []


def test_a_new_nan_is_one():
    assert regressions(make(), make(new_nonfinite=3)) == ["nonfinite"]


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("within tolerance", "could not judge", True),
        ("within tolerance", "out of tolerance", True),
        ("could not judge", "out of tolerance", True),
        ("out of tolerance", "within tolerance", False),
    ],
)
def test_a_worse_status_is_one(before, after, worse):
    old, new = make(), make()
    old["candidates"][0]["status"], new["candidates"][0]["status"] = before, after
    difference = diff_reports(old, new)
    assert difference.exit_code == int(worse)
    assert str(difference.changes[0]) == f"a: status {before} → {after}"


def test_what_is_gone_is_one_and_what_is_new_is_not():
    both, one = make(), make()
    second = copy.deepcopy(both["candidates"][0]) | {"name": "b"}
    both["candidates"].append(second)
    assert regressions(both, one) == ["missing"]
    assert regressions(one, both) == []
    no_way = make()
    no_way["candidates"][0]["ways"] = []
    assert regressions(make(), no_way) == ["missing"]
    no_set = make()
    no_set["candidates"][0]["ways"][0]["sets"] = []
    assert regressions(make(), no_set) == ["missing"]


def test_a_candidate_that_is_there_twice_is_compared_twice():
    old = make()
    old["candidates"] *= 2
    new = make()
    new["candidates"] = [make(rms_error=1.0)["candidates"][0], *new["candidates"]]
    difference = diff_reports(old, new)
    assert [(each.candidate, each.what) for each in difference.changes] == [("a", "rms_error")]
    new["candidates"].reverse()
    (change,) = diff_reports(old, new).regressions
    assert (change.candidate, change.what) == ("a (2)", "rms_error")


def test_a_figure_that_is_gone_is_one_and_one_that_is_back_is_not():
    assert regressions(make(), make(kl_mean=None)) == ["kl_mean"]
    assert regressions(make(kl_mean=None), make()) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: report.pop("candidates"),
        lambda report: report.update(candidates=3),
        lambda report: report["candidates"][0].pop("ways"),
        lambda report: report["candidates"][0].update(status="fine"),
        lambda report: report["candidates"][0].update(dtype="fp8"),
        lambda report: report["candidates"][0]["ways"][0]["sets"][0]["figures"].pop("kl_max"),
        lambda report: report["candidates"][0]["ways"][0]["sets"][0]["figures"].update(kl_max="1"),
    ],
)
def test_a_damaged_report_is_refused(spoil):
    damaged = make()
    spoil(damaged)
    with pytest.raises(InputError, match="damaged, it lacks what"):
        diff_reports(damaged, make())


def test_single_candidates_are_compared_whatever_their_names():
    other = make(rms_error=1.0)
    other["candidates"][0]["name"] = "release-2"
    assert regressions(make(), other) == ["rms_error"]


def test_reports_that_share_no_candidate_are_refused():
    old, new = make(), make()
    for report, names in ((old, "ab"), (new, "cd")):
        report["candidates"] = [report["candidates"][0] | {"name": name} for name in names]
    with pytest.raises(InputError, match="no candidate in common"):
        diff_reports(old, new)


def test_what_makes_reports_incomparable_is_said():
    other = make()
    other["checkpoint"]["sha256"] = "2"
    other["data"] = [{"name": "text"}]
    other["tolerance"] = copy.deepcopy(other["tolerance"])
    other["tolerance"]["limits"]["fp16"]["rms_error"]["ratio"] = 9
    assert diff_reports(make(), other).notes == (
        "the reports are of different checkpoints",
        "the reports were made on different data",
        "the reports were judged by different tolerances",
    )

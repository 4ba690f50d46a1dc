"""Two reports held against each other: what has become worse from one release to the next?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from andrea_export.errors import InputError

__all__ = ["Change", "Difference", "diff_reports"]

STATUS_RANK = {"within tolerance": 0, "could not judge": 1, "out of tolerance": 2}
# A figure has become worse when it is above the floor of the tolerance and more than so many times
# what it was. Two honest exports of one model differ by at most 1.42, 2.5, 2.2 and 5.9 (from the
# spread of 240, beside `TOLERANCE`).
FACTORS = {"rms_error": 1.5, "max_error": 3.0, "kl_mean": 2.5, "kl_max": 9.0}


@dataclass(frozen=True)
class Change:
    """One thing that differs.

    Attributes:
        candidate, way, data: where; way and data are None for the candidate as a whole.
        what: "status", "missing", "added", "nonfinite", or a figure's name.
        before, after: the two values.
        regression: whether it became worse.
    """

    candidate: str
    way: str | None
    data: str | None
    what: str
    before: Any
    after: Any
    regression: bool

    def __str__(self) -> str:
        where = " · ".join(each for each in (self.candidate, self.way, self.data) if each)
        return f"{where}: {self.what} {_value(self.before)} → {_value(self.after)}"


@dataclass(frozen=True)
class Difference:
    """All changes, regressions first; notes say why the reports may not be comparable."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.regression)

    @property
    def exit_code(self) -> int:
        return 1 if self.regressions else 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "exit_code": self.exit_code,
            "regressions": len(self.regressions),
            "changes": [asdict(change) for change in self.changes],
            "notes": list(self.notes),
        }


def diff_reports(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    """What has changed from one report to a later one (both the values of a `report.json`).

    Candidates are paired by name (those of one name in their order); where each report has a single
    one, with each other. Regressions are a worse status, a candidate, a way or a figure that is
    gone, a new NaN, and a figure beyond the scatter of honest exports.

    Raises:
        InputError: the reports have no candidate in common, or one lacks what its schema promises.
    """
    try:
        return _difference(before, after)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise InputError(
            f"one of the reports is damaged, it lacks what docs/report-schema.json promises: "
            f"{error!r}"
        ) from error


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    pairs = _pairs(before, after)
    if not any(old and new for _, old, new in pairs):
        names = [[each["name"] for each in report["candidates"]] for report in (before, after)]
        raise InputError(f"the reports have no candidate in common: {names[0]} and {names[1]}")
    changes: list[Change] = []
    for name, old, new in pairs:
        changes += _candidate_changes(name, old, new, before)
    changes.sort(key=lambda change: not change.regression)
    return Difference(tuple(changes), tuple(_notes(before, after)))


def _pairs(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]]:
    old, new = _by_name(before), _by_name(after)
    if len(old) == len(new) == 1:
        [before_alone], [(name, after_alone)] = old.values(), new.items()
        return [(name, before_alone, after_alone)]
    return [(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]


def _by_name(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Candidates by name; one that a report judges twice has a number behind its second name."""
    found: dict[str, Mapping[str, Any]] = {}
    seen = Counter[str]()
    for each in report["candidates"]:
        name = each["name"]
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} ({seen[name]})"] = each
    return found


def _candidate_changes(
    name: str,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
    before: Mapping[str, Any],
) -> Iterator[Change]:
    if old is None or new is None:
        present = old or new
        assert present is not None
        gone = new is None
        values = (present["status"], None) if gone else (None, present["status"])
        yield Change(name, None, None, "missing" if gone else "added", values[0], values[1], gone)
        return
    if old["status"] != new["status"]:
        worse = STATUS_RANK[new["status"]] > STATUS_RANK[old["status"]]
        yield Change(name, None, None, "status", old["status"], new["status"], worse)
    limits = before["tolerance"]["limits"][old["dtype"]]
    ways = {way["label"]: way for way in new["ways"]}
    for way in old["ways"]:
        if way["label"] not in ways:
            yield Change(name, way["label"], None, "missing", way["status"], None, regression=True)
            continue
        yield from _way_changes(name, way, ways[way["label"]], limits)


def _way_changes(
    name: str, old: Mapping[str, Any], new: Mapping[str, Any], limits: Mapping[str, Any]
) -> Iterator[Change]:
    label = old["label"]
    if old["status"] != new["status"]:
        worse = STATUS_RANK[new["status"]] > STATUS_RANK[old["status"]]
        yield Change(name, label, None, "status", old["status"], new["status"], worse)
    later = {result["data"]: result["figures"] for result in new["sets"]}
    for result in old["sets"]:
        data, figures = result["data"], result["figures"]
        if data not in later:
            yield Change(name, label, data, "missing", "judged", None, regression=True)
            continue
        counts = figures["new_nonfinite"], later[data]["new_nonfinite"]
        if counts[0] != counts[1]:
            yield Change(name, label, data, "nonfinite", *counts, regression=counts[1] > counts[0])
        for figure, factor in FACTORS.items():
            earlier, now = figures[figure], later[data][figure]
            if earlier is None or now is None:
                if earlier != now:  # null: there was nothing left to measure, or it was infinite
                    yield Change(name, label, data, figure, earlier, now, regression=now is None)
                continue
            floor = limits[figure]["floor"]
            if now > max(factor * earlier, floor):
                yield Change(name, label, data, figure, earlier, now, regression=True)
            elif earlier > max(factor * now, floor):
                yield Change(name, label, data, figure, earlier, now, regression=False)


def _notes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if before["checkpoint"]["sha256"] != after["checkpoint"]["sha256"]:
        yield "the reports are of different checkpoints"
    if before["data"] != after["data"]:
        yield "the reports were made on different data"
    if before["tolerance"]["limits"] != after["tolerance"]["limits"]:
        yield "the reports were judged by different tolerances"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)

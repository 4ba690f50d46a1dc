"""A report as Markdown: the verdict and the tables, for a pull request or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from andrea_export.report.values import MARKS, text_result

__all__ = ["render_markdown"]

MOST_FAILURES = 12


def render_markdown(report: Mapping[str, Any]) -> str:
    """The values of a `report.json` as Markdown, at the depth of a summary."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    checkpoint, verdict = report["checkpoint"], report["verdict"]
    yield f"# Numerical report: {_text(checkpoint['name'])}"
    yield ""
    yield f"**{MARKS[verdict['status']]} {_text(verdict['sentence'])}**"
    yield ""
    text = _text(report["data"][0]["description"])
    yield f"{text}; × is how many times torch's own in the same dtype."
    yield ""
    yield from _table(
        ["candidate", "runs on", "verdict", "RMS error", "×", "KL mean", "top-1 differs",
         "perplexity", "leaves the model at"],
        list(_summary(report)),
    )  # fmt: skip
    for warning in report["warnings"]:
        yield f"\n- Note: {_text(warning)}"
    for candidate in report["candidates"]:
        yield from _candidate(candidate, report)
    yield ""
    yield "## Data"
    yield ""
    yield from _table(
        ["name", "what", "positions"],
        [
            [each["name"], _text(each["description"]), str(each["positions"])]
            for each in report["data"]
        ],
    )
    yield ""
    yield "## Provenance"
    yield ""
    versions = report["environment"]["versions"]
    yield f"- checkpoint sha256 `{checkpoint['sha256']}`"
    yield "- versions: " + ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"- {report['environment']['processor']}, {report['environment']['cores']} cores"
    if report["command"]:
        yield f"- command: {_text(report['command'])}"
    yield f"- {report['created']}, {report['timing']['total_seconds']} s"


def _summary(report: Mapping[str, Any]) -> Iterator[list[str]]:
    for candidate in report["candidates"]:
        if not candidate["ways"]:
            yield [_text(candidate["name"]), "–", "? could not judge", *["–"] * 6]
        for way in candidate["ways"]:
            status = f"{MARKS[way['status']]} {way['status']}"
            if not way["executes_dtype"] and way["status"] == "within tolerance":
                status += " (no proof)"
            result = text_result(report, way)
            figures, ratios = (result["figures"], result["ratios"]) if result else ({}, {})
            differs = figures.get("top1_disagreement")
            yield [
                _text(candidate["name"]),
                way["label"],
                status,
                _number(figures.get("rms_error")),
                _number(ratios.get("rms_error")),
                _number(figures.get("kl_mean")),
                "–" if differs is None else f"{100 * differs:.2f} %",
                _number(figures.get("perplexity"), ".5g"),
                _place(way),
            ]


def _place(way: Mapping[str, Any]) -> str:
    if way["layers"] is None:
        return "not seen"
    departure = way["layers"]["departure"]
    return f"`{departure['name']}`" if departure else "nowhere"


def _candidate(candidate: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"## {_text(candidate['name'])}"
    yield ""
    yield f"{MARKS[candidate['status']]} {_text(candidate['sentence'])}"
    yield ""
    for warning in candidate["warnings"]:
        yield f"- Note: {_text(warning)}"
    for way in candidate["ways"]:
        failures = way["failures"]
        for failure in failures[:MOST_FAILURES]:
            yield f"- {way['label']}: {_text(failure)}"
        if len(failures) > MOST_FAILURES:
            yield f"- {way['label']}: and {len(failures) - MOST_FAILURES} more"
        for note in way["notes"]:
            yield f"- {way['label']}: {_text(note)}"
        if way["error"] and not way["crashed"]:
            yield f"- {way['label']}: could not judge: {_text(way['error'])}"
        for name, reason in way["skipped"].items():
            yield f"- {way['label']}: {name} left out: {_text(reason)}"
    rounded = report["rounded_weights"].get(candidate["dtype"])
    if rounded:
        yield (
            f"- rounding the weights to {candidate['dtype']} alone explains "
            f"{_number(rounded['rms_error'])} of RMS error"
        )
    for way in candidate["ways"]:
        if not way["sets"]:
            continue
        yield ""
        yield from _table(
            [way["label"], "max error", "RMS error", "×", "KL mean", "KL p99", "KL max",
             "top-1 differs", "NaN, Inf"],
            [_set_row(result) for result in way["sets"]],
        )  # fmt: skip
    bisection = candidate["bisection"]
    if bisection:
        yield ""
        yield f"Bisection: {_text(bisection['sentence'])}"


def _set_row(result: Mapping[str, Any]) -> list[str]:
    figures = result["figures"]
    differs = figures["top1_disagreement"]
    mark = " ✗" if result["failures"] else ""
    return [
        result["data"] + mark,
        _number(figures["max_error"]),
        _number(figures["rms_error"]),
        _number(result["ratios"].get("rms_error")),
        _number(figures["kl_mean"]),
        _number(figures["kl_p99"]),
        _number(figures["kl_max"]),
        "–" if differs is None else f"{100 * differs:.2f} %",
        str(figures["nan_count"] + figures["inf_count"]),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _text(value: str) -> str:
    """Text from outside, in one line and without a meaning in Markdown."""
    return re.sub(r"([\\`*\[\]<>|$])", r"\\\1", " ".join(value.split()))


def _number(value: float | None, form: str = ".3g") -> str:
    return "–" if value is None else format(value, form)

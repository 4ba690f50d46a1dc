"""From a report's values to one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from andrea_export.report.page.drawing import Chart, Drawing
from andrea_export.report.page.layer_charts import growth, heatmap
from andrea_export.report.page.text_charts import agreement, divergence, perplexity
from andrea_export.report.values import MARKS, short_name, short_names, text_result

__all__ = ["render_html"]

FOLDER = Path(__file__).parent
MOST_BYTES = 2_000_000
MOST_LETTERS = 40  # of a name where there is little room
SHOWN_FIRST = ("out of tolerance", "could not judge", "within tolerance")
CSS = {"within tolerance": "good", "out of tolerance": "bad", "could not judge": "unknown"}
VISIBLE = {"\n": "⏎", "\t": "⇥", " ": "␣"}


def render_html(report: Mapping[str, Any]) -> str:
    """The page of a report, given as the values of its `report.json`.

    It stays within 2 MB: of very many candidates, those that matter most are shown in detail.
    """
    page = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    page.filters.update(FILTERS, on_text=lambda way: text_result(report, way))
    template = page.get_template("page.html.jinja")
    names = short_names([candidate["name"] for candidate in report["candidates"]])
    candidates = [
        dict(candidate, number=number, short=short_name(names[candidate["name"]], MOST_LETTERS))
        for number, candidate in enumerate(report["candidates"])
    ]
    drawing = Drawing()
    overview = perplexity(drawing, report)
    charts = _charts_of_most(drawing, candidates, report)

    def render(count: int) -> str:
        return template.render(
            report=dict(report, candidates=candidates),
            css=Markup((FOLDER / "page.css").read_text("utf-8")),
            perplexity=overview,
            charts=dict(charts[:count]),
        )

    whole = render(len(charts))
    if _size(whole) <= MOST_BYTES:
        return whole
    fitting = bisect_right(range(len(charts)), MOST_BYTES, key=lambda count: _size(render(count)))
    return render(max(fitting - 1, 0))


def _charts_of_most(
    drawing: Drawing, candidates: Sequence[Mapping[str, Any]], report: Mapping[str, Any]
) -> list[tuple[int, list[Chart]]]:
    """Pictures by a candidate's number, what failed first, until they alone would fill a page."""
    found: list[tuple[int, list[Chart]]] = []
    drawn = 0
    for candidate in sorted(candidates, key=lambda each: SHOWN_FIRST.index(each["status"])):
        charts = _charts(drawing, candidate, report)
        drawn += sum(_size(chart.svg) for chart in charts)
        if drawn > MOST_BYTES:
            break
        found.append((candidate["number"], charts))
    return found


def _size(text: str) -> int:
    return len(text.encode())


def _charts(
    drawing: Drawing, candidate: Mapping[str, Any], report: Mapping[str, Any]
) -> list[Chart]:
    baseline = report["baselines"].get(candidate["dtype"], {})
    charts = [
        growth(drawing, candidate, baseline),
        divergence(drawing, candidate, report),
        agreement(drawing, candidate, report),
        *(heatmap(drawing, way) for way in candidate["ways"]),
    ]
    return [chart for chart in charts if chart is not None]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:.2e}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.3g}"


def _times(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1000:
        return f"{value:.2f}×"
    return f"{value:,.0f}×" if value < 1e5 else f"{value:.1e}×"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _percent1(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _change(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.2g} %"


def _distance(cosine: float | None) -> str:
    return "–" if cosine is None else _number(max(1 - cosine, 0.0))


def _visible(text: str) -> str:
    """A token alone: what would not be seen is made so."""
    if not text:
        return "∅"
    return "".join(VISIBLE.get(each, each) for each in text)


def _greedy(partings: list[int | None]) -> str:
    parted = [each for each in partings if each is not None]
    if not parted:
        return f"Greedy texts: all {len(partings)} stay with the float64 model's to the end."
    return (
        f"Greedy texts: {len(partings) - len(parted)} of {len(partings)} stay with the float64 "
        f"model's to the end; the first to part does so at new token {min(parted)}."
    )


def _short(name: str) -> str:
    return short_name(name.rstrip("/").split("/")[-1], MOST_LETTERS)


def _breakable(name: str) -> Markup:
    """A dotted name that may break after its dots."""
    return Markup(".<wbr>").join(name.split("."))


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(each)}" for name, each in value.items())
    return value if isinstance(value, str) else json.dumps(value)


FILTERS: dict[str, Callable[..., Any]] = {
    "number": _number,
    "times": _times,
    "percent": _percent,
    "percent1": _percent1,
    "plain": _plain,
    "change": _change,
    "distance": _distance,
    "visible": _visible,
    "greedy": _greedy,
    "short": _short,
    "fact": _fact,
    "breakable": _breakable,
    "mark": MARKS.__getitem__,
    "css": CSS.__getitem__,
}

"""From a report's values to one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from andrea_export.report.page.charts import Charts
from andrea_export.report.page.drawing import Chart

__all__ = ["render_html"]

FOLDER = Path(__file__).parent
MARKS = {"within tolerance": "✓", "out of tolerance": "✗", "could not judge": "?"}
CSS = {"within tolerance": "good", "out of tolerance": "bad", "could not judge": "unknown"}
VISIBLE = {"\n": "⏎", "\t": "⇥", " ": "␣"}


def render_html(report: Mapping[str, Any]) -> str:
    """The page of a report, given as the values of its `report.json`."""
    page = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    page.filters.update(FILTERS)
    candidates = [
        dict(candidate, number=number) for number, candidate in enumerate(report["candidates"])
    ]
    draw = Charts()
    return page.get_template("page.html.jinja").render(
        report=dict(report, candidates=candidates),
        css=Markup((FOLDER / "page.css").read_text("utf-8")),
        perplexity=draw.perplexity(report),
        charts=[_charts(draw, candidate, report) for candidate in candidates],
    )


def _charts(draw: Charts, candidate: Mapping[str, Any], report: Mapping[str, Any]) -> list[Chart]:
    baseline = report["baselines"].get(candidate["dtype"], {})
    charts = [
        draw.growth(candidate, baseline),
        draw.divergence(candidate, baseline),
        draw.agreement(candidate, baseline),
        *(draw.heatmap(way) for way in candidate["ways"]),
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
    return f"{value:.2f}×" if value < 1000 else f"{value:,.0f}×"


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
    end = name.rstrip("/").split("/")[-1]
    return end if len(end) <= 40 else "…" + end[-39:]


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

"""The pictures of figures on the text, from the values of a `report.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from andrea_export.report.detail import KL_EXPONENTS
from andrea_export.report.page.drawing import (
    DASHES,
    MUTED,
    SERIES,
    Chart,
    Drawing,
    legend,
)
from andrea_export.report.values import short_name, short_names, text_result

__all__ = ["agreement", "divergence", "perplexity"]

MOST_LETTERS = 24  # of a name beside a picture


def divergence(
    drawing: Drawing, candidate: Mapping[str, Any], report: Mapping[str, Any]
) -> Chart | None:
    """How many positions of the text have which KL."""
    series = _on_text(candidate, report)
    if not series:
        return None

    def draw(_: Figure, axes: Axes) -> None:
        for label, result, color, is_baseline in series:
            counts = np.array(result["kl_histogram"], float)
            share = counts / max(counts.sum(), 1)
            edges = np.concatenate([KL_EXPONENTS, [KL_EXPONENTS[-1] + 0.5]])
            axes.stairs(
                100 * share,
                np.concatenate([[edges[0] - 0.5], edges]),
                color=color,
                linestyle=DASHES if is_baseline else "-",
                linewidth=1.5,
                label=label,
            )
        shown = [
            index
            for _, result, *_ in series
            for index, count in enumerate(result["kl_histogram"])
            if count
        ]
        low, high = min(shown, default=0), max(shown, default=1)
        axes.set_xlim(KL_EXPONENTS[0] - 0.5 + low / 2 - 0.5, KL_EXPONENTS[0] + high / 2 + 0.5)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: f"1e{value:.0f}")
        axes.set_xlabel("KL divergence at a position, nats")
        axes.set_ylabel("positions, %")
        legend(axes)

    figures = [
        f"{label}: mean {_text(result['figures']['kl_mean'])}, 99th percentile "
        f"{_text(result['figures']['kl_p99'])}, max {_text(result['figures']['kl_max'])}"
        for label, result, *_ in series
    ]
    return drawing.chart("KL divergence", "; ".join(figures) + " nats.", draw)


def agreement(
    drawing: Drawing, candidate: Mapping[str, Any], report: Mapping[str, Any]
) -> Chart | None:
    """The share of positions whose likeliest token is the reference's, along the window."""
    series = [each for each in _on_text(candidate, report) if each[1]["by_position"]]
    if not series:
        return None

    def draw(_: Figure, axes: Axes) -> None:
        lowest = 100.0
        for label, result, color, is_baseline in series:
            stretches = result["by_position"]
            share = [100 * stretch[2] for stretch in stretches]
            lowest = min([lowest, *share])
            starts = [stretch[0] for stretch in stretches]
            width = starts[1] - starts[0] if len(starts) > 1 else 1
            axes.stairs(
                share,
                [*starts, starts[-1] + width],
                baseline=None,
                color=color,
                linestyle=DASHES if is_baseline else "-",
                linewidth=1.5,
                label=label,
            )
        axes.set_ylim(max(0.0, lowest - 0.15 * (100 - lowest) - 1), 100.3)
        axes.set_yticks([tick for tick in axes.get_yticks() if tick < 100.05])
        axes.set_ylim(max(0.0, lowest - 0.15 * (100 - lowest) - 1), 100.3)
        axes.set_xlabel("position in the window")
        axes.set_ylabel("same likeliest token, %")
        legend(axes)

    shares = [
        f"{label} {100 * (1 - result['figures']['top1_disagreement']):.2f} %"
        for label, result, *_ in series
        if result["figures"]["top1_disagreement"] is not None
    ]
    return drawing.chart(
        "Agreement by position", "Likeliest token as in float64: " + ", ".join(shares), draw
    )


def perplexity(drawing: Drawing, report: Mapping[str, Any]) -> Chart | None:
    """All candidates' change of perplexity with 95 % intervals."""
    rows = []
    short = short_names([candidate["name"] for candidate in report["candidates"]])
    for candidate in report["candidates"]:
        for way in candidate["ways"]:
            result = text_result(report, way)
            figures = result["figures"] if result else {}
            interval = figures.get("perplexity_change_interval")
            if interval and None not in (figures["perplexity_change"], *interval):
                name = short_name(short[candidate["name"]], MOST_LETTERS)
                rows.append((f"{name}\n{way['label']}", figures))
    if not rows:
        return None

    def draw(_: Figure, axes: Axes) -> None:
        for number, (_label, figures) in enumerate(rows):
            low, high = figures["perplexity_change_interval"]
            middle = figures["perplexity_change"]
            axes.plot(
                [100 * low, 100 * high],
                [number, number],
                color=SERIES[0],
                linewidth=3,
                alpha=0.5,
            )
            axes.plot([100 * middle], [number], "o", color=SERIES[0], markersize=5)
        axes.axvline(0, color=MUTED, linestyle=DASHES, linewidth=1.2)
        # matplotlib reads what stands between two dollars as a formula.
        labels = [label.replace("$", r"\$") for label, _ in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
        axes.set_xlabel("change of perplexity, %, with its 95 % interval")

    words = [
        f"{label.replace(chr(10), ', ')}: {figures['perplexity']:.4g} "
        f"({100 * figures['perplexity_change']:+.2g} %)"
        for label, figures in rows
    ]
    truth = report["checkpoint"]["perplexity"]
    return drawing.chart(
        "Perplexity",
        f"In float64: {_text(truth)}. " + ("; ".join(words) + "." if len(words) < 4 else ""),
        draw,
        height=1.1 + 0.42 * len(rows),
    )


def _on_text(
    candidate: Mapping[str, Any], report: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any], str, bool]]:
    """(label, result, color, is it the baseline) on the text."""
    baseline = report["baselines"].get(candidate["dtype"])
    own = text_result(report, baseline) if baseline else None
    if own is None:
        return []
    found = [(f"torch {candidate['dtype']}", own, MUTED, True)]
    for number, way in enumerate(candidate["ways"]):
        if result := text_result(report, way):
            found.append((way["label"], result, SERIES[number % len(SERIES)], False))
    return found if len(found) > 1 else []


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"

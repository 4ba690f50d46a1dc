"""The pictures of a report, each from the values of its `report.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from andrea_export.report.page.drawing import (
    BAD,
    DASHES,
    MUTED,
    SERIES,
    Chart,
    Drawing,
    legend,
    pad_log,
)
from andrea_export.report.page.layer_axis import block_ticks, position, residual

__all__ = ["Charts"]

# From docs of the schema: bins of log10 KL.
KL_EDGES = np.arange(-17.0, 2.5, 0.5)


class Charts:
    """All pictures of one page."""

    def __init__(self) -> None:
        self._drawing = Drawing()

    def growth(self, candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> Chart | None:
        """The error of the residual stream after every sublayer, on a logarithmic scale."""
        ways = [way for way in candidate["ways"] if way["layers"] and residual(way["layers"])]
        if not ways or not baseline.get("layers"):
            return None
        rows = residual(baseline["layers"])
        names = [row["name"] for row in rows]

        def draw(_: Figure, axes: Axes) -> None:
            x = np.arange(len(names))
            axes.plot(
                x,
                _values(rows, "rms_error"),
                color=MUTED,
                linestyle=DASHES,
                label=f"torch {candidate['dtype']}",
            )
            for number, way in enumerate(ways):
                own = {row["name"]: row for row in way["layers"]["taps"]}
                errors = [_plain(own.get(name, {}).get("rms_error")) for name in names]
                color = SERIES[number % len(SERIES)]
                axes.plot(x, errors, color=color, marker="o", markersize=3, label=way["label"])
                departure = way["layers"]["departure"]
                if departure:
                    at = position(departure["name"], names)
                    axes.axvline(at, color=BAD, linewidth=1.2)
                    axes.annotate(
                        departure["name"],
                        (at, 0.985),
                        xycoords=("data", "axes fraction"),
                        xytext=(4 if at < len(names) / 2 else -4, 0),
                        textcoords="offset points",
                        ha="left" if at < len(names) / 2 else "right",
                        va="top",
                        color=BAD,
                    )
            axes.set_yscale("log")
            pad_log(axes)
            ticks, labels = block_ticks(names)
            axes.set_xticks(ticks, labels)
            axes.set_xlabel("residual stream after each sublayer of block")
            axes.set_ylabel("relative RMS error")
            legend(axes)

        last = names[-1]
        ends = ", ".join(
            f"{way['label']} {_last(way, last):.2g}" for way in ways if _last(way, last) is not None
        )
        return self._drawing.chart(
            "Error growth by layer",
            f"Relative RMS error of the residual stream, from the embedding to {last}. "
            f"There: torch {_plain(rows[-1]['rms_error']):.2g}; {ends}. " + _departures(ways),
            draw,
        )

    def divergence(self, candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> Chart | None:
        """How many positions of the first data set have which KL."""
        series = _first_sets(candidate, baseline)
        if not series:
            return None

        def draw(_: Figure, axes: Axes) -> None:
            for label, result, color, is_baseline in series:
                counts = np.array(result["kl_histogram"], float)
                share = counts / max(counts.sum(), 1)
                edges = np.concatenate([KL_EDGES, [KL_EDGES[-1] + 0.5]])
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
            axes.set_xlim(KL_EDGES[0] - 0.5 + low / 2 - 0.5, KL_EDGES[0] + high / 2 + 0.5)
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
        return self._drawing.chart("KL divergence", "; ".join(figures) + " nats.", draw)

    def agreement(self, candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> Chart | None:
        """The share of positions whose likeliest token is the reference's, along the window."""
        series = [each for each in _first_sets(candidate, baseline) if each[1]["by_position"]]
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
        return self._drawing.chart(
            "Agreement by position", "Likeliest token as in float64: " + ", ".join(shares), draw
        )

    def heatmap(self, way: Mapping[str, Any]) -> Chart | None:
        """Error of the residual stream, sublayer by position."""
        if not way["layers"]:
            return None
        rows = [row for row in way["layers"]["taps"] if row["by_position"]]
        if not rows:
            return None
        values = np.array([[_plain(value) for value in row["by_position"]] for row in rows])
        image = np.log10(np.maximum(values, 1e-12))

        def draw(figure: Figure, axes: Axes) -> None:
            span = max(1.0, image.max() - image.min())
            shown = axes.imshow(
                image,
                aspect="auto",
                origin="lower",
                interpolation="none",
                cmap="cividis",
                vmin=image.max() - span,
            )
            names = [row["name"] for row in rows]
            ticks, labels = block_ticks(names)
            axes.set_yticks(ticks, labels)
            axes.set_ylabel("residual stream, by block")
            axes.set_xlabel("stretch of the window, first to last")
            axes.set_xticks([])
            axes.grid(visible=False)
            bar = figure.colorbar(shown, ax=axes, pad=0.02)
            bar.ax.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
            bar.ax.yaxis.set_major_formatter(lambda value, _: f"{10**value:.1e}")
            bar.outline.set_edgecolor(MUTED)

        at = np.unravel_index(int(image.argmax()), image.shape)
        return self._drawing.chart(
            f"Layer × position: {way['label']}",
            f"Relative RMS error of the residual stream by sublayer (up) and place in the window "
            f"(right). The largest, {values.max():.2g}, is after {rows[at[0]]['name']}.",
            draw,
        )

    def perplexity(self, report: Mapping[str, Any]) -> Chart | None:
        """All candidates' change of perplexity with 95 % intervals."""
        rows = []
        for candidate in report["candidates"]:
            for way in candidate["ways"]:
                for result in way["sets"][:1]:
                    figures = result["figures"]
                    if figures["perplexity_change_interval"] and None not in (
                        figures["perplexity_change"],
                        *figures["perplexity_change_interval"],
                    ):
                        label = f"{_short(candidate['name'])}\n{way['label']}"
                        rows.append((label, figures))
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
            axes.set_yticks(range(len(rows)), [label for label, _ in rows])
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
        return self._drawing.chart(
            "Perplexity",
            f"In float64: {_text(truth)}. " + ("; ".join(words) + "." if len(words) < 4 else ""),
            draw,
            height=1.1 + 0.42 * len(rows),
        )


def _first_sets(
    candidate: Mapping[str, Any], baseline: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any], str, bool]]:
    """(label, result, color, is it the baseline) on the first data set."""
    found = []
    if baseline.get("sets"):
        found.append((f"torch {candidate['dtype']}", baseline["sets"][0], MUTED, True))
    for number, way in enumerate(candidate["ways"]):
        if way["sets"]:
            found.append((way["label"], way["sets"][0], SERIES[number % len(SERIES)], False))
    return found if len(found) > 1 else []


def _values(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [_plain(row[key]) for row in rows]


def _plain(value: float | None) -> float:
    return math.nan if value is None else max(float(value), 1e-12)


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _last(way: Mapping[str, Any], name: str) -> float | None:
    for row in way["layers"]["taps"]:
        if row["name"] == name:
            error: float | None = row["rms_error"]
            return error
    return None


def _departures(ways: Sequence[Mapping[str, Any]]) -> str:
    found = [
        f"{way['label']} {way['layers']['departure']['message']}."
        for way in ways
        if way["layers"]["departure"]
    ]
    return " ".join(found) or "No layer that is seen leaves torch's own error."


def _short(name: str) -> str:
    end = name.rstrip("/").split("/")[-1]
    return end if len(end) <= 24 else "…" + end[-23:]

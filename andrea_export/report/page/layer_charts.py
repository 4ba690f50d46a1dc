"""The pictures of a model's inside, from the values of a `report.json`."""

from __future__ import annotations

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
    plottable,
)
from andrea_export.report.page.layer_axis import block_ticks, position, residual

__all__ = ["growth", "heatmap"]


def growth(
    drawing: Drawing, candidate: Mapping[str, Any], baseline: Mapping[str, Any]
) -> Chart | None:
    """The error of the residual stream after every sublayer, on a logarithmic scale."""
    ways = [way for way in candidate["ways"] if way["layers"] and residual(way["layers"])]
    if not ways or not baseline.get("layers"):
        return None
    rows = residual(baseline["layers"])
    names = [row["name"] for row in rows]
    order = [row["name"] for row in baseline["layers"]["taps"]]

    def draw(_: Figure, axes: Axes) -> None:
        x = np.arange(len(names))
        axes.plot(
            x,
            [plottable(row["rms_error"]) for row in rows],
            color=MUTED,
            linestyle=DASHES,
            label=f"torch {candidate['dtype']}",
        )
        for number, way in enumerate(ways):
            own = {row["name"]: row for row in way["layers"]["taps"]}
            errors = [plottable(own.get(name, {}).get("rms_error")) for name in names]
            color = SERIES[number % len(SERIES)]
            axes.plot(x, errors, color=color, marker="o", markersize=3, label=way["label"])
            departure = way["layers"]["departure"]
            if departure:
                at = position(departure["name"], order, names)
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
    return drawing.chart(
        "Error growth by layer",
        f"Relative RMS error of the residual stream, from the embedding to {last}. "
        f"There: torch {plottable(rows[-1]['rms_error']):.2g}; {ends}. " + _departures(ways),
        draw,
    )


def heatmap(drawing: Drawing, way: Mapping[str, Any]) -> Chart | None:
    """Error of the residual stream, sublayer by position."""
    if not way["layers"]:
        return None
    rows = [row for row in way["layers"]["taps"] if row["by_position"]]
    if not rows:
        return None
    values = np.array([[plottable(value) for value in row["by_position"]] for row in rows])
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
    return drawing.chart(
        f"Layer × position: {way['label']}",
        f"Relative RMS error of the residual stream by sublayer (up) and place in the window "
        f"(right). The largest, {values.max():.2g}, is after {rows[at[0]]['name']}.",
        draw,
    )


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

"""The pictures of a report, as SVG that takes its colours from the page.

matplotlib draws with stand-in colours, each of which becomes a CSS variable: so one picture serves
the light theme, the dark one and print.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["Chart", "Charts"]

# Stand-in → CSS variable. The stand-ins occur nowhere else.
INK, MUTED, GRID, BAD = "#010203", "#010204", "#010205", "#010206"
SERIES = ["#010211", "#010212", "#010213", "#010214", "#010215", "#010216"]
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "line", BAD: "bad"} | {
    color: f"series-{number}" for number, color in enumerate(SERIES)
}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "andrea-export",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "figure.facecolor": "none",
}
WIDTH, HEIGHT = 5.0, 3.1  # inches: 360 units wide, so that text is legible on a phone
DASHES = (0, (4, 2))
# From docs of the schema: bins of log10 KL.
KL_EDGES = np.arange(-17.0, 2.5, 0.5)


@dataclass(frozen=True)
class Chart:
    """One picture: SVG, and what it shows in words."""

    title: str
    description: str
    svg: str


class Charts:
    """Draws; each picture gets names of its own inside, so that many fit into one page."""

    def __init__(self) -> None:
        self._count = 0

    def _chart(
        self,
        title: str,
        description: str,
        draw: Callable[[Figure, Axes], None],
        height: float = HEIGHT,
    ) -> Chart:
        self._count += 1
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            draw(figure, figure.subplots())
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        prefix = f"chart{self._count}"
        svg = _for_page(buffer.getvalue(), prefix, title, description)
        return Chart(title, description, svg)

    def growth(self, candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> Chart | None:
        """The error of the residual stream after every sublayer, on a logarithmic scale."""
        ways = [way for way in candidate["ways"] if way["layers"]]
        if not ways or not baseline.get("layers"):
            return None
        rows = _residual(baseline["layers"])
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
                    at = _position(departure["name"], names)
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
            _pad_log(axes)
            ticks, labels = _block_ticks(names)
            axes.set_xticks(ticks, labels)
            axes.set_xlabel("residual stream after each sublayer of block")
            axes.set_ylabel("relative RMS error")
            _legend(axes)

        last = names[-1]
        ends = ", ".join(
            f"{way['label']} {_last(way, last):.2g}" for way in ways if _last(way, last) is not None
        )
        return self._chart(
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
            _legend(axes)

        figures = [
            f"{label}: mean {_text(result['figures']['kl_mean'])}, 99th percentile "
            f"{_text(result['figures']['kl_p99'])}, max {_text(result['figures']['kl_max'])}"
            for label, result, *_ in series
        ]
        return self._chart("KL divergence", "; ".join(figures) + " nats.", draw)

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
            _legend(axes)

        shares = [
            f"{label} {100 * (1 - result['figures']['top1_disagreement']):.2f} %"
            for label, result, *_ in series
            if result["figures"]["top1_disagreement"] is not None
        ]
        return self._chart(
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
            ticks, labels = _block_ticks(names)
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
        return self._chart(
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
        return self._chart(
            "Perplexity",
            f"In float64: {_text(truth)}. " + ("; ".join(words) + "." if len(words) < 4 else ""),
            draw,
            height=1.1 + 0.42 * len(rows),
        )


def _for_page(svg: str, prefix: str, title: str, description: str) -> str:
    """The svg element alone, with the page's colours, own ids, and words for a screen reader."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    # An attribute knows no variables; a style does.
    svg = re.sub(r'\b(fill|stroke)="(#0102\w\w)"', r'style="\1: \2"', svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--font)", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    words = f"<title>{_escape(title)}</title><desc>{_escape(description)}</desc>"
    svg = re.sub(r"<svg([^>]*)>", r'<svg\1 role="img" class="chart">', svg, count=1)
    end = svg.index(">") + 1
    return svg[:end] + words + svg[end:]


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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


def _residual(layers: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in layers["taps"] if row["kind"] == "residual"]


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
    return " ".join(found) or "No layer leaves torch's own error."


def _position(tap: str, names: Sequence[str]) -> float:
    """Where a tap stands among the sums: its sublayer ends at the next of them."""
    if tap in names:
        return float(names.index(tap))
    if tap in ("norm_f", "logits"):
        return len(names) - 0.5
    block, part = tap.split(".")[1:3]
    before = part in ("norm1", "attn")
    return names.index(f"blocks.{block}.{'attn_sum' if before else 'mlp_sum'}") - 0.5


def _block_ticks(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """One tick per block, or per few where there are many."""
    found = [(0, "emb")]
    blocks = [(at, name.split(".")[1]) for at, name in enumerate(names) if name.endswith("mlp_sum")]
    every = math.ceil(len(blocks) / 12)
    found += blocks[every - 1 :: every]
    return [at for at, _ in found], [label for _, label in found]


def _pad_log(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.3, high * 2.5)


def _legend(axes: Axes) -> None:
    """Above the picture, where it hides nothing."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        borderaxespad=0.2,
        ncols=2 if len(axes.get_legend_handles_labels()[1]) < 3 else 1,
        columnspacing=1.2,
        handlelength=1.8,
    )


def _short(name: str) -> str:
    end = name.rstrip("/").split("/")[-1]
    return end if len(end) <= 24 else "…" + end[-23:]

"""One picture: drawn by matplotlib, then made part of the page.

matplotlib draws with stand-in colours, each of which becomes a CSS variable: so one picture serves
the light theme, the dark one and print.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["BAD", "DASHES", "MUTED", "SERIES", "Chart", "Drawing", "legend", "pad_log", "plottable"]

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


@dataclass(frozen=True)
class Chart:
    """One picture: SVG, and what it shows in words."""

    title: str
    description: str
    svg: str


class Drawing:
    """Draws; each picture gets names of its own inside, so that many fit into one page."""

    def __init__(self) -> None:
        self._count = 0

    def chart(
        self,
        title: str,
        description: str,
        draw: Callable[[Figure, Axes], None],
        height: float = HEIGHT,
    ) -> Chart:
        self._count += 1
        with mpl.rc_context(STYLE), warnings.catch_warnings():
            # The browser has the letters that matplotlib's own font lacks.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            draw(figure, figure.subplots())
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        prefix = f"chart{self._count}"
        svg = _for_page(buffer.getvalue(), prefix, title, description)
        return Chart(title, description, svg)


def plottable(value: float | None) -> float:
    """For an axis that may be logarithmic: NaN, which is not drawn, for what is missing."""
    return math.nan if value is None else max(float(value), 1e-12)


def pad_log(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.3, high * 2.5)


def legend(axes: Axes) -> None:
    """Above the picture, where it hides nothing."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        borderaxespad=0.2,
        ncols=2 if len(axes.get_legend_handles_labels()[1]) < 3 else 1,
        columnspacing=1.2,
        handlelength=1.8,
    )


def _for_page(svg: str, prefix: str, title: str, description: str) -> str:
    """The svg element alone, with the page's colours, own ids, and words for a screen reader."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*\n\s*", "\n", svg).replace(">\n<", "><")
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(
        r' id="([^"]+)"', lambda id_: f' id="{prefix}-{id_[1]}"' if id_[1] in used else "", svg
    )
    svg = re.sub(r"<g></g>", "", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)  # a hundredth of a unit is seen by nobody
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

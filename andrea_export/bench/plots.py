"""The plots of the page, as SVG that needs nothing else."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from andrea_export.bench.result import BenchResult, Profile, Row
from andrea_export.bench.workloads import Phase

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["op_plot", "round_plot", "speed_plots"]

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#777777")
WIDTH_INCHES = 7.5
BAR_SPACE = 0.8
TOP_OPS = 7


def speed_plots(result: BenchResult) -> list[tuple[str, str]]:
    """(caption, SVG): for each batch the rate of decode and the time of a prefill, by context.

    A black line across a bar marks its floor.
    """
    batches = sorted({row.workload.batch for row in result.rows})
    plots: list[tuple[Phase, str, Callable[[Row, float], float]]] = [
        ("decode", "tokens/s", lambda row, seconds: row.workload.batch / seconds),
        ("prefill", "time to first token, ms", lambda _, seconds: seconds * 1e3),
    ]
    found = []
    for phase, unit, value in plots:
        for batch in batches:
            rows = [
                row
                for row in result.rows
                if row.workload.phase == phase and row.workload.batch == batch
            ]
            if rows:
                names = [source.name for source in result.sources]
                caption = f"{phase.capitalize()}, batch {batch}: {unit} by context"
                found.append((caption, _bars(caption, names, rows, unit, value)))
    return found


def round_plot(result: BenchResult) -> str:
    """Median step of each decode row, round by round: what drifted, and what all felt."""
    from matplotlib.ticker import MaxNLocator

    rows = [row for row in result.rows if row.workload.phase == "decode"] or list(result.rows)

    def draw(axes: Axes) -> None:
        for number, row in enumerate(rows):
            medians = [sorted(turn)[len(turn) // 2] * 1e3 for turn in row.rounds]
            axes.plot(
                range(1, len(medians) + 1),
                medians,
                marker="o",
                color=COLOURS[number % len(COLOURS)],
                label=f"{row.source}, {row.workload.batch} × {row.workload.context}",
            )
        axes.set_xlabel("round")
        axes.set_ylabel("median step, ms")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _svg("rounds", 3.2, draw)


def op_plot(profiles: Sequence[Profile]) -> str:
    """Where a step's time goes: one bar for each source and workload, its slowest ops by name."""
    totals: dict[str, float] = {}
    for profile in profiles:
        for op in profile.ops:
            totals[op.op] = totals.get(op.op, 0.0) + op.seconds
    named = sorted(totals, key=lambda name: -totals[name])[:TOP_OPS]

    def draw(axes: Axes) -> None:
        labels = [f"{profile.source}\n{profile.workload}" for profile in profiles]
        left = [0.0] * len(profiles)
        for number, name in enumerate([*named, "others"]):
            widths = [_share(profile, name, named) for profile in profiles]
            axes.barh(labels, widths, left=left, label=name, color=COLOURS[number])
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("share of a step, %")
        axes.set_xlim(0, 100)

    return _svg("ops", 1.2 + 0.45 * len(profiles), draw)


def _share(profile: Profile, name: str, named: Sequence[str]) -> float:
    """Percent of the profile's time in this op, or in "others"."""
    seconds = sum(
        op.seconds
        for op in profile.ops
        if op.op == name or (name == "others" and op.op not in named)
    )
    return 100 * seconds / profile.seconds


def _bars(
    key: str,
    names: Sequence[str],
    rows: Sequence[Row],
    unit: str,
    value: Callable[[Row, float], float],
) -> str:
    contexts = sorted({row.workload.context for row in rows})
    width = BAR_SPACE / len(names)

    def draw(axes: Axes) -> None:
        for number, name in enumerate(names):
            own = [row for row in rows if row.source == name]
            places = [
                contexts.index(row.workload.context) + (number + 0.5) * width - BAR_SPACE / 2
                for row in own
            ]
            medians = [value(row, row.percentile(50)) for row in own]
            colour = COLOURS[number % len(COLOURS)]
            axes.bar(places, medians, width * 0.95, label=name, color=colour)
            floors = [value(row, row.floor_seconds) for row in own]
            axes.hlines(
                floors,
                [place - width / 2 for place in places],
                [place + width / 2 for place in places],
                color="black",
                label="floor" if number == len(names) - 1 else "_",  # matplotlib hides that one
            )
        axes.set_xticks(range(len(contexts)), [str(context) for context in contexts])
        axes.set_xlabel("context, tokens")
        axes.set_ylabel(unit)

    return _svg(key, 3.2, draw)


def _svg(key: str, height: float, draw: Callable[[Any], None]) -> str:
    """`key` keeps the ids of one plot apart from those of another on the same page."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": key, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing)
    # The prolog names a DTD, and has no place inside HTML.
    return text.getvalue()[text.getvalue().index("<svg") :]

"""The result as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from andrea_export.bench.floors import SYMBOLS
from andrea_export.bench.plots import op_plot, round_plot, speed_plots
from andrea_export.bench.result import BenchResult, Row
from andrea_export.errors import OutputError, require

__all__ = ["check_page", "write_page"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
figure { margin: 1.5rem 0 } figcaption { font-weight: 600 } svg { max-width: 100%; height: auto }
.note { border-left: 4px solid #e69f00; padding-left: .8rem } dt { font-weight: 600 }
"""
ROW_HEAD = (
    "workload", "source", "samples", "p50 ms", "p90 ms", "p99 ms", "first call ms", "tokens/s",
    "MB moved", "GFLOP", "floor ms", "of floor",
)  # fmt: skip
SOURCE_HEAD = (
    "source", "runs as", "parameters", "start s", "first call ms", "first token, cold s",
    "peak memory MB", "GPU memory MB",
)  # fmt: skip


def check_page(path: Path, *, force: bool) -> None:
    """Refuse before any work is done.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        OutputError: the file exists and `force` is not set, or it cannot be a file.
    """
    require("matplotlib", extra="report", purpose="a page with plots")
    if path.is_dir():
        raise OutputError(f"{path} is a folder: name the HTML file")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{path} cannot be written: {path.parent} is not a folder")
    if path.exists() and not force:
        raise OutputError(f"{path} exists: choose another file, or replace it with --force")


def write_page(result: BenchResult, path: Path, *, force: bool = False) -> None:
    """Write `result` with its plots, whole or not at all.

    Raises:
        MissingDependencyError, OutputError: see `check_page`; or the file cannot be written.
    """
    check_page(path, force=force)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(_page(result), "utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def _page(result: BenchResult) -> str:
    machine = result.machine
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        "<title>andrea-export bench</title>",
        f"<style>{STYLE}</style></head><body>",
        "<h1>How fast, and how far from the machine's limit</h1>",
        f"<p>{escape(machine['processor'])}, {machine['cores']} cores, "
        f"{escape(machine['system'])}; Python {machine['python']}; {escape(libraries)}</p>",
        *(f'<p class="note">{escape(note)}</p>' for note in result.notes),
        *(_figure(caption, svg) for caption, svg in speed_plots(result)),
        _table(ROW_HEAD, map(_row, result.rows)),
        _rates(result),
        "<h2>Starting, and memory</h2>",
        _sources(result),
        "<h2>Round by round</h2>",
        _figure("In a round every source takes its turn", round_plot(result)),
    ]
    if result.profiles:
        parts += ["<h2>Where the time goes</h2>", _figure("By op", op_plot(result.profiles))]
    return "\n".join([*parts, "</body></html>", ""])


def _row(row: Row) -> Sequence[str]:
    times = [f"{row.percentile(percent) * 1e3:.2f}" for percent in (50, 90, 99)]
    return (
        str(row.workload),
        row.source,
        str(len(row.seconds)),
        *times,
        f"{row.first_call_seconds * 1e3:.2f}",
        f"{row.tokens_per_second:,.1f}",
        f"{row.work.nbytes / 1e6:,.1f}",
        f"{row.work.operations / 1e9:,.2f}",
        f"{row.floor_seconds * 1e3:.2f}",
        f"{row.percent_of_floor:.0f} % ({row.bound})",
    )


def _rates(result: BenchResult) -> str:
    low, high = result.read_rates
    rates = [f"Memory was read at {low / 1e9:.1f} to {high / 1e9:.1f} GB/s"]
    rates += [
        f"{name} matrices were multiplied at {low / 1e9:.0f} to {high / 1e9:.0f} GFLOP/s"
        for name, (low, high) in result.matmul_rates.items()
    ]
    terms = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(formula)}</dd>"
        for name, formula in result.formulas.items()
    )
    return f"<p>{'; '.join(rates)}, in the same rounds.</p><dl>{terms}</dl><p>{escape(SYMBOLS)}</p>"


def _sources(result: BenchResult) -> str:
    return _table(
        SOURCE_HEAD,
        (
            (
                source.name,
                source.label,
                f"{source.parameters:,}",
                f"{source.start_seconds:.2f}",
                f"{source.first_call_seconds * 1e3:.1f}",
                f"{source.cold_first_token_seconds:.2f}",
                f"{source.peak_rss_bytes / 1e6:.0f}",
                "-" if source.device_bytes is None else f"{source.device_bytes / 1e6:.0f}",
            )
            for source in result.sources
        ),
    )


def _figure(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<table><thead>", _line("th", head), "</thead><tbody>"]
    lines += [_line("td", row) for row in rows]
    return "\n".join([*lines, "</tbody></table>"])


def _line(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

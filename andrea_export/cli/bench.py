"""`andrea-export bench`: how fast sources run, and how far from the machine's limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.console import note, print_json, progress_bar, stdout
from andrea_export.cli.options import Force, Json, Reading, with_reading
from andrea_export.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from andrea_export.bench import BenchResult, Profile

__all__ = ["bench"]

TOP_OPS = 8


@with_reading
def bench(
    reading: Reading,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SRC...", help="Checkpoints, exported folders, engines: measured side by side."
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option("--batch", metavar="N,...", help="Rows side by side.")
    ] = "1",
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="N,...",
            help="Tokens of each row; 64,512 if not given, as far as every source has them.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", help="Rounds in which the sources alternate.")
    ] = 5,
    tokens: Annotated[int, typer.Option("--tokens", help="Decode steps in a turn.")] = 16,
    backend: Annotated[
        str, typer.Option("--backend", help="auto, torch, onnx or trt: of every source.")
    ] = "auto",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Of the torch backend; fp32 if not given.")
    ] = None,
    profile_ops: Annotated[
        bool, typer.Option("--profile-ops", help="Also show where the time goes by kind of op.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write a page with plots."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure prefill and decode of one or more sources, in rounds that alternate.

    Each row says how near it is to its floor: the time in which the machine, measured in the same
    run, could move the bytes and multiply the numbers that the model's shape asks for.
    """
    from andrea_export.bench import BenchOptions, SourceSpec, parse_sizes
    from andrea_export.bench import bench as measure

    options = BenchOptions(
        batches=parse_sizes(batch, "--batch"),
        contexts=None if context is None else parse_sizes(context, "--context"),
        rounds=rounds,
        tokens=tokens,
        profile_ops=profile_ops,
    )
    _refuse_what_no_source_takes(sources or [], reading, dtype)
    specs = [
        SourceSpec(
            source,
            backend=backend,
            dtype=dtype or "fp32",
            random_weights=reading.random_weights,
            config=None if reading.config is None else str(reading.config),
            settings=tuple(reading.settings or ()),
            layout=reading.layout,
            allow_nonfinite=reading.allow_nonfinite,
        )
        for source in sources or ()
    ]
    if html is not None:
        from andrea_export.bench.page import check_page

        check_page(html, force=force)
    with progress_bar("Measuring") as progress:
        result = measure(specs, options, progress=progress)
    # The page comes last: a disk that is full by now must not cost the figures.
    if as_json:
        print_json(result.to_dict())
    else:
        _print(result)
    if html is not None:
        from andrea_export.bench.page import write_page

        write_page(result, html, force=force)
        note(f"{html}: the same with plots")


def _refuse_what_no_source_takes(sources: list[str], reading: Reading, dtype: str | None) -> None:
    """Options for checkpoints, where all sources are exported folders and engines."""
    from andrea_export.engine import is_engine_folder
    from andrea_export.graph import is_graph_folder

    paths = [Path(source) for source in sources]
    if not paths or not all(is_engine_folder(path) or is_graph_folder(path) for path in paths):
        return
    listed = ", ".join(sources)
    reading.refuse(listed, "no checkpoint")
    if dtype is not None:
        raise InputError(
            f"--dtype is for checkpoints, and {listed} is no checkpoint: it has its own"
        )


def _print(result: BenchResult) -> None:
    console = stdout()
    console.print(_rows(result))
    console.print(_sources(result))
    for profile in result.profiles:
        console.print(_profile(profile))
    low, high = (rate / 1e9 for rate in result.read_rates)
    rates = [f"reads memory at {low:.0f} to {high:.0f} GB/s"]
    for name, (low, high) in result.matmul_rates.items():
        rates.append(f"multiplies {name} at {low / 1e9:.0f} to {high / 1e9:.0f} GFLOP/s")
    console.print(f"This machine {', '.join(rates)}.")
    console.print(f"floor = {result.formulas['floor']}; --json has the bytes and operations.")
    for line in result.notes:
        console.print(f"Note: {line}")


def _rows(result: BenchResult) -> Table:
    table = _table("", "batch", "context", "source", "p50 ms", "p90", "p99", "tokens/s", "of floor")
    last = None
    for row in result.rows:
        workload = row.workload
        same = workload == last
        last = workload
        head = (
            ["", "", ""] if same else [workload.phase, str(workload.batch), str(workload.context)]
        )
        times = [f"{row.percentile(percent) * 1e3:.2f}" for percent in (50, 90, 99)]
        table.add_row(
            *(("", "", "") if same else head),
            row.source,
            *times,
            f"{row.tokens_per_second:,.1f}",
            f"{row.percent_of_floor:.0f} % ({row.bound})",
        )
    return table


def _sources(result: BenchResult) -> Table:
    table = _table("source", "", "start s", "first call ms", "cold first token s", "peak MB")
    for source in result.sources:
        memory = f"{source.peak_rss_bytes / 1e6:.0f}"
        if source.device_bytes is not None:
            memory += f" + {source.device_bytes / 1e6:.0f} GPU"
        table.add_row(
            source.name,
            source.label,
            f"{source.start_seconds:.2f}",
            f"{source.first_call_seconds * 1e3:.1f}",
            f"{source.cold_first_token_seconds:.2f}",
            memory,
        )
    return table


def _profile(profile: Profile) -> Table:
    table = _table("op", "calls", "ms", "share")
    table.title = f"{profile.source}: {profile.workload}"
    shown, rest = profile.ops[:TOP_OPS], profile.ops[TOP_OPS:]
    lines = [(op.op, f"{op.calls:g}" if op.calls else "", op.seconds) for op in shown]
    if rest:
        lines.append((f"{len(rest)} others", "", sum(op.seconds for op in rest)))
    for name, calls, seconds in lines:
        table.add_row(name, calls, f"{seconds * 1e3:.3f}", f"{seconds / profile.seconds:.1%}")
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, title_justify="left", title_style="bold")
    texts = {"", "source", "op"}
    for column in columns:
        table.add_column(column, justify="left" if column in texts else "right", no_wrap=True)
    return table

"""`andrea-export report`: many candidates, judged and looked into, as a page; and two compared."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from andrea_export.cli.console import note, print_json, progress_bar, stdout
from andrea_export.cli.options import (
    CheckpointSource,
    Force,
    Json,
    Output,
    Reading,
    TextFile,
    with_reading,
)

if TYPE_CHECKING:
    from andrea_export.report.judgement import Report

__all__ = ["app"]

STYLES = {
    "within tolerance": "bold green",
    "out of tolerance": "bold red",
    "could not judge": "bold yellow",
}


class MakeByDefault(TyperGroup):
    """`report CKPT ...` is `report make CKPT ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="report",
    cls=MakeByDefault,
    no_args_is_help=True,
    help="Judge candidates against torch and write a report: `report CKPT --candidate DIR -o OUT`. "
    "Compare two: `report diff A.json B.json`.",
)


@app.command("make")
@with_reading
def make(
    reading: Reading,
    source: CheckpointSource,
    candidates: Annotated[
        list[str],
        typer.Option(
            "--candidate",
            metavar="PATH[,KEY=VALUE]",
            help="An exported folder (,provider=cuda), an engine, or a checkpoint (,dtype=fp16). "
            "Repeatable.",
        ),
    ],
    output: Output,
    text: TextFile = None,
    windows: Annotated[
        int | None,
        typer.Option("--windows", metavar="N", help="Windows of text; 4 to 16 if not given."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", help="Tokens of each; the context if not given."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything.")] = False,
    layers: Annotated[
        bool, typer.Option("--layers/--no-layers", help="Look inside, layer by layer.")
    ] = True,
    tolerance: Annotated[
        Path | None,
        typer.Option("--tolerance", metavar="FILE", help="JSON with limits of your own."),
    ] = None,
    bisect: Annotated[
        bool,
        typer.Option("--bisect", help="Swap parts for exact ones; rank what restores the model."),
    ] = False,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="E", help="RMS error that --bisect is to reach."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Judge candidates against torch in float64, beside torch in their own dtype.

    Writes report.html, report.md and report.json. Exit code 0 within tolerance, 1 out of
    tolerance, 2 could not judge; 1 outranks 2.
    """
    from andrea_export.black_box import BlackBox
    from andrea_export.report.candidates import CandidateSpec
    from andrea_export.report.make import ReportOptions, make_report
    from andrea_export.report.tolerance import BUILT_IN
    from andrea_export.report.tolerance_file import read_tolerance
    from andrea_export.report.writing import JSON_FILE, require_plots, write_report
    from andrea_export.whole_folder import check_output

    check_output(output, force=force, record=JSON_FILE)
    require_plots()
    specs = [CandidateSpec.parse(each) for each in candidates]
    options = ReportOptions(
        text=text,
        windows=windows,
        tokens=tokens,
        quick=quick,
        layers=layers,
        tolerance=BUILT_IN if tolerance is None else read_tolerance(tolerance),
        bisect=bisect,
        target=target,
        command=shlex.join(["andrea-export", *sys.argv[1:]]),
    )
    checkpoint = reading.open(source)
    with progress_bar("Comparing with torch") as progress:
        report = make_report(
            checkpoint, specs, options, progress=progress, black_box=BlackBox.from_environment()
        )
    values = report.to_dict()
    write_report(values, output, force=force)
    if as_json:
        print_json(values)
    else:
        print_report(report, output)
    raise typer.Exit(report.exit_code)


def print_report(report: Report, output: Path) -> None:
    """One line per way of running, and the verdict."""
    from rich.table import Table

    console = stdout()
    table = Table(box=None)
    for name in ("candidate", "runs on", "RMS error", "ratio", "leaves the model at", "verdict"):
        table.add_column(name, justify="right" if name in ("RMS error", "ratio") else "left")
    for candidate in report.candidates:
        if candidate.error is not None:
            table.add_row(candidate.name, "", "", "", "", "could not judge")
        for way in candidate.ways:
            first = way.result(report.header["data"][0]["name"])
            ratio = first.ratios["rms_error"] if first else None
            departure = way.layers.departure if way.layers else None
            table.add_row(
                candidate.name,
                way.label,
                f"{first.figures.rms_error:.1e}" if first else "",
                f"{ratio:.2f}×" if ratio is not None and ratio < 1000 else "",
                departure.name if departure else "" if way.layers is None else "nowhere",
                way.status,
                style="red" if way.failures else None,
            )
    console.print(table)
    for warning in report.warnings:
        console.print(f"Note: {warning}")
    for candidate in report.candidates:
        if candidate.bisection is not None:
            console.print(f"{candidate.name}: {candidate.bisection['sentence']}")
    console.print(report.sentence, style=STYLES[report.status], soft_wrap=True)
    note(f"Written: {output / 'report.html'}")


@app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The older report.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The newer report.")],
    as_json: Json = False,
) -> None:
    """Compare two reports. Exit code 1 if something has become worse, else 0."""
    from andrea_export.report.diff import diff_reports
    from andrea_export.report.writing import read_report

    difference = diff_reports(read_report(before), read_report(after))
    if as_json:
        print_json(difference.to_dict())
    else:
        console = stdout()
        for line in difference.notes:
            console.print(f"Note: {line}")
        for change in difference.changes:
            style = "red" if change.regression else None
            console.print(str(change), style=style, soft_wrap=True)
        count = len(difference.regressions)
        counted = f"{count} regression{'s' if count > 1 else ''}."
        console.print(counted if count else "No regression.")
    raise typer.Exit(difference.exit_code)

"""`andrea-export validate`: is an exported folder still the model, and as good as PyTorch?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.console import print_json, progress_bar, stdout
from andrea_export.cli.options import (
    CheckpointSource,
    Json,
    Reading,
    TextFile,
    Verbose,
    with_reading,
)

if TYPE_CHECKING:
    from rich.table import Table

    from andrea_export.report import Row, Validation
    from andrea_export.report.metrics import Figures

__all__ = ["print_validation", "validate"]

# Figure → what people call it, and how its values are written.
FIGURES = {
    "max_error": ("max error, relative", "{:.1e}"),
    "rms_error": ("RMS error, relative", "{:.1e}"),
    "kl_mean": ("KL mean, nats", "{:.1e}"),
    "kl_max": ("KL max, nats", "{:.1e}"),
    "top1_disagreement": ("top-1 token differs", "{:.2%}"),
    "loss_change": ("loss change, nats", "{:.1e}"),
    "perplexity": ("perplexity", "{:.2f}"),
}
VERDICT_STYLE = {
    "within tolerance": "bold green",
    "out of tolerance": "bold red",
    "could not judge": "bold yellow",
}
WIDTH = 80


@with_reading
def validate(
    reading: Reading,
    source: CheckpointSource,
    candidate: Annotated[
        Path,
        typer.Option("--candidate", metavar="DIR", help="The folder that `onnx` wrote."),
    ],
    text: TextFile = None,
    windows: Annotated[
        int | None,
        typer.Option(
            "--windows",
            metavar="N",
            help="Windows of up to 256 tokens; 4 to 16 by the model's size, if not given.",
        ),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare an exported folder with torch in float64 and in its own dtype.

    Exit code 0 within tolerance, 1 out of tolerance, 2 could not judge.
    """
    from andrea_export.graph import open_graph
    from andrea_export.report import ValidateOptions
    from andrea_export.report import validate as validate_graph

    checkpoint = reading.open(source)
    options = ValidateOptions(text=text, windows=windows)
    with progress_bar("Comparing with torch") as progress:
        validation = validate_graph(checkpoint, open_graph(candidate), options, progress=progress)
    if as_json:
        print_json(validation.to_dict())
    else:
        print_validation(validation, verbose=verbose)
    raise typer.Exit(validation.exit_code)


def print_validation(validation: Validation, *, verbose: bool = False) -> None:
    """The table, what explains it, and the verdict in one sentence, at most 80 columns wide."""
    from rich.text import Text

    console = stdout(WIDTH)
    data = validation.data
    console.print(
        f"{data.source}: {len(data.windows)} windows of {data.tokens_per_window} tokens; "
        "relative means to the RMS of the logits",
        soft_wrap=True,
    )
    for row in validation.rows:
        console.print()
        if row.figures is not None:
            console.print(_table(validation, row, row.figures))
        else:
            console.print(Text.assemble((row.label, "bold"), ": could not run"))
        if row.note:
            console.print(f"  {row.note}", style="dim")
        if row.error:
            console.print(f"  could not judge: {row.error}")
        for failure in row.failures:
            console.print(Text.assemble(("  out: ", "red"), str(failure)))
        if verbose:
            console.print(f"  {row.seconds:.2f} s in forward passes", style="dim")
    console.print()
    if validation.rounded_weights is not None:
        share = validation.rounded_weights
        console.print(
            f"Rounding the weights to {validation.dtype} alone explains "
            f"{share.rms_error:.1e} RMS, {share.max_error:.1e} max."
        )
    for warning in validation.warnings:
        console.print(Text.assemble(("Note: ", "yellow"), str(warning)))
    console.print(validation.sentence, style=VERDICT_STYLE[validation.status])


def _table(validation: Validation, row: Row, figures: Figures) -> Table:
    from rich.table import Table

    from andrea_export.report.tolerance import TOLERANCE, allowed

    table = Table(title=row.label, title_justify="left", title_style="bold", box=None)
    table.add_column("")
    for name in ("float64", f"torch {validation.dtype}", "candidate", "ratio", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    failed = {failure.figure for failure in row.failures}
    for name, (label, form) in FIGURES.items():
        value, own = getattr(figures, name), getattr(validation.baseline, name)
        if value is None:
            continue
        limit = (
            allowed(name, validation.baseline, validation.dtype)
            if name in TOLERANCE[validation.dtype]
            else None
        )
        ratio = row.ratios.get(name)
        table.add_row(
            label,
            _number(validation.reference_perplexity, form) if name == "perplexity" else "",
            _number(own, form),
            _number(value, form),
            "" if ratio is None else f"{ratio:.2f}×" if ratio < 1000 else ">999×",
            "" if limit is None else _number(limit, form),
            style="red" if name in failed else None,
        )
    counts = [f"{each.nan_count + each.inf_count}" for each in (validation.baseline, figures)]
    table.add_row(
        "NaN and Inf",
        "0",
        *counts,
        "",
        "",
        style="red" if figures.new_nonfinite else None,
    )
    return table


def _number(value: float | None, form: str) -> str:
    if value is None or value != value:
        return "-"
    return "0" if value == 0 else form.format(value)

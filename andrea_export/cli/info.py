"""`andrea-export info`: what is in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.console import note, print_json, progress_bar, stdout
from andrea_export.cli.options import (
    CheckpointSource,
    Json,
    Reading,
    Verbose,
    with_reading,
)

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint
    from andrea_model.probe import ProbeResult

PROBE_ROWS = 10


@with_reading
def info(
    reading: Reading,
    source: CheckpointSource,
    probe: Annotated[
        str | None,
        typer.Option(
            "--probe",
            metavar="TEXT",
            help="Try every layout of a .bin on real text (a file, or the text itself) "
            "and rank them by loss.",
        ),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show a checkpoint's configuration and parameters, or find the layout of a .bin."""
    checkpoint = reading.open(source, print_notes=False)
    ranking = None if probe is None else _probe(checkpoint, probe)
    if as_json:
        print_json(_as_dict(checkpoint, ranking))
        return
    _print(checkpoint)
    if verbose:
        _print_tensors(checkpoint)
    if ranking is not None:
        _print_ranking(ranking)


def _probe(checkpoint: Checkpoint, probe: str) -> list[ProbeResult]:
    from andrea_export.text_file import read_text
    from andrea_model.probe import probe_layouts

    try:
        is_file = Path(probe).exists()
    except OSError:  # too long for a path, so it is the text itself
        is_file = False
    text = read_text(Path(probe)) if is_file else probe
    with progress_bar("Trying layouts") as progress:
        return probe_layouts(checkpoint, text, progress=progress)


def _as_dict(checkpoint: Checkpoint, ranking: list[ProbeResult] | None) -> dict[str, Any]:
    from dataclasses import asdict

    from andrea_model.parameters import count_parameters
    from andrea_model.summary import label_note, parts

    result: dict[str, Any] = {
        "source": None if checkpoint.path is None else str(checkpoint.path),
        "format": checkpoint.format,
        "step": checkpoint.step,
        "seed": checkpoint.seed,
        "layout": None if checkpoint.layout is None else str(checkpoint.layout),
        "sha256": checkpoint.sha256(),
        "config": checkpoint.config.to_dict(),
        "parameters": count_parameters(checkpoint.config),
        "parts": [asdict(part) for part in parts(checkpoint.config)],
        "label_note": label_note(checkpoint.config),
        "notes": list(checkpoint.notes),
    }
    if ranking is not None:
        result["probe"] = [row.to_dict() for row in ranking]
    return result


def _print(checkpoint: Checkpoint) -> None:
    from rich.table import Table

    from andrea_model.parameters import count_parameters
    from andrea_model.summary import label_note, parts

    console, config = stdout(), checkpoint.config
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rows: dict[str, object] = {
        "checkpoint": checkpoint.path or "random weights",
        "format": checkpoint.format,
        "step": checkpoint.step,
        "layout": checkpoint.layout,
        "tokenizer": checkpoint.tokenizer_path,
    }
    rows |= {key: value for key, value in config.to_dict().items() if key != "model_type"}
    rows["mlp_ratio"] = f"{config.mlp_dim / config.d_model:g} (mlp_dim {config.mlp_dim})"
    rows["n_head"] = f"{config.n_head} (head_dim {config.head_dim})"
    for key, value in rows.items():
        if value is not None:
            facts.add_row(key, str(value))
    console.print(facts)

    table = Table(title="Parameters", title_justify="left", title_style="bold")
    table.add_column("part")
    for column in ("tensors", "parameters", "share"):
        table.add_column(column, justify="right")
    total = count_parameters(config)
    for part in parts(config):
        share = f"{part.parameters / total:.1%}"
        table.add_row(part.name, str(part.tensors), f"{part.parameters:,}", share)
    table.add_section()
    tensors = sum(part.tensors for part in parts(config))
    table.add_row("total", str(tensors), f"{total:,}", "100.0%")
    console.print(table)
    if config.tied_head:
        console.print("The output head is the token embedding (tied): it is counted once.")
    label = label_note(config)
    for line in (*([label] if label else []), *checkpoint.notes):
        console.print(line)


def _print_tensors(checkpoint: Checkpoint) -> None:
    from rich.table import Table

    table = Table(title="Tensors", title_justify="left", title_style="bold")
    for column in ("name", "shape", "dtype"):
        table.add_column(column)
    for name, array in checkpoint.tensors.items():
        table.add_row(name, str(list(array.shape)), array.dtype.name)
    stdout().print(table)


def _print_ranking(ranking: list[ProbeResult]) -> None:
    from rich.table import Table

    console = stdout()
    table = Table(title="Layouts by loss on the text", title_justify="left", title_style="bold")
    table.add_column("nats/token", justify="right")
    table.add_column("perplexity", justify="right")
    # Folded, not cut: the end of a layout is as much what one looks for as its beginning.
    table.add_column("layout", overflow="fold")
    table.add_column("ids", overflow="fold")
    for row in ranking[:PROBE_ROWS]:
        figures = f"{row.loss:.4f}", f"{row.perplexity:.1f}"
        table.add_row(*figures, str(row.layout or ""), row.id_layout or "")
    console.print(table)
    best = ranking[0]
    console.print(f"{len(ranking)} were tried; one that knows nothing has {best.uniform_loss:.4f}.")
    if not best.beats_uniform:
        note("No layout is better than chance on this text: wrong tokenizer, or untrained weights.")
        return
    if len(ranking) > 1:
        # Wrong orders of q, k, v, o still read better than chance: the gap is what tells.
        console.print(f"The best is {ranking[1].loss - best.loss:.4f} nats before the second.")
    if best.layout is not None:
        console.print(f"Use it with: --layout {best.layout}", soft_wrap=True)
    if best.id_layout is not None:
        console.print(f'Its ids: "id_layout": "{best.id_layout}" in the tokenizer\'s JSON object.')

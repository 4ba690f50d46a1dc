"""`andrea-export onnx`: a checkpoint becomes an ONNX model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.console import note, print_json, progress_bar
from andrea_export.cli.options import (
    CheckpointSource,
    Force,
    Json,
    Output,
    Reading,
    Verbose,
    with_reading,
)

if TYPE_CHECKING:
    from andrea_export.graph import GraphFolder
    from andrea_model.checkpoint import Checkpoint


@with_reading
def onnx(
    reading: Reading,
    source: CheckpointSource,
    output: Output,
    dtype: Annotated[
        str, typer.Option("--dtype", help="fp32, fp16 or bf16: of weights and activations.")
    ] = "fp32",
    ops: Annotated[
        str,
        typer.Option(
            "--ops",
            help="plugin: custom ops that carry their definition. standard: none of them.",
        ),
    ] = "plugin",
    opset: Annotated[
        int,
        typer.Option(
            "--opset",
            help="ONNX opset, 20 to 24; 0 takes the lowest that will do.",
            show_default=False,
        ),
    ] = 0,
    kv_cache: Annotated[
        bool,
        typer.Option("--kv-cache", help="One graph for prefill and decode, over a static cache."),
    ] = False,
    logits: Annotated[
        str,
        typer.Option("--logits", help="all, or last: of each row's last token (with --kv-cache)."),
    ] = "all",
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Compare with torch on real text after writing."),
    ] = True,
    force: Force = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Export a checkpoint to ONNX, and check that it is still the same model."""
    from andrea_export.graph import GraphOptions, export_graph
    from andrea_export.whole_folder import check_output

    options = GraphOptions(
        dtype=dtype,  # type: ignore[arg-type]
        ops=ops,  # type: ignore[arg-type]
        opset=opset,
        kv_cache=kv_cache,
        logits=logits,  # type: ignore[arg-type]
    )
    check_output(output, force=force)
    checkpoint = reading.open(source)
    with progress_bar("Writing weights") as progress:
        graph = export_graph(checkpoint, output, options, force=force, progress=progress)
    note(_summary(graph))
    result: dict[str, Any] = {"output": str(graph.path), "bytes": graph.nbytes, **graph.record}
    exit_code = 0
    if check:
        exit_code, result["check"] = _check(checkpoint, graph, show=not as_json, verbose=verbose)
    if as_json:
        print_json(result)
    raise typer.Exit(exit_code)


def _summary(graph: GraphFolder) -> str:
    ops = ", ".join(f"{count} {name}" for name, count in graph.record["custom_ops"].items())
    return (
        f"{graph.path}: {graph.options.dtype}, opset {graph.options.opset}, "
        f"{graph.nbytes / 1e6:.1f} MB; {ops or 'standard ops only'}"
    )


def _check(
    checkpoint: Checkpoint, graph: GraphFolder, *, show: bool, verbose: bool
) -> tuple[int, dict[str, Any]]:
    from andrea_export.cli.validate import print_validation
    from andrea_export.report import validate

    with progress_bar("Comparing with torch") as progress:
        validation = validate(checkpoint, graph, progress=progress)
    if show:
        print_validation(validation, verbose=verbose)
    return validation.exit_code, validation.to_dict()

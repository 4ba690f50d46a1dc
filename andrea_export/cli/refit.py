"""`andrea-export refit`: weights go back into a stripped engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from andrea_export.cli.console import note, print_json
from andrea_export.cli.options import Force, Json, Output


def refit(
    engine: Annotated[
        Path, typer.Argument(metavar="ENGINE", help="A folder that `trt --strip-weights` wrote.")
    ],
    graph: Annotated[
        Path, typer.Argument(metavar="GRAPH", help="The folder or file that it was built from.")
    ],
    output: Output,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Put the weights back into a stripped engine, on the GPU that will run it."""
    from andrea_export.engine.refit import refit_engine

    whole = refit_engine(engine, graph, output, force=force)
    note(f"{whole.path}: {whole.precision}, {whole.sidecar['bytes'] / 1e6:.1f} MB")
    if as_json:
        print_json({"output": str(whole.path), **whole.sidecar})

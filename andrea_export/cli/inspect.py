"""`andrea-export inspect`: what is inside a graph or an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.console import note, print_json, stdout
from andrea_export.cli.options import Json
from andrea_export.errors import OutputError

if TYPE_CHECKING:
    from rich.table import Table

    from andrea_export.inspection import Inspection

CACHE = ("past_key_values.", "present.")


def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="An exported folder, ONNX file or engine folder.")
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a picture of the structure."),
    ] = None,
    show_layers: Annotated[
        bool, typer.Option("--layers", help="List every layer with its types.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show inputs, profiles, layers, weights and custom ops. No GPU is needed."""
    from andrea_export.inspection import inspect_path, picture

    inspection = inspect_path(path)
    if html is not None:
        try:
            html.write_text(picture(inspection), "utf-8")
        except OSError as error:
            raise OutputError(f"{html} cannot be written: {error.strerror or error}") from error
        note(f"{html}: a picture of {path}")
    if as_json:
        print_json(inspection.to_dict())
    elif html is None or show_layers:
        _print(inspection, show_layers)


def _print(inspection: Inspection, show_layers: bool) -> None:
    from andrea_export.inspection.inspection import size_text

    console = stdout()
    facts = _table("")
    for key, value in inspection.facts.items():
        facts.add_row(key, value)
    console.print(f"{inspection.kind} {inspection.path}")
    console.print(facts)
    for title, tensors in (("Inputs", inspection.inputs), ("Outputs", inspection.outputs)):
        table = _table(title, "name", "dtype", "shape")
        for tensor in tensors:
            table.add_row(tensor.name, tensor.dtype, f"[{', '.join(map(str, tensor.shape))}]")
        console.print(table)
    for number, profile in enumerate(inspection.profiles):
        table = _table(f"Profile {number}", "input", "min", "opt", "max")
        shown = {name: bounds for name, bounds in profile.items() if not name.startswith(CACHE)}
        for name, bounds in shown.items():
            table.add_row(name, *("x".join(map(str, bounds[c])) for c in ("min", "opt", "max")))
        console.print(table)
    table = _table("Parts", "part", "layers", "types", "parameters", "weights")
    for part in inspection.parts():
        types = ", ".join(f"{count} {dtype}" for dtype, count in part.dtypes.most_common())
        table.add_row(
            part.name,
            str(part.layers),
            types,
            f"{part.parameters:,}",
            size_text(part.weight_bytes),
        )
    console.print(table)
    if inspection.custom_ops:
        console.print(_custom_ops(inspection))
    if show_layers:
        table = _table("Layers", "name", "type", "outputs", "custom op")
        for layer in inspection.layers:
            form = f"{layer.custom_op} {layer.form}".strip()
            table.add_row(layer.name, layer.op, ", ".join(layer.dtypes), form)
        console.print(table)
    for line in inspection.notes:
        console.print(line)


def _custom_ops(inspection: Inspection) -> Table:
    table = _table("Custom ops", "op", "nodes", "form")
    for op, facts in inspection.custom_ops.items():
        table.add_row(op, str(facts["nodes"]), _forms(inspection.kind, facts["forms"]))
    return table


def _forms(kind: str, forms: dict[str, Any]) -> str:
    if kind == "engine":
        return ", ".join(f"{count} as {form}" for form, count in forms.items())
    return ", ".join(f"{form} in {runtime}" for runtime, form in forms.items())


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(
        *columns, title=title or None, title_justify="left", title_style="bold", box=None,
        padding=(0, 2, 0, 0), show_header=bool(columns),
    )  # fmt: skip
    for column in table.columns:
        if column.header in ("layers", "parameters", "weights", "nodes"):
            column.justify = "right"
    return table

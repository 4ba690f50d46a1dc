"""`andrea-export plugins`: the TensorRT plugin library."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.console import note, print_json, progress_bar, stdout
from andrea_export.cli.options import Json

if TYPE_CHECKING:
    from andrea_export.plugins import LibraryContents

app = typer.Typer(
    name="plugins", help="Compile the TensorRT plugin library, or show one.", no_args_is_help=True
)


@app.command("build")
def build(
    arch: Annotated[
        str,
        typer.Option("--arch", help="all; native (this machine's GPU); or a list such as 80,90."),
    ] = "all",
    nvcc: Annotated[
        Path | None, typer.Option("--nvcc", metavar="PATH", help="The CUDA compiler.")
    ] = None,
    tensorrt_include: Annotated[
        Path | None,
        typer.Option(
            "--tensorrt-include", metavar="DIR", help="The folder that holds NvInferRuntime.h."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile the plugin library, or find it in the cache."""
    from andrea_export.plugins import BuildOptions, build_plugins, parse_architectures

    options = BuildOptions(
        architectures=parse_architectures(arch), nvcc=nvcc, tensorrt_include=tensorrt_include
    )
    with progress_bar("Compiling plugins") as progress:
        built = build_plugins(options, progress=progress)
    for warning in built.warnings:
        note(f"warning: {warning}")
    if as_json:
        print_json({**asdict(built), "library": str(built.library), "log": str(built.log)})
        return
    origin = "from the cache" if built.cached else f"compiled in {built.seconds:.0f} s"
    print(built.library)
    note(f"for {', '.join(f'sm_{name}' for name in built.architectures)}; {origin}")


@app.command("list")
def show(
    library: Annotated[
        Path | None, typer.Argument(metavar="LIBRARY", help="Default: the one built last.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the plugins in a compiled library."""
    from andrea_export.plugins import newest_library, read_library

    contents = read_library(library or newest_library())
    if as_json:
        print_json({**asdict(contents), "library": str(contents.library)})
        return
    _print(contents)


def _print(contents: LibraryContents) -> None:
    from rich.table import Table

    console = stdout()
    console.print(str(contents.library), soft_wrap=True)
    console.print(
        f"for {', '.join(f'sm_{name}' for name in contents.architectures)}; "
        f"{', '.join(contents.types)}; rows up to {contents.max_width:,} wide; "
        f"headers of TensorRT {contents.tensorrt_headers}",
        soft_wrap=True,
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("plugin", "version", "namespace", "inputs", "outputs", "fields"):
        table.add_column(column)
    for plugin in contents.plugins:
        fields = ", ".join(f"{name} ({kind})" for name, kind in plugin.fields.items())
        row = (plugin.name, plugin.version, plugin.namespace, plugin.inputs)
        table.add_row(*row, str(plugin.outputs), fields)
    console.print(table)

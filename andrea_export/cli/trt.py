"""`andrea-export trt`: a graph or a checkpoint becomes a TensorRT engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.console import note, print_json, progress_bar
from andrea_export.cli.options import (
    Force,
    Json,
    Output,
    Reading,
    with_reading,
)
from andrea_export.errors import EngineError

if TYPE_CHECKING:
    from andrea_export.engine import EngineFolder

_PROFILES = "Shapes"
_BUILDER = "The builder"


@with_reading
def trt(
    reading: Reading,
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="An exported folder, an ONNX file, or a checkpoint."),
    ],
    output: Output,
    fp16: Annotated[bool, typer.Option("--fp16", help="Half precision.")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="bfloat16.")] = False,
    fp32: Annotated[
        bool, typer.Option("--fp32", help="Full precision. Default: what the graph has.")
    ] = False,
    flavor: Annotated[
        str,
        typer.Option("--flavor", help="auto, tensorrt (needs a GPU) or rtx (TensorRT-RTX)."),
    ] = "auto",
    compute_capability: Annotated[
        str | None,
        typer.Option(
            "--compute-capability", metavar="CC", help="GPUs to build for (rtx): 8.9 or 8.9,12.0."
        ),
    ] = None,
    plugins: Annotated[
        str, typer.Option("--plugins", help="auto, on or off: our CUDA plugins for custom ops.")
    ] = "auto",
    plugin_library: Annotated[
        Path | None,
        typer.Option("--plugin-library", metavar="FILE", help="Instead of the newest built one."),
    ] = None,
    kv_cache: Annotated[
        bool,
        typer.Option("--kv-cache", help="Give a checkpoint's graph a key/value cache."),
    ] = False,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="NAME=MIN:OPT:MAX,...",
            help='Shapes to tune for, as "input_ids=1x1:1x128:8x1024"; repeatable.',
            rich_help_panel=_PROFILES,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", metavar="MIN:OPT:MAX", help="Rows at a time.", rich_help_panel=_PROFILES
        ),
    ] = None,
    sequence: Annotated[
        str | None,
        typer.Option(
            "--sequence", metavar="MIN:OPT:MAX", help="Tokens a row.", rich_help_panel=_PROFILES
        ),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity",
            metavar="N",
            help="Length of the cache. Default: the context length.",
            rich_help_panel=_PROFILES,
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            metavar="SIZE",
            help="Scratch memory a kernel may use, as 4G.",
            rich_help_panel=_BUILDER,
        ),
    ] = None,
    optimization_level: Annotated[
        int | None,
        typer.Option(
            "--optimization-level", help="0 (quick) to 5 (thorough).", rich_help_panel=_BUILDER
        ),
    ] = None,
    timing_cache: Annotated[
        Path | None,
        typer.Option(
            "--timing-cache",
            metavar="FILE",
            help="Measured kernels, kept from build to build.",
            rich_help_panel=_BUILDER,
        ),
    ] = None,
    version_compatible: Annotated[
        bool,
        typer.Option(
            "--version-compatible",
            help="Runs on later TensorRT versions too.",
            rich_help_panel=_BUILDER,
        ),
    ] = False,
    hardware_compatible: Annotated[
        bool,
        typer.Option(
            "--hardware-compatible",
            help="Runs on other GPUs too, from Ampere on.",
            rich_help_panel=_BUILDER,
        ),
    ] = False,
    strip_weights: Annotated[
        bool,
        typer.Option(
            "--strip-weights",
            help="Leave the weights out; `refit` puts them back.",
            rich_help_panel=_BUILDER,
        ),
    ] = False,
    layer_tensors: Annotated[
        str,
        typer.Option(
            "--layer-tensors",
            metavar="WHICH",
            help="off, unfused, named or outputs: tensors for `report` to see inside.",
            rich_help_panel=_BUILDER,
        ),
    ] = "off",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Build a TensorRT engine that is what it was asked to be."""
    from andrea_export.engine import EngineOptions, build_engine
    from andrea_export.engine.options import parse_bytes
    from andrea_export.engine.sidecar import SIDECAR_FILE
    from andrea_export.engine.source import is_graph_source
    from andrea_export.whole_folder import check_output

    options = EngineOptions(
        dtype=_dtype(fp16=fp16, bf16=bf16, fp32=fp32),
        flavor=flavor,
        plugins=plugins,  # type: ignore[arg-type]
        plugin_library=plugin_library,
        compute_capability=compute_capability,
        profiles=tuple(profile or ()),
        batch=batch,
        sequence=sequence,
        capacity=capacity,
        kv_cache=kv_cache,
        workspace_bytes=None if workspace is None else parse_bytes(workspace),
        optimization_level=optimization_level,
        timing_cache=timing_cache,
        version_compatible=version_compatible,
        hardware_compatible=hardware_compatible,
        strip_weights=strip_weights,
        layer_tensors=layer_tensors,  # type: ignore[arg-type]
    )
    check_output(output, force=force, record=SIDECAR_FILE)
    opened: Any = Path(source)
    if reading.random_weights is not None or not is_graph_source(opened):
        opened = reading.open(source)
    else:
        reading.refuse(source, "a graph, read as it is", tokenizer=True)
    with progress_bar("Building the engine") as progress:
        engine = build_engine(opened, output, options, force=force, progress=progress, note=note)
    note(_summary(engine))
    if as_json:
        print_json({"output": str(engine.path), **engine.sidecar})


def _dtype(**chosen: bool) -> str | None:
    names = [name for name, given in chosen.items() if given]
    if len(names) > 1:
        raise EngineError(f"one precision at a time, not --{' and --'.join(names)}")
    return names[0] if names else None


def _summary(engine: EngineFolder) -> str:
    sidecar = engine.sidecar
    seconds = sidecar["seconds"]
    forms = ", ".join(
        f"{count} {op} as {form}"
        for op, counts in sidecar["custom_ops"].items()
        for form, count in counts.items()
    )
    profiles = "; ".join(_profile(profile) for profile in sidecar["profiles"])
    return (
        f"{engine.path}: {engine.precision}, {sidecar['flavor']} {sidecar['version']} for compute "
        f"capability {', '.join(sidecar['compute_capabilities'])}, "
        f"{sidecar['bytes'] / 1e6:.1f} MB, built in {seconds['total']:.1f} s "
        f"(peak {sidecar['peak_rss_bytes'] / 1e6:.0f} MB)\n"
        f"custom ops: {forms or 'none'}\n"
        f"profiles: {profiles}"
        + ("" if engine.layer_tensors is None else f"\nlayer tensors: {engine.layer_tensors}")
    )


def _profile(profile: dict[str, dict[str, list[int]]]) -> str:
    if not profile:
        return "no inputs"
    name, bounds = next(iter(profile.items()))
    return f"{name} " + ":".join("x".join(map(str, shape)) for shape in bounds.values())

"""Engines of the demo model that show their layers: how many taps a report sees in each form.

Without a GPU (a dry run) the engines are built for a named GPU by TensorRT-RTX, and the report says
why it cannot run them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["Sight", "check_layers", "missing_for_layers"]

FORMS = ("unfused", "named", "outputs")
DTYPES = ("fp32", "fp16")
DRY_DTYPES = ("fp16",)
SHOWS_ALL = ("named", "outputs")
DRY_CAPABILITY = "8.9"
MODULES = ("onnx", "onnx_ir", "ml_dtypes", "tokenizers")


@dataclass(frozen=True)
class Sight:
    """What a report saw of one engine.

    Attributes:
        form, dtype: of the engine. flavor: that built it.
        marked: as its sidecar records it.
        seen, taps: how many of how many.
        status: the report's verdict.
        told: what it says of the layers, or why it could not look.
    """

    form: str
    dtype: str
    flavor: str
    marked: str
    seen: int
    taps: int
    status: str
    told: str

    def __str__(self) -> str:
        return (
            f"layers of {self.flavor} {self.dtype} {self.form}: seen {self.seen} of {self.taps} "
            f"taps, {self.status}{f'; {self.told}' if self.told else ''}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def fault(self) -> str | None:
        """What is wrong with it, on a machine that can run it."""
        if self.status != "within tolerance":
            return f"layers of {self.dtype} {self.form}: {self.status}: {self.told}"
        if self.form in SHOWS_ALL and self.seen != self.taps:
            return f"layers of {self.dtype} {self.form}: only {self.seen} of {self.taps} taps seen"
        return None


def missing_for_layers(*, dry_run: bool) -> str | None:
    """Why no such engine can be built here, or None."""
    from andrea_export.engine import binding, building
    from andrea_export.engine.flavors import FLAVORS, is_installed
    from andrea_export.engine.gpus import machine

    wanted = ("rtx",) if dry_run else tuple(FLAVORS)
    if not any(is_installed(FLAVORS[name]) for name in wanted):
        return f"{' or '.join(FLAVORS[name].module for name in wanted)} is not installed"
    if not dry_run and not is_installed(FLAVORS["tensorrt"]):
        binding.use_flavor("rtx")
        capability = machine().gpus[0].compute_capability
        if capability not in building.known_capabilities():
            return f"TensorRT-RTX does not build for compute capability {capability}"
    return next((f"{m} is not installed" for m in MODULES if find_spec(m) is None), None)


def check_layers(folder: Path, say: Callable[[str], None], *, dry_run: bool) -> list[Sight]:
    """Build every form in every type below `folder`, report on them, and say what was seen."""
    from andrea_export.report.candidates import CandidateSpec
    from andrea_export.report.make import ReportOptions, make_report
    from andrea_model import open_checkpoint

    checkpoint = open_checkpoint("andrea-nano")
    sights = []
    for dtype in DRY_DTYPES if dry_run else DTYPES:
        engines = _build(checkpoint, folder, dtype, dry_run=dry_run)
        specs = [CandidateSpec(str(engine.path)) for engine in engines]
        report = make_report(checkpoint, specs, ReportOptions(quick=True))
        for engine, candidate in zip(engines, report.candidates, strict=True):
            sights.append(_sight(engine, candidate, dtype, checkpoint))
            say(str(sights[-1]))
    return sights


def _build(checkpoint: Any, folder: Path, dtype: str, *, dry_run: bool) -> list[Any]:
    from andrea_export.engine import EngineOptions, build_engine
    from andrea_export.graph import GraphOptions, export_graph

    graph = export_graph(
        checkpoint,
        folder / dtype,
        GraphOptions(dtype=dtype),  # type: ignore[arg-type]
        force=True,
    )
    return [
        build_engine(
            graph.path,
            folder / f"{dtype}-{form}",
            EngineOptions(
                flavor="rtx" if dry_run else "auto",
                compute_capability=DRY_CAPABILITY if dry_run else None,
                layer_tensors=form,  # type: ignore[arg-type]
            ),
            force=True,
        )
        for form in FORMS
    ]


def _sight(engine: Any, candidate: Any, dtype: str, checkpoint: Any) -> Sight:
    from andrea_export.layer_names import tap_names

    told, seen = candidate.error or "", 0
    for way in candidate.ways:
        layers = [note for note in way.notes if note.startswith("layers: ")]
        told = way.error or way.no_layers or "; ".join(layers)
        seen = 0 if way.layers is None else len(way.layers.rows)
    return Sight(
        form=engine.layer_tensors.form,
        dtype=dtype,
        flavor=engine.flavor,
        marked=str(engine.layer_tensors),
        seen=seen,
        taps=len(tap_names(checkpoint.config)),
        status=candidate.status,
        told=told,
    )

"""What is judged: folders, engines and checkpoints, and the ways in which each can be run here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from andrea_export.black_box import NO_BOX, BlackBox
from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import AndreaExportError, BackendError, InputError, NonFiniteWeightsError
from andrea_export.graph.folder import GraphFolder
from andrea_export.report.comparison import Contender
from andrea_export.report.detail import DetailedAccumulator
from andrea_export.report.provenance import check_same_model, provenance_warnings
from andrea_export.report.rounding_executor import RoundingSession
from andrea_export.report.taps import OnnxTaps, RoundingTaps, Taps, TorchTaps, onnx_threads
from andrea_export.report.torch_models import BaselineSession
from andrea_export.session import Session, open_session
from andrea_export.session.cached import CachedSession
from andrea_export.session.onnx_session import CachedOnnxSession, OnnxSession
from andrea_export.session.opening import Source, open_source
from andrea_export.session.torch_session import TorchSession
from andrea_model.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Candidate", "CandidateSpec", "Way", "open_candidate"]

FLOAT32_NOTE = "fp16 graph computed in float32 by this provider: no proof of half precision"
SIMULATED_NOTE = "simulated: every node's result rounded to its declared type"
NO_BF16_NOTE = f"{SIMULATED_NOTE}; ONNX Runtime's CPU provider has no bf16 kernels"
NO_TAPS_IN_ENGINE = (
    "the engine was built without layer tensors and shows its logits alone: build it with "
    "`andrea-export trt --layer-tensors unfused` to see what fusion leaves, or with `named` to see "
    "all, which can change what is fused"
)
FUSION_NOTE = (
    "built with --layer-tensors {form}, which can keep kernels from fusing: an engine without them "
    "may have other figures"
)
SPEC_KEYS = ("dtype", "provider")


@dataclass(frozen=True)
class CandidateSpec:
    """A candidate as the command line names it: `PATH[,dtype=D][,provider=P]`.

    dtype: of a checkpoint, which torch runs; fp32 if not given. provider: of ONNX Runtime, for an
    exported folder; cpu if not given.
    """

    path: str
    dtype: str | None = None
    provider: str | None = None

    @staticmethod
    def parse(text: str) -> CandidateSpec:
        """A path may hold commas: where the whole text exists, or all before its settings.

        Raises:
            InputError: no path, one that is not UTF-8, or a key that does not exist.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"candidate {text!a}: its path is not UTF-8 and cannot stand in a report; "
                "give it by a link of another name"
            ) from error
        path, values = text, dict[str, str]()
        while not Path(path).exists() and "," in path:
            path, _, setting = path.rpartition(",")
            key, equals, value = setting.partition("=")
            if key not in SPEC_KEYS or not equals:
                raise InputError(
                    f"candidate {text!r}: {setting!r} is not one of "
                    f"{', '.join(f'{key}=VALUE' for key in SPEC_KEYS)}"
                )
            values.setdefault(key, value)
        if not path:
            raise InputError(f"candidate {text!r} has no path")
        return CandidateSpec(path, **values)

    def __str__(self) -> str:
        values = {key: getattr(self, key) for key in SPEC_KEYS}
        return ",".join([self.path, *(f"{key}={value}" for key, value in values.items() if value)])


@dataclass
class Way:
    """One way of running a candidate (or a baseline), and what has been gathered about it.

    Attributes:
        contender: the session and its fate.
        open_taps: opens a second one that shows its inside.
        no_taps: why there is no such thing.
        place: its name in the black box.
        sets: data set → figures so far.
        partings: of each greedy text, the first token that differs; None where none does.
        skipped: data set → why this way cannot take it.
    """

    contender: Contender
    open_taps: Callable[[], Taps] | None = None
    no_taps: str | None = None
    place: str = ""
    sets: dict[str, DetailedAccumulator] = field(default_factory=dict)
    partings: tuple[int | None, ...] | None = None
    skipped: dict[str, str] = field(default_factory=dict)

    def gathered(self, name: str) -> DetailedAccumulator:
        return self.sets.setdefault(name, DetailedAccumulator())

    @property
    def steps(self) -> bool:
        """Whether it has a cache of its own to step over; torch's is not what is judged."""
        session = self.contender.session
        return isinstance(session, CachedSession) and not isinstance(session, TorchSession)


@dataclass
class Candidate:
    """One artefact.

    Attributes:
        spec: as it was named. number: its place in the list.
        black_box: notes when one of its ways runs.
        kind: graph, engine or checkpoint; "unknown" where it cannot be opened.
        dtype: in which it is judged.
        ways: of running it here.
        facts: hashes, options and versions that it carries.
        warnings: what may explain a bad result.
        error: why it cannot be judged at all.
    """

    spec: CandidateSpec
    number: int = 0
    black_box: BlackBox = NO_BOX
    kind: str = "unknown"
    dtype: str = "fp32"
    ways: list[Way] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def name(self) -> str:
        return str(self.spec)


def open_candidate(
    spec: CandidateSpec, checkpoint: Checkpoint, number: int = 0, black_box: BlackBox = NO_BOX
) -> Candidate:
    """A candidate with all ways of running it. What cannot be opened says so; nothing is raised."""
    candidate = Candidate(spec, number, black_box)
    try:
        source = _open(spec.path)
        if isinstance(source, GraphFolder):
            _add_graph(candidate, source, checkpoint)
        elif isinstance(source, EngineFolder):
            _add_engine(candidate, source, checkpoint)
        else:
            _add_checkpoint(candidate, source, checkpoint)
    except AndreaExportError as error:
        candidate.error = str(error)
    return candidate


def _open(path: str) -> Source:
    """NaN among the weights is no reason to stop here: it is judged, and named to its layer."""
    try:
        return open_source(path)
    except NonFiniteWeightsError:
        return open_checkpoint(path, allow_nonfinite=True)


def _add_graph(candidate: Candidate, graph: GraphFolder, checkpoint: Checkpoint) -> None:
    candidate.kind, candidate.dtype = "graph", graph.options.dtype
    candidate.facts = {
        "options": asdict(graph.options),
        "sha256": graph.record["sha256"],
        "exported_by": graph.record.get("andrea_export"),
        "libraries": graph.record.get("libraries", {}),
        "custom_ops": graph.record.get("custom_ops", {}),
    }
    check_same_model(checkpoint.config, graph.config, graph.path)
    candidate.warnings += provenance_warnings(checkpoint, graph)
    dtype, provider = candidate.dtype, candidate.spec.provider or "cpu"
    if candidate.spec.dtype not in (None, dtype):
        raise BackendError(
            f"dtype={candidate.spec.dtype} was asked for, and the graph is {dtype}: its dtype is "
            f"decided by `andrea-export onnx --dtype {candidate.spec.dtype}`"
        )
    if provider != "cpu":
        label = f"ONNX Runtime ({provider}, {dtype})"
        way = _way(candidate, label, lambda: _onnx_session(graph, provider))
        way.open_taps = lambda: OnnxTaps(graph, provider)
        candidate.ways = [way]
        return
    if dtype != "fp32":
        note = NO_BF16_NOTE if dtype == "bf16" else SIMULATED_NOTE
        label = f"rounding executor (CPU, {dtype})"
        simulated = _way(candidate, label, lambda: RoundingSession(graph))
        simulated.contender.note = note
        simulated.open_taps = lambda: RoundingTaps(graph)
        candidate.ways.append(simulated)
    if dtype == "bf16":
        return
    if find_spec("onnxruntime") is None and dtype != "fp32":
        candidate.warnings.append(
            "onnxruntime is not installed: the graph was simulated only, and not run"
        )
        return
    label = f"ONNX Runtime (CPU, {dtype})"
    runtime = _way(candidate, label, lambda: _onnx_session(graph, "cpu"))
    runtime.open_taps = lambda: OnnxTaps(graph)
    if dtype == "fp16":
        runtime.contender.executes_dtype, runtime.contender.note = False, FLOAT32_NOTE
    candidate.ways.append(runtime)


def _add_engine(candidate: Candidate, engine: EngineFolder, checkpoint: Checkpoint) -> None:
    candidate.kind = "engine"
    names = ("flavor", "version", "compute_capabilities", "sha256", "options", "custom_ops")
    candidate.facts = {name: engine.sidecar.get(name) for name in names}
    candidate.dtype = engine.precision
    if candidate.dtype not in ("fp32", "fp16", "bf16"):
        candidate.dtype = "fp16"
        candidate.warnings.append(
            f"the engine's precision is {engine.precision}: it is judged as fp16"
        )
    _refuse_provider(candidate, "an engine")
    if candidate.spec.dtype not in (None, candidate.dtype):
        raise BackendError(
            f"dtype={candidate.spec.dtype} was asked for, and the engine is {candidate.dtype}"
        )
    if engine.config is not None:
        check_same_model(checkpoint.config, engine.config, engine.path)
    label = f"{engine.flavor} engine ({candidate.dtype})"
    way = _way(candidate, label, lambda: open_session(engine, "trt"))
    if engine.layer_tensors is None:
        way.no_taps = NO_TAPS_IN_ENGINE
    else:
        candidate.facts["layer_tensors"] = engine.layer_tensors.to_dict()
        way.open_taps = lambda: _engine_taps(engine)
        if engine.layer_tensors.changes_fusion:
            way.contender.note = FUSION_NOTE.format(form=engine.layer_tensors.form)
    candidate.ways = [way]


def _add_checkpoint(candidate: Candidate, other: Checkpoint, checkpoint: Checkpoint) -> None:
    candidate.kind = "checkpoint"
    _refuse_provider(candidate, "a checkpoint, which torch runs,")
    dtype = candidate.spec.dtype or "fp32"
    if dtype not in ("fp32", "fp16", "bf16"):
        raise BackendError(f"dtype {dtype!r} is not one of fp32, fp16, bf16")
    candidate.dtype = dtype
    candidate.warnings += other.notes
    candidate.facts = {"format": other.format, "sha256": other.sha256()}
    check_same_model(checkpoint.config, other.config, Path(candidate.spec.path))
    if other.sha256() != checkpoint.sha256():
        candidate.warnings.append(
            f"another file than the reference's: sha256 {other.sha256()[:12]}, "
            f"the reference has {checkpoint.sha256()[:12]}"
        )
    label = f"torch (CPU, {candidate.dtype})"
    way = _way(candidate, label, lambda: BaselineSession(other, candidate.dtype))
    way.open_taps = lambda: TorchTaps(BaselineSession(other, candidate.dtype))
    candidate.ways = [way]


def _refuse_provider(candidate: Candidate, what: str) -> None:
    if candidate.spec.provider is not None:
        raise BackendError(
            f"provider={candidate.spec.provider} was asked for: {what} has none, only an exported "
            "folder has"
        )


def _onnx_session(graph: GraphFolder, provider: str) -> Session:
    kind = CachedOnnxSession if graph.options.kv_cache else OnnxSession
    return kind(graph, threads=onnx_threads(graph), provider=provider, as_exported=True)


def _engine_taps(engine: EngineFolder) -> Taps:
    from andrea_export.session.trt_taps import open_engine_taps

    return open_engine_taps(engine)


def _way(candidate: Candidate, label: str, opener: Callable[[], Session]) -> Way:
    place, box = f"{candidate.number}: {label}", candidate.black_box
    if place in box.deaths:
        return Way(Contender(label, error=box.deaths[place], crashed=True, died=True), place=place)
    return Way(Contender(label, guard=lambda: box.at(place)).open(opener), place=place)

"""Is this exported graph still the model, and is it worse than PyTorch at this precision?"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from andrea_export.graph.folder import GraphFolder
from andrea_export.progress import Progress
from andrea_export.report.candidates import FLOAT32_NOTE, NO_BF16_NOTE, SIMULATED_NOTE
from andrea_export.report.comparison import Contender, compare
from andrea_export.report.metrics import Figures
from andrea_export.report.plausibility import checkpoint_warnings
from andrea_export.report.provenance import check_config, provenance_warnings
from andrea_export.report.rounding_executor import RoundingSession
from andrea_export.report.texts import TOKENS_PER_WINDOW, evaluation_data
from andrea_export.report.tolerance import judge, ratios
from andrea_export.report.torch_models import (
    BaselineSession,
    reference_session,
    rounded_weights_session,
)
from andrea_export.report.validation import Row, Validation
from andrea_export.session import open_session
from andrea_export.session.torch_threads import torch_threads
from andrea_model.checkpoint import Checkpoint

__all__ = ["ValidateOptions", "validate"]


@dataclass(frozen=True)
class ValidateOptions:
    """What the models are run on.

    Attributes:
        text: a UTF-8 file; the bundled held-out play if not given.
        windows: how many windows, spread evenly over the text; None takes 4 to 16, by the size of
            the model.
        tokens: length of each, bounded by the context length and by the text.
    """

    text: Path | None = None
    windows: int | None = None
    tokens: int = TOKENS_PER_WINDOW


DEFAULT_OPTIONS = ValidateOptions()


def validate(
    checkpoint: Checkpoint,
    candidate: GraphFolder,
    options: ValidateOptions = DEFAULT_OPTIONS,
    *,
    progress: Progress | None = None,
) -> Validation:
    """Judge an exported folder against the checkpoint that it should come from.

    All models see one window after the other, so no more than one window's logits are held.

    Args:
        checkpoint: the truth; its original weights are computed in float64.
        candidate: what is judged.
        options: the text, and how much of it.
        progress: called with (forward passes done, all of them).

    Raises:
        GraphError: the candidate is of another model; the numbers that differ are named.
        InputError: a text that cannot be used, or a reference that gives NaN or Inf itself.
        TokenizerError: a tokenizer that does not fit the model.
        MissingDependencyError: an fp32 candidate, and ONNX Runtime is not installed.
    """
    check_config(checkpoint, candidate)
    data = evaluation_data(
        checkpoint.config,
        checkpoint.open_tokenizer(),
        text=options.text,
        windows=options.windows,
        tokens=options.tokens,
    )
    warnings = [*data.notes, *provenance_warnings(checkpoint, candidate)]
    dtype = candidate.options.dtype
    with ExitStack() as stack:
        stack.enter_context(torch_threads(checkpoint.config))
        candidates = _candidates(candidate, warnings)
        baseline = Contender(f"torch ({dtype})", BaselineSession(checkpoint, dtype))
        rounded = None
        if dtype != "fp32":
            rounded = Contender("rounded weights", rounded_weights_session(checkpoint, dtype))
        others = [*candidates, *([rounded] if rounded else [])]
        for contender in (baseline, *others):
            stack.callback(contender.close)
        reference = stack.enter_context(reference_session(checkpoint))
        perplexity = compare(data, reference, baseline, others, progress)
    baseline_figures = baseline.total.figures()
    return Validation(
        checkpoint=str(checkpoint.path or f"random weights, seed {checkpoint.seed}"),
        candidate=str(candidate.path),
        dtype=dtype,
        data=data,
        reference_perplexity=perplexity,
        baseline=baseline_figures,
        rounded_weights=rounded.total.figures() if rounded else None,
        rows=tuple(_row(each, baseline_figures, dtype) for each in candidates),
        warnings=(
            *warnings,
            *checkpoint_warnings(checkpoint, perplexity),
            *_baseline_warnings(baseline_figures, dtype),
        ),
    )


def _candidates(graph: GraphFolder, warnings: list[str]) -> list[Contender]:
    """The ways of running a graph on a CPU. What cannot even be opened says so in its row."""
    dtype = graph.options.dtype
    runtime = Contender(f"ONNX Runtime (CPU, {dtype})")
    simulated = Contender(f"rounding executor (CPU, {dtype})", note=SIMULATED_NOTE)
    if dtype == "fp32":
        return [runtime.open(lambda: open_session(graph, "onnx", as_exported=True))]
    simulated.open(lambda: RoundingSession(graph))
    if dtype == "bf16":
        simulated.note = NO_BF16_NOTE
        return [simulated]
    if find_spec("onnxruntime") is None:
        warnings.append("onnxruntime is not installed: the graph was simulated only, and not run")
        return [simulated]
    runtime.executes_dtype, runtime.note = False, FLOAT32_NOTE
    return [simulated, runtime.open(lambda: open_session(graph, "onnx", as_exported=True))]


def _row(contender: Contender, baseline: Figures, dtype: str) -> Row:
    figures = contender.total.figures()
    ran = figures.positions > 0
    failures = judge(figures, baseline, dtype) if ran else ()
    error = contender.error
    if error is None and figures.is_empty and not failures:
        error = f"NaN or Inf at every position, in {dtype} torch as well: nothing is left to judge"
    return Row(
        label=contender.label,
        executes_dtype=contender.executes_dtype,
        note=contender.note,
        figures=figures if ran else None,
        ratios=ratios(figures, baseline) if ran else {},
        failures=failures,
        error=error,
        seconds=contender.seconds,
    )


def _baseline_warnings(baseline: Figures, dtype: str) -> list[str]:
    if not baseline.broken_positions:
        return []
    return [
        f"torch itself gives NaN or Inf in {dtype} at {baseline.broken_positions} of "
        f"{baseline.positions} positions: this model does not fit {dtype}"
    ]

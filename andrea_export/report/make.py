"""The report: many candidates on many data sets, judged, and looked into layer by layer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.errors import BackendError, InputError
from andrea_export.report.candidates import Candidate, CandidateSpec, Way, open_candidate
from andrea_export.report.comparison import Contender, Progress
from andrea_export.report.datasets import (
    DataSet,
    Prompts,
    greedy_prompts,
    stress_sets,
    text_ids,
    text_set,
)
from andrea_export.report.environment import environment
from andrea_export.report.judgement import CandidateResult, Report, SetResult, WayResult
from andrea_export.report.layers import LayerProfile, TapErrors, layer_profile
from andrea_export.report.running import GREEDY, Clock, Lane, run_greedy, run_layers, run_set
from andrea_export.report.spelling import Speller
from andrea_export.report.taps import Taps, TorchTaps, tap_names
from andrea_export.report.tolerance import BUILT_IN, Tolerance, judge
from andrea_export.report.torch_models import (
    BaselineSession,
    reference_session,
    rounded_weights_session,
)
from andrea_export.report.validate import checkpoint_warnings, torch_threads
from andrea_model.checkpoint import Checkpoint
from andrea_model.parameters import count_parameters

__all__ = ["ReportOptions", "make_report"]

QUICK_WINDOWS, QUICK_TOKENS = 4, 128
LAYER_WINDOWS, LAYER_TOKENS = 2, 256
# Windows that are looked into beyond the text, because a figure failed there.
MOST_FAILED_WINDOWS = 3
# In half precision a correct execution has at least 0.84 of torch's own error (240 honest exports);
# the same graph computed in float32 has 0.46 with andrea-nano.
NOT_THIS_DTYPE = 0.6


@dataclass(frozen=True)
class ReportOptions:
    """What the models are run on, and how closely they are looked at.

    Attributes:
        text: a UTF-8 file; the bundled held-out play if not given.
        windows: how many windows of text; None takes 4 to 16, by the size of the model.
        tokens: length of each; None takes the context length.
        quick: less of everything: 4 windows of 128 tokens, one window for the layers.
        layers: look inside.
        tolerance: the tables of the verdict.
        bisect: swap parts of every candidate that is out of tolerance, or in half precision.
        target: RMS error that bisection is to reach; None takes the absolute limit.
        command: the command line, for the record.
    """

    text: Path | None = None
    windows: int | None = None
    tokens: int | None = None
    quick: bool = False
    layers: bool = True
    tolerance: Tolerance = BUILT_IN
    bisect: bool = False
    target: float | None = None
    command: str | None = None


DEFAULT_OPTIONS = ReportOptions()


def make_report(
    checkpoint: Checkpoint,
    candidates: Sequence[CandidateSpec],
    options: ReportOptions = DEFAULT_OPTIONS,
    *,
    progress: Progress | None = None,
) -> Report:
    """Judge candidates against the checkpoint that they should come from.

    A candidate that cannot be opened, is of another model, or fails while running is a row of the
    report; it keeps nobody else from being judged.

    Args:
        checkpoint: the truth; its original weights are computed in float64.
        candidates: at least one.
        options: the text, and how much is looked at.
        progress: called with (forward passes done, all of them).

    Raises:
        InputError: a text that cannot be used, or a reference that gives NaN or Inf itself.
        TokenizerError: a tokenizer that does not fit the model.
    """
    started = time.perf_counter()
    if not candidates:
        raise InputError("there is no candidate: name at least one with --candidate")
    with ExitStack() as stack:
        stack.enter_context(torch_threads(checkpoint.config))
        work = _Work(checkpoint, candidates, options, stack, progress)
        work.run()
        report = work.report()
    report.timing["total_seconds"] = round(time.perf_counter() - started, 3)
    return report


class _Work:
    """One report in the making."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        specs: Sequence[CandidateSpec],
        options: ReportOptions,
        stack: ExitStack,
        progress: Progress | None,
    ) -> None:
        self.checkpoint, self.options = checkpoint, options
        self.tokenizer = checkpoint.open_tokenizer()
        self.sets, self.prompts, self.notes = self._data()
        self.candidates = [open_candidate(spec, checkpoint) for spec in specs]
        self.lanes = self._lanes(stack)
        self.reference = stack.enter_context(reference_session(checkpoint))
        self.rounded = {
            dtype: Way(Contender("rounded weights", rounded_weights_session(checkpoint, dtype)))
            for dtype in self.lanes
            if dtype != "fp32"
        }
        for way in self.rounded.values():
            stack.callback(way.contender.close)
        everyone = 1 + sum(len(lane.all) for lane in self.lanes.values())
        passes = sum(len(each.batches) for each in self.sets) + 1
        passes += min(LAYER_WINDOWS, len(self.sets[0].batches)) if options.layers else 0
        text_passes = len(self.rounded) * len(self.sets[0].batches)
        self.clock = Clock(passes * everyone + text_passes, progress)
        self.layer_seconds = 0.0
        self.profiles: dict[int, LayerProfile] = {}
        self.no_layers: dict[int, str] = {}
        self.bisections: dict[int, dict[str, Any]] = {}

    def _data(self) -> tuple[list[DataSet], Prompts, list[str]]:
        options, config = self.options, self.checkpoint.config
        windows, tokens = options.windows, options.tokens
        if options.quick:
            windows, tokens = windows or QUICK_WINDOWS, tokens or QUICK_TOKENS
        text, data = text_set(
            config, self.tokenizer, text=options.text, windows=windows, tokens=tokens
        )
        ids = text_ids(config, self.tokenizer, options.text)
        sets = [text, *stress_sets(config, ids, quick=options.quick)]
        return sets, greedy_prompts(config, ids, quick=options.quick), list(data.notes)

    def _lanes(self, stack: ExitStack) -> dict[str, Lane]:
        lanes: dict[str, Lane] = {}
        for candidate in self.candidates:
            for way in candidate.ways:
                stack.callback(way.contender.close)
            if candidate.error is not None:
                continue
            dtype = candidate.dtype
            if dtype not in lanes:
                session = BaselineSession(self.checkpoint, dtype)
                baseline = Way(Contender(f"torch (CPU, {dtype})", session))
                baseline.open_taps = lambda session=session: TorchTaps(session)
                stack.callback(baseline.contender.close)
                lanes[dtype] = Lane(baseline, [])
            lanes[dtype].ways += candidate.ways
        return lanes

    def run(self) -> None:
        if not self.lanes:
            return
        lanes = list(self.lanes.values())
        for number, data in enumerate(self.sets):
            # What rounding the weights alone does is shown for the text.
            rounded = [Lane(way, []) for way in self.rounded.values()] if number == 0 else []
            run_set(data, self.reference, [*lanes, *rounded], self.clock)
        run_greedy(self.prompts, self.reference, lanes, self.clock)
        if self.options.layers:
            self._look_inside()
        if self.options.bisect:
            self._bisect()

    def _look_inside(self) -> None:
        """Taps of all that can show them, on text and wherever a figure has failed."""
        taps: dict[int, Taps] = {}
        for lane in self.lanes.values():
            for way in lane.all:
                if way.open_taps is None:
                    self.no_layers[id(way)] = way.no_taps or "it could not be run"
                    continue
                if way.contender.session is None and not way.contender.crashed:
                    self.no_layers[id(way)] = "it could not be run"
                    continue
                # The tapped session takes the place of the other: both would need twice the memory.
                if way is not lane.baseline:
                    way.contender.close()
                try:
                    taps[id(way)] = way.open_taps()
                except BackendError as error:
                    self.no_layers[id(way)] = str(error)
        windows = self._layer_windows()
        self.clock.total = self.clock.done + len(windows) * (1 + len(taps))
        begun = time.perf_counter()
        errors, failed = run_layers(windows, TorchTaps(self.reference), taps, self.clock)
        self.layer_seconds = time.perf_counter() - begun
        self.no_layers |= failed
        positions = sum(window.size for window in windows)
        for dtype, lane in self.lanes.items():
            limit = self.options.tolerance.layers[dtype]
            base = errors.get(id(lane.baseline), TapErrors())
            for way in lane.all:
                if id(way) in errors:
                    self.profiles[id(way)] = layer_profile(
                        errors[id(way)], base, tap_names(self.checkpoint.config), limit, positions
                    )

    def _layer_windows(self) -> list[Any]:
        count = 1 if self.options.quick else LAYER_WINDOWS
        batches = self.sets[0].batches
        chosen = np.linspace(0, len(batches) - 1, min(count, len(batches))).astype(int)
        windows = [batches[each].ids[:, :LAYER_TOKENS] for each in dict.fromkeys(chosen.tolist())]
        return windows + self._failed_windows()

    def _failed_windows(self) -> list[Any]:
        """Where a set beside the text is out of tolerance, the row with its worst position."""
        found: dict[tuple[str, int, int], Any] = {}
        for dtype, lane in self.lanes.items():
            for way in lane.ways:
                for data in self.sets[1:]:
                    if not self._failures(way, lane.baseline, data.name, dtype):
                        continue
                    for token in way.sets[data.name].worst_tokens()[:1]:
                        key = (data.name, token.place.window, token.place.row)
                        batch = data.batches[token.place.window]
                        length = min(int(batch.lengths[token.place.row]), 2 * LAYER_TOKENS)
                        row = batch.ids[token.place.row, :length]
                        found.setdefault(key, row[np.newaxis])
        return list(found.values())[:MOST_FAILED_WINDOWS]

    def _failures(self, way: Way, baseline: Way, name: str, dtype: str) -> tuple[Any, ...]:
        if name not in way.sets or name not in baseline.sets:
            return ()
        own, base = way.sets[name].figures(), baseline.sets[name].figures()
        return judge(own, base, dtype, self.options.tolerance.figures)

    def _bisect(self) -> None:
        from andrea_export.report.bisect import bisect_candidate

        for candidate in self.candidates:
            if candidate.kind != "graph" or candidate.error is not None:
                continue
            ids = self.sets[0].batches[0].ids[:, :LAYER_TOKENS]
            limit = self.options.tolerance.figures[candidate.dtype]["rms_error"].absolute
            self.bisections[id(candidate)] = bisect_candidate(
                self.checkpoint,
                Path(candidate.spec.path),
                ids,
                self.reference,
                self.options.target or limit,
            )

    def report(self) -> Report:
        text = self.sets[0].name
        baselines = {
            dtype: self._way(lane.baseline, lane.baseline, dtype)
            for dtype, lane in self.lanes.items()
        }
        results = tuple(self._candidate(candidate) for candidate in self.candidates)
        ways = [way for lane in self.lanes.values() for way in lane.all]
        ways += self.rounded.values()
        forward = sum(way.contender.seconds for way in ways) + self.reference.seconds
        perplexity = next(
            (
                lane.baseline.sets[text].figures().reference_perplexity
                for lane in self.lanes.values()
                if text in lane.baseline.sets
            ),
            None,
        )
        warnings = [*self.notes, *checkpoint_warnings(self.checkpoint, perplexity)]
        for dtype, baseline in baselines.items():
            broken = sum(each.figures.broken_positions for each in baseline.sets)
            if broken:
                warnings.append(
                    f"torch itself gives NaN or Inf in {dtype} at {broken} positions: "
                    f"this model does not fit {dtype}"
                )
        return Report(
            header=self._header(perplexity),
            baselines=baselines,
            rounded_weights={
                dtype: way.sets[text].figures() for dtype, way in self.rounded.items() if way.sets
            },
            candidates=results,
            warnings=tuple(warnings),
            timing={
                "forward_seconds": round(forward, 3),
                "layer_seconds": round(self.layer_seconds, 3),
            },
            spell=Speller(self.tokenizer, self.sets[0]),
        )

    def _candidate(self, candidate: Candidate) -> CandidateResult:
        lane = self.lanes.get(candidate.dtype)
        ways = []
        if candidate.error is None and lane is not None:
            ways = [self._way(way, lane.baseline, candidate.dtype) for way in candidate.ways]
        return CandidateResult(
            name=candidate.name,
            kind=candidate.kind,
            dtype=candidate.dtype,
            facts=candidate.facts,
            warnings=tuple(candidate.warnings),
            error=candidate.error,
            ways=tuple(ways),
            bisection=self.bisections.get(id(candidate)),
        )

    def _way(self, way: Way, baseline: Way, dtype: str) -> WayResult:
        names = [*(data.name for data in self.sets), GREEDY]
        sets = []
        for name in names:
            if name not in way.sets or name not in baseline.sets:
                continue
            base = baseline.sets[name]
            sets.append(
                SetResult(
                    data=name,
                    figures=way.sets[name].figures(),
                    details=way.sets[name].details(),
                    baseline=None if way is baseline else base.figures(),
                    baseline_details=None if way is baseline else base.details(),
                    failures=() if way is baseline else self._failures(way, baseline, name, dtype),
                )
            )
        contender = way.contender
        notes = [contender.note] if contender.note else []
        executes, error = contender.executes_dtype, contender.error
        ratio = sets[0].ratios.get("rms_error") if sets else None
        if executes and dtype != "fp32" and ratio is not None and ratio < NOT_THIS_DTYPE:
            executes = False
            notes.append(
                f"not running in this dtype: its RMS error is {ratio:.2f} of torch's own in "
                f"{dtype}, less than rounding to {dtype} allows"
            )
        if error is None and sets and sets[0].figures.is_empty and not sets[0].failures:
            error = f"NaN or Inf at every position, in {dtype} torch as well"
        worst_tokens = way.sets[names[0]].worst_tokens() if names[0] in way.sets else ()
        return WayResult(
            label=contender.label,
            executes_dtype=executes,
            notes=tuple(notes),
            error=error,
            crashed=contender.crashed,
            sets=tuple(sets),
            skipped=way.skipped,
            layers=self.profiles.get(id(way)),
            no_layers=self.no_layers.get(id(way)),
            partings=way.partings,
            worst_tokens=worst_tokens,
            seconds=contender.seconds,
        )

    def _header(self, perplexity: float | None) -> dict[str, Any]:
        checkpoint = self.checkpoint
        sets = [data.to_dict() for data in self.sets]
        rows, new = len(self.prompts.ids), self.prompts.new_tokens
        sets.append(
            {
                "name": GREEDY,
                "description": f"{rows} prompts of {self.prompts.lengths.min()} to "
                f"{self.prompts.lengths.max()} tokens, {new} more each, as the float64 model "
                "continues them; a candidate with a cache steps over it",
                "is_text": False,
                "forward_passes": 1,
                "rows": rows,
                "longest": int(self.prompts.lengths.max()) + new,
                "positions": rows * (new + 1),
            }
        )
        return {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": self.options.command,
            "environment": environment(),
            "checkpoint": {
                "name": str(checkpoint.path or f"random weights, seed {checkpoint.seed}"),
                "format": checkpoint.format,
                "sha256": checkpoint.sha256(),
                "parameters": count_parameters(checkpoint.config),
                "config": checkpoint.config.to_dict(),
                "perplexity": perplexity,
            },
            "tolerance": self.options.tolerance.to_dict(),
            "data": sets,
        }

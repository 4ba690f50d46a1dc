"""The report: many candidates on many data sets, judged, and looked into layer by layer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea_export.black_box import NO_BOX, BlackBox
from andrea_export.errors import InputError
from andrea_export.progress import Progress
from andrea_export.report.assembling import Assembler, header
from andrea_export.report.candidates import CandidateSpec, Way, open_candidate
from andrea_export.report.comparison import Contender
from andrea_export.report.datasets import (
    DataSet,
    Prompts,
    greedy_prompts,
    stress_sets,
    text_ids,
    text_set,
)
from andrea_export.report.inside import LAYER_TOKENS, Inside, text_windows
from andrea_export.report.judgement import Report, WayResult
from andrea_export.report.plausibility import checkpoint_warnings
from andrea_export.report.running import Clock, Lane, run_greedy, run_set
from andrea_export.report.spelling import Speller
from andrea_export.report.taps import TorchTaps
from andrea_export.report.tolerance import BUILT_IN, Tolerance
from andrea_export.report.torch_models import (
    BaselineSession,
    reference_session,
    rounded_weights_session,
)
from andrea_export.session.torch_threads import torch_threads
from andrea_model.checkpoint import Checkpoint

__all__ = ["ReportOptions", "make_report"]

QUICK_WINDOWS, QUICK_TOKENS = 4, 128
LAYER_WINDOWS = 2


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
    black_box: BlackBox = NO_BOX,
) -> Report:
    """Judge candidates against the checkpoint that they should come from.

    A candidate that cannot be opened, is of another model, or fails while running is a row of the
    report; it keeps nobody else from being judged.

    Args:
        checkpoint: the truth; its original weights are computed in float64.
        candidates: at least one.
        options: the text, and how much is looked at.
        progress: called with (forward passes done, all of them).
        black_box: notes what is in the hands of which runtime, and knows what not to run.

    Raises:
        InputError: a text or an option that cannot be used, or a reference that gives NaN or Inf
            itself.
        TokenizerError: a tokenizer that does not fit the model.
    """
    started = time.perf_counter()
    if not candidates:
        raise InputError("there is no candidate: name at least one with --candidate")
    _check_target(options)
    with ExitStack() as stack:
        stack.enter_context(torch_threads(checkpoint.config))
        work = _Work(checkpoint, candidates, options, stack, progress, black_box)
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
        black_box: BlackBox,
    ) -> None:
        self.checkpoint, self.options, self.black_box = checkpoint, options, black_box
        self.tokenizer = checkpoint.open_tokenizer()
        self.sets, self.prompts, self.notes = self._data()
        self.candidates = [
            open_candidate(spec, checkpoint, number, black_box)
            for number, spec in enumerate(specs, 1)
        ]
        self.lanes = self._lanes(stack)
        self.reference = stack.enter_context(reference_session(checkpoint))
        self.rounded = {
            dtype: Way(Contender("rounded weights", rounded_weights_session(checkpoint, dtype)))
            for dtype in self.lanes
            if dtype != "fp32"
        }
        for way in self.rounded.values():
            stack.callback(way.contender.close)
        self.assembler = Assembler(
            tuple(data.name for data in self.sets),
            options.tolerance,
            Inside(black_box=black_box),
            {},
        )
        everyone = 1 + sum(len(lane.all) for lane in self.lanes.values())
        passes = sum(len(each.batches) for each in self.sets) + 1
        passes += len(self._layer_windows())
        text_passes = len(self.rounded) * len(self.sets[0].batches)
        self.clock = Clock(passes * everyone + text_passes, progress)

    def _data(self) -> tuple[list[DataSet], Prompts, list[str]]:
        options, config = self.options, self.checkpoint.config
        windows, tokens = options.windows, options.tokens
        if options.quick:
            windows = QUICK_WINDOWS if windows is None else windows
            tokens = QUICK_TOKENS if tokens is None else tokens
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

    def _layer_windows(self) -> list[Any]:
        if not self.options.layers:
            return []
        return text_windows(self.sets[0], 1 if self.options.quick else LAYER_WINDOWS)

    def run(self) -> None:
        if not self.lanes:
            return
        lanes = list(self.lanes.values())
        for number, data in enumerate(self.sets):
            # What rounding the weights alone does is shown for the text.
            rounded = [Lane(way, []) for way in self.rounded.values()] if number == 0 else []
            run_set(data, self.reference, [*lanes, *rounded], self.clock)
        run_greedy(self.prompts, self.reference, lanes, self.clock)
        self.reference.forget()
        if self.options.layers:
            self.assembler.inside.look(
                self.lanes,
                self.options.tolerance.layers,
                self.reference,
                self._layer_windows(),
                self.sets,
                self._fails,
                self.clock,
            )
        if self.options.bisect:
            self._bisect()

    def _fails(self, way: Way, name: str) -> bool:
        return any(
            way in lane.ways and bool(self.assembler.failures(way, lane.baseline, name, dtype))
            for dtype, lane in self.lanes.items()
        )

    def _bisect(self) -> None:
        from andrea_export.report.bisect import bisect_candidate

        for candidate in self.candidates:
            if candidate.kind != "graph" or candidate.error is not None:
                continue
            limit = self.options.tolerance.figures[candidate.dtype]["rms_error"].absolute
            self.assembler.bisections[id(candidate)] = bisect_candidate(
                self.checkpoint,
                Path(candidate.spec.path),
                self.sets[0].batches[0].ids[:, :LAYER_TOKENS],
                self.reference,
                limit if self.options.target is None else self.options.target,
                progress=self.clock.tick_more,
                place=f"{candidate.number}: bisection",
                black_box=self.black_box,
            )

    def report(self) -> Report:
        text = self.sets[0].name
        baselines = {
            dtype: self.assembler.way(lane.baseline, lane.baseline, dtype)
            for dtype, lane in self.lanes.items()
        }
        ways = [way for lane in self.lanes.values() for way in lane.all]
        ways += self.rounded.values()
        forward = sum(way.contender.seconds for way in ways) + self.reference.seconds
        perplexity = next(
            (each.sets[0].figures.reference_perplexity for each in baselines.values() if each.sets),
            None,
        )
        return Report(
            header=header(
                self.checkpoint,
                self.sets,
                self.prompts,
                self.options.tolerance,
                perplexity,
                self.options.command,
            ),
            baselines=baselines,
            rounded_weights={
                dtype: way.sets[text].figures() for dtype, way in self.rounded.items() if way.sets
            },
            candidates=tuple(
                self.assembler.candidate(each, self.lanes.get(each.dtype))
                for each in self.candidates
            ),
            warnings=(
                *self.notes,
                *checkpoint_warnings(self.checkpoint, perplexity),
                *_baseline_warnings(baselines),
            ),
            timing={
                "forward_seconds": round(forward, 3),
                "layer_seconds": round(self.assembler.inside.seconds, 3),
            },
            spell=Speller(self.tokenizer, self.sets[0]),
        )


def _check_target(options: ReportOptions) -> None:
    if options.target is None:
        return
    if not options.bisect:
        raise InputError("a target is for bisection: add --bisect, or leave --target out")
    if not (math.isfinite(options.target) and options.target > 0):
        raise InputError(f"--target must be an RMS error above 0, not {options.target:g}")


def _baseline_warnings(baselines: dict[str, WayResult]) -> list[str]:
    warnings = []
    for dtype, baseline in baselines.items():
        broken = sum(each.figures.broken_positions for each in baseline.sets)
        if broken:
            warnings.append(
                f"torch itself gives NaN or Inf in {dtype} at {broken} positions: "
                f"this model does not fit {dtype}"
            )
    return warnings

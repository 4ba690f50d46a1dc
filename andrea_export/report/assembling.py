"""From what was gathered to the report's typed results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from andrea_export.report.candidates import Candidate, Way
from andrea_export.report.datasets import ALIKE, GREEDY, DataSet, Prompts
from andrea_export.report.environment import environment
from andrea_export.report.inside import Inside
from andrea_export.report.judgement import CandidateResult, SetResult, WayResult
from andrea_export.report.running import Lane
from andrea_export.report.tolerance import Failure, Tolerance, judge
from andrea_model.checkpoint import Checkpoint
from andrea_model.parameters import count_parameters

__all__ = ["Assembler", "header"]

# In half precision a correct execution has at least 0.84 of torch's own error (240 honest exports);
# the same graph computed in float32 has 0.46 with andrea-nano.
NOT_THIS_DTYPE = 0.6


@dataclass(frozen=True)
class Assembler:
    """Judges, and puts results together.

    Attributes:
        sets: names of the data sets, text first.
        tolerance: the tables of the verdict.
        inside: what was seen in the layers.
        bisections: by the identity of a candidate.
    """

    sets: tuple[str, ...]
    tolerance: Tolerance
    inside: Inside
    bisections: dict[int, dict[str, Any]]

    def failures(self, way: Way, baseline: Way, name: str, dtype: str) -> tuple[Failure, ...]:
        """What is out of tolerance on one data set."""
        if name not in way.sets or name not in baseline.sets:
            return ()
        own, base = way.sets[name].figures(), baseline.sets[name].figures()
        limits = self.tolerance.figures[dtype]
        if name in ALIKE:
            limits = {key: limit for key, limit in limits.items() if key != "top1_disagreement"}
        return judge(own, base, dtype, {dtype: limits})

    def candidate(self, candidate: Candidate, lane: Lane | None) -> CandidateResult:
        ways = []
        if candidate.error is None and lane is not None:
            ways = [self.way(way, lane.baseline, candidate.dtype) for way in candidate.ways]
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

    def way(self, way: Way, baseline: Way, dtype: str) -> WayResult:
        """One way of running; a baseline is its own and judged by nothing."""
        names = [*self.sets, GREEDY]
        sets = [
            self._set(way, baseline, name, dtype)
            for name in names
            if name in way.sets and name in baseline.sets
        ]
        contender = way.contender
        notes = [note for note in (contender.note, self.inside.notes.get(id(way))) if note]
        executes, error = contender.executes_dtype, contender.error
        text = next((each for each in sets if each.data == names[0]), None)
        ratio = text.ratios.get("rms_error") if text else None
        if executes and dtype != "fp32" and ratio is not None and ratio < NOT_THIS_DTYPE:
            executes = False
            notes.append(
                f"not running in this dtype: its RMS error is {ratio:.2f} of torch's own in "
                f"{dtype}, less than rounding to {dtype} allows"
            )
        if error is None and names[0] in way.skipped:
            error = (
                f"windows of {names[0]} were left out (--tokens N makes shorter ones): "
                f"{way.skipped[names[0]]}"
            )
        if error is None and text and text.figures.is_empty and not text.failures:
            error = f"NaN or Inf at every position, in {dtype} torch as well"
        return WayResult(
            label=contender.label,
            executes_dtype=executes,
            notes=tuple(notes),
            error=error,
            crashed=contender.crashed,
            sets=tuple(sets),
            skipped=way.skipped,
            layers=self.inside.profiles.get(id(way)),
            no_layers=self.inside.reasons.get(id(way)),
            partings=way.partings,
            worst_tokens=way.sets[names[0]].worst_tokens() if names[0] in way.sets else (),
            seconds=contender.seconds,
        )

    def _set(self, way: Way, baseline: Way, name: str, dtype: str) -> SetResult:
        own, base = way.sets[name], baseline.sets[name]
        if way is baseline:
            return SetResult(name, own.figures(), own.details())
        return SetResult(
            data=name,
            figures=own.figures(),
            details=own.details(),
            baseline=base.figures(),
            baseline_details=base.details(),
            failures=self.failures(way, baseline, name, dtype),
        )


def header(
    checkpoint: Checkpoint,
    sets: Sequence[DataSet],
    prompts: Prompts,
    tolerance: Tolerance,
    perplexity: float | None,
    command: str | None,
) -> dict[str, Any]:
    """What a report says about itself: when, on what, from what, on which data."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "environment": environment(),
        "checkpoint": {
            "name": str(checkpoint.path or f"random weights, seed {checkpoint.seed}"),
            "format": checkpoint.format,
            "sha256": checkpoint.sha256(),
            "parameters": count_parameters(checkpoint.config),
            "config": checkpoint.config.to_dict(),
            "perplexity": perplexity,
        },
        "tolerance": tolerance.to_dict(),
        "data": [*(data.to_dict() for data in sets), _greedy(prompts)],
    }


def _greedy(prompts: Prompts) -> dict[str, Any]:
    rows, new = len(prompts.ids), prompts.new_tokens
    low, high = int(prompts.lengths.min()), int(prompts.lengths.max())
    return {
        "name": GREEDY,
        "description": f"{rows} prompts of {low} to {high} tokens, {new} more each, as the float64 "
        "model continues them; a candidate with a cache steps over it",
        "is_text": False,
        "forward_passes": 1,
        "rows": rows,
        "longest": high + new,
        "positions": rows * (new + 1),
    }

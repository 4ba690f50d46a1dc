"""What a report found, as typed values that also go to JSON (docs/report-schema.json)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from andrea_export.report.datasets import GREEDY
from andrea_export.report.detail import Details, WorstToken
from andrea_export.report.layers import LayerProfile
from andrea_export.report.metrics import Figures
from andrea_export.report.tolerance import Failure, ratios
from andrea_export.report.validation import EXIT_CODES, Status

__all__ = ["CandidateResult", "Report", "SetResult", "WayResult", "worst"]

SCHEMA = {"name": "andrea-export.report", "version": 1}
Spell = Callable[[WorstToken], dict[str, Any]]


def worst(statuses: Sequence[Status], *, proven: bool = True) -> Status:
    """Out of tolerance outranks could not judge, which outranks within tolerance."""
    if "out of tolerance" in statuses:
        return "out of tolerance"
    if "could not judge" in statuses or not proven:
        return "could not judge"
    return "within tolerance"


@dataclass(frozen=True)
class SetResult:
    """One way of running on one data set.

    Attributes:
        data: the set's name.
        figures, details: of the candidate.
        baseline, baseline_details: of torch in the same dtype; None for a baseline itself.
        failures: what is out of tolerance.
    """

    data: str
    figures: Figures
    details: Details
    baseline: Figures | None = None
    baseline_details: Details | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def ratios(self) -> dict[str, float | None]:
        """Candidate / baseline of every figure that is an error."""
        if self.baseline is None or self.baseline_details is None:
            return {}
        own, base = self.details, self.baseline_details
        return ratios(self.figures, self.baseline) | {
            "kl_p99": _ratio(own.kl_p99, base.kl_p99),
            "cosine_distance": _ratio(1 - own.cosine, 1 - base.cosine),
            "top5_difference": _ratio(1 - own.top5_overlap, 1 - base.top5_overlap),
        }

    def to_dict(self) -> dict[str, Any]:
        details = self.details
        return {
            "data": self.data,
            "figures": self.figures.to_dict()
            | {
                "cosine": _json(details.cosine),
                "kl_p99": _json(details.kl_p99),
                "top5_overlap": _json(details.top5_overlap),
                "perplexity_interval": _pair(details.perplexity_interval),
                "perplexity_change": _json(details.perplexity_change),
                "perplexity_change_interval": _pair(details.perplexity_change_interval),
            },
            "ratios": {name: _json(value) for name, value in self.ratios.items()},
            "failures": [_failure(failure) for failure in self.failures],
            "kl_histogram": list(details.kl_histogram),
            "by_position": [list(stretch) for stretch in details.by_position],
        }


@dataclass(frozen=True)
class WayResult:
    """One way of running a candidate, or a baseline.

    Attributes:
        label: what ran it where.
        executes_dtype: whether the arithmetic was of the dtype: only then is it proof.
        notes: what a reader must know about it.
        error: why it ended, or could not begin. crashed: it ended while running.
        sets: in order of the data.
        skipped: data set → why it was left out.
        layers: None where they could not be looked at; `no_layers` says why.
        partings: of each greedy text, the first token that differs.
        worst_tokens: of the text.
        seconds: of its forward passes.
    """

    label: str
    executes_dtype: bool
    notes: tuple[str, ...]
    error: str | None
    crashed: bool
    sets: tuple[SetResult, ...]
    skipped: dict[str, str]
    layers: LayerProfile | None
    no_layers: str | None
    partings: tuple[int | None, ...] | None
    worst_tokens: tuple[WorstToken, ...]
    seconds: float

    @property
    def failures(self) -> list[str]:
        """All that is out of tolerance, in words, the place first."""
        found = []
        if self.layers is not None and self.layers.departure is not None:
            found.append(self.layers.departure.message)
        if self.crashed:
            found.append(f"failed while running: {self.error}")
        failed = [each for each in self.sets if each.failures]
        if self.layers is not None and not found and [each.data for each in failed] == [GREEDY]:
            found.append("right in one pass and wrong step by step: look at its cache")
        found += [f"on {each.data}: {failure}" for each in failed for failure in each.failures]
        return found

    @property
    def status(self) -> Status:
        if self.failures:
            return "out of tolerance"
        return "within tolerance" if self.error is None else "could not judge"

    def result(self, data: str) -> SetResult | None:
        return next((each for each in self.sets if each.data == data), None)

    def to_dict(self, spell: Spell) -> dict[str, Any]:
        return {
            "label": self.label,
            "status": self.status,
            "executes_dtype": self.executes_dtype,
            "notes": list(self.notes),
            "error": self.error,
            "crashed": self.crashed,
            "failures": self.failures,
            "sets": [each.to_dict() for each in self.sets],
            "skipped": self.skipped,
            "layers": None if self.layers is None else self.layers.to_dict(),
            "no_layers": self.no_layers,
            "greedy_partings": None if self.partings is None else list(self.partings),
            "worst_tokens": [spell(token) for token in self.worst_tokens],
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class CandidateResult:
    """One artefact. `error`: why it could not be judged at all; then there are no ways.

    bisection: see `bisect`; None where it was not asked for.
    """

    name: str
    kind: str
    dtype: str
    facts: dict[str, Any]
    warnings: tuple[str, ...]
    error: str | None
    ways: tuple[WayResult, ...]
    bisection: dict[str, Any] | None = None

    @property
    def status(self) -> Status:
        if self.error is not None:
            return "could not judge"
        proven = any(way.executes_dtype for way in self.ways)
        return worst([way.status for way in self.ways], proven=proven)

    @property
    def sentence(self) -> str:
        """The verdict on this candidate."""
        if self.status == "out of tolerance":
            failures = [failure for way in self.ways for failure in way.failures]
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            return f"Out of tolerance: {failures[0]}{more}."
        if self.status == "could not judge":
            errors = [self.error, *(way.error for way in self.ways)]
            reason = next((error for error in errors if error), "nothing ran in this dtype")
            return f"Could not judge: {reason.rstrip('.')}."
        way = next(way for way in self.ways if way.executes_dtype)
        first = way.sets[0]
        ratio = first.ratios["rms_error"]
        beside = "" if ratio is None else f", {ratio:.2f} times PyTorch's own in {self.dtype}"
        return f"Within tolerance: RMS error {first.figures.rms_error:.2g}{beside}."

    def to_dict(self, spell: Spell) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "status": self.status,
            "sentence": self.sentence,
            "error": self.error,
            "warnings": list(self.warnings),
            "facts": self.facts,
            "ways": [way.to_dict(spell) for way in self.ways],
            "bisection": self.bisection,
        }


@dataclass(frozen=True)
class Report:
    """Everything, and the verdict.

    Attributes:
        header: command, time, environment, checkpoint, tolerance and data, as they go to JSON.
        baselines: dtype → torch's own results in it.
        rounded_weights: dtype → figures of a model whose weights alone were rounded.
        candidates: at least one.
        warnings: about the checkpoint and the text.
        timing: seconds in forward passes and in all.
        spell: writes a worst token with its texts.
    """

    header: dict[str, Any]
    baselines: dict[str, WayResult]
    rounded_weights: dict[str, Figures]
    candidates: tuple[CandidateResult, ...]
    warnings: tuple[str, ...]
    timing: dict[str, float]
    spell: Spell

    @property
    def status(self) -> Status:
        return worst([candidate.status for candidate in self.candidates])

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if len(self.candidates) == 1:
            return self.candidates[0].sentence
        decisive = next(each for each in self.candidates if each.status == self.status)
        count = sum(each.status == self.status for each in self.candidates)
        if self.status == "within tolerance":
            return f"All {count} candidates are within tolerance."
        verb = "is" if count == 1 else "are"
        said = f"{verb} {self.status}"
        if self.status == "could not judge":
            said = "could not be judged"
        first = f"{decisive.name}: {decisive.sentence}"
        return f"{count} of {len(self.candidates)} candidates {said}. {first}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verdict": {
                "status": self.status,
                "exit_code": self.exit_code,
                "sentence": self.sentence,
            },
            **self.header,
            "warnings": list(self.warnings),
            "baselines": {dtype: way.to_dict(self.spell) for dtype, way in self.baselines.items()},
            "rounded_weights": {
                dtype: figures.to_dict() for dtype, figures in self.rounded_weights.items()
            },
            "candidates": [each.to_dict(self.spell) for each in self.candidates],
            "timing": self.timing,
        }


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        name: _json(value) if isinstance(value, float) else value
        for name, value in failure.to_dict().items()
    }


def _ratio(value: float, by: float) -> float | None:
    return value / by if by and math.isfinite(value) else None


def _json(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _pair(values: tuple[float, float] | None) -> list[float | None] | None:
    return None if values is None else [_json(value) for value in values]

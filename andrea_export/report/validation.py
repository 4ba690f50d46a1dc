"""What a validation found, as typed values that also go to JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from andrea_export.report.metrics import Figures
from andrea_export.report.texts import EvaluationData
from andrea_export.report.tolerance import TOLERANCE, Failure

__all__ = ["EXIT_CODES", "SCHEMA", "Row", "Status", "Validation"]

SCHEMA = {"name": "andrea-export.validation", "version": 1}

Status = Literal["within tolerance", "out of tolerance", "could not judge"]
EXIT_CODES: dict[Status, int] = {
    "within tolerance": 0,
    "out of tolerance": 1,
    "could not judge": 2,
}


@dataclass(frozen=True)
class Row:
    """One way of running the candidate.

    Attributes:
        label: what ran it where.
        executes_dtype: whether the arithmetic was of the candidate's dtype. Only such a row can
            show that the candidate is sound there.
        note: what a reader must know about this row.
        figures: None if it could not be run.
        ratios: figure → candidate / baseline.
        failures: what is out of tolerance.
        error: why it could not be judged.
        seconds: of its forward passes.
    """

    label: str
    executes_dtype: bool
    note: str | None
    figures: Figures | None
    ratios: dict[str, float | None]
    failures: tuple[Failure, ...]
    error: str | None
    seconds: float

    @property
    def status(self) -> Status:
        if self.failures:
            return "out of tolerance"
        return "within tolerance" if self.error is None else "could not judge"

    def to_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "executes_dtype": self.executes_dtype,
            "note": self.note,
            "status": self.status,
            "error": self.error,
            "figures": None if self.figures is None else self.figures.to_dict(),
            "ratios": self.ratios,
            "failures": [failure.to_dict() for failure in self.failures],
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Validation:
    """A candidate against torch in float64, beside torch in the candidate's own dtype.

    Attributes:
        checkpoint, candidate: names for people.
        dtype: the candidate's.
        data: the windows all models were run on.
        reference_perplexity: of the float64 model; None without real text.
        baseline: figures of torch in `dtype`.
        rounded_weights: figures of a model whose weights alone were rounded; None in fp32.
        rows: one per way of running the candidate, at least one.
        warnings: what may explain a bad result, or make a good one worth less.
    """

    checkpoint: str
    candidate: str
    dtype: str
    data: EvaluationData
    reference_perplexity: float | None
    baseline: Figures
    rounded_weights: Figures | None
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    @property
    def status(self) -> Status:
        """The worst row's; one that is out of tolerance outranks one that could not be judged."""
        statuses = {row.status for row in self.rows}
        if "out of tolerance" in statuses:
            return "out of tolerance"
        proven = any(row.executes_dtype for row in self.rows)
        return (
            "could not judge"
            if "could not judge" in statuses or not proven
            else ("within tolerance")
        )

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.status == "within tolerance":
            row = next(row for row in self.rows if row.executes_dtype)
            assert row.figures is not None
            ratio = row.ratios["rms_error"]
            beside = "" if ratio is None else f", {ratio:.2f} times PyTorch's own in {self.dtype}"
            return f"Within tolerance: RMS error {row.figures.rms_error:.2g}{beside}."
        if self.status == "out of tolerance":
            failures = [failure for row in self.rows for failure in row.failures]
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            return f"Out of tolerance: {failures[0]}{more}."
        errors = [row.error for row in self.rows if row.error is not None]
        return f"Could not judge: {errors[0]}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "status": self.status,
            "exit_code": self.exit_code,
            "sentence": self.sentence,
            "checkpoint": self.checkpoint,
            "candidate": self.candidate,
            "dtype": self.dtype,
            "data": self.data.to_dict(),
            "reference": {"dtype": "fp64", "perplexity": self.reference_perplexity},
            "baseline": self.baseline.to_dict(),
            "rounded_weights": (
                None if self.rounded_weights is None else self.rounded_weights.to_dict()
            ),
            "tolerance": {
                name: {"absolute": limit.absolute, "ratio": limit.ratio, "floor": limit.floor}
                for name, limit in TOLERANCE[self.dtype].items()
            },
            "rows": [row.to_dict() for row in self.rows],
            "warnings": list(self.warnings),
        }

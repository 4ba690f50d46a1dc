"""What a benchmark found, as typed values that also go to JSON. Times are seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from andrea_export.bench.floors import FORMULAS, Work
from andrea_export.bench.workloads import Workload

__all__ = ["SCHEMA", "BenchResult", "MeasuredSource", "OpTime", "Profile", "Row"]

SCHEMA = {"name": "andrea-export.bench", "version": 1}


@dataclass(frozen=True)
class MeasuredSource:
    """One source, and what it cost to start.

    Attributes:
        name: for people; different for each.
        source: as it was given.
        label: what ran it where.
        dtype: of the weights.
        device: "cpu" or "cuda".
        parameters: numbers in the weights.
        start_seconds: from a new process to a session that is ready.
        first_call_seconds: the first prefill of that process.
        peak_rss_bytes: most memory that its process ever held.
        device_bytes: most memory in use on the GPU, by anyone; None without one.
    """

    name: str
    source: str
    label: str
    dtype: str
    device: str
    parameters: int
    start_seconds: float
    first_call_seconds: float
    peak_rss_bytes: int
    device_bytes: int | None

    @property
    def cold_first_token_seconds(self) -> float:
        """From a new process to its first token, for the shortest prompt of the run."""
        return self.start_seconds + self.first_call_seconds

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cold_first_token_seconds": self.cold_first_token_seconds}


@dataclass(frozen=True)
class Row:
    """One source at one workload.

    Attributes:
        source: its name.
        workload: what was run.
        work: the least it takes.
        rounds: seconds of each timed step, by round.
        read_rates: bytes/s of reading as many bytes as the work moves, all through the run.
        matmul_rate: operations/s, the best of the run.
        first_call_seconds: of this workload's very first step, which the rounds do not hold.
    """

    source: str
    workload: Workload
    work: Work
    rounds: tuple[tuple[float, ...], ...]
    read_rates: tuple[float, ...]
    matmul_rate: float
    first_call_seconds: float

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(second for turn in self.rounds for second in turn)

    def percentile(self, percent: float) -> float:
        """Seconds, interpolated between the two nearest samples."""
        return float(np.percentile(self.seconds, percent))

    @property
    def tokens_per_second(self) -> float:
        """At the median: tokens read by a prefill, tokens written by decode, of all rows."""
        tokens = self.workload.context if self.workload.phase == "prefill" else 1
        return self.workload.batch * tokens / self.percentile(50)

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the prompts to the first new token of each; None for decode."""
        return self.percentile(50) if self.workload.phase == "prefill" else None

    @property
    def floor_seconds(self) -> float:
        """At the best rates that the machine showed in any round: a disturbed measurement of the
        machine must not flatter what runs on it.
        """
        return self.work.seconds(max(self.read_rates), self.matmul_rate)

    @property
    def bound(self) -> str:
        """What the floor is made of: "memory" or "matmul"."""
        return self.work.bound(max(self.read_rates), self.matmul_rate)

    @property
    def percent_of_floor(self) -> float:
        """100 where the median step is as fast as the machine allows, 50 where it takes twice."""
        return 100 * self.floor_seconds / self.percentile(50)

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "phase": self.workload.phase,
            "batch": self.workload.batch,
            "context": self.workload.context,
            "samples": len(self.seconds),
            "p50_seconds": self.percentile(50),
            "p90_seconds": self.percentile(90),
            "p99_seconds": self.percentile(99),
            "tokens_per_second": self.tokens_per_second,
            "time_to_first_token_seconds": self.time_to_first_token,
            "first_call_seconds": self.first_call_seconds,
            "floor": {
                **self.work.to_dict(),
                "seconds": self.floor_seconds,
                "bound": self.bound,
            },
            "percent_of_floor": self.percent_of_floor,
            "round_medians_seconds": [float(np.median(turn)) for turn in self.rounds],
            "read_bytes_per_second": self.read_rates,
        }


@dataclass(frozen=True)
class OpTime:
    """One kind of op within one step: how often, and seconds in all."""

    op: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """Where one step of a workload spends its time, the slowest op first."""

    source: str
    workload: Workload
    ops: tuple[OpTime, ...]

    @property
    def seconds(self) -> float:
        return sum(op.seconds for op in self.ops)

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "phase": self.workload.phase,
            "batch": self.workload.batch,
            "context": self.workload.context,
            "ops": [asdict(op) for op in self.ops],
        }


@dataclass(frozen=True)
class BenchResult:
    """A whole run.

    Attributes:
        machine: processor, cores, versions.
        options: as given.
        sources: in the order given.
        rows: by workload, then by source.
        read_rates: bytes/s while reading the bytes of a row, least and most of the run.
        matmul_rates: dtype → operations/s, least and most of the run.
        profiles: where the time goes, if asked for.
        notes: what a reader must know.
    """

    machine: dict[str, Any]
    options: dict[str, Any]
    sources: tuple[MeasuredSource, ...]
    rows: tuple[Row, ...]
    read_rates: tuple[float, float]
    matmul_rates: dict[str, tuple[float, float]]
    profiles: tuple[Profile, ...]
    notes: tuple[str, ...]

    @property
    def formulas(self) -> dict[str, str]:
        """How floors are counted, for people."""
        return FORMULAS

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "options": self.options,
            "formulas": self.formulas,
            "read_bytes_per_second": self.read_rates,
            "matmul_operations_per_second": self.matmul_rates,
            "sources": [source.to_dict() for source in self.sources],
            "rows": [row.to_dict() for row in self.rows],
            "profiles": [profile.to_dict() for profile in self.profiles],
            "notes": self.notes,
        }

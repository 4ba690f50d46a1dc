"""The public function of this stage: sources side by side, in rounds that alternate."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from andrea_export.bench.floors import Work, work_of
from andrea_export.bench.machine import describe_machine
from andrea_export.bench.options import BenchOptions, SourceSpec
from andrea_export.bench.pipe import Child
from andrea_export.bench.result import BenchResult, MeasuredSource, OpTime, Profile, Row
from andrea_export.bench.workloads import Workload, plan
from andrea_export.engine.source import is_engine_folder
from andrea_export.errors import InputError
from andrea_export.progress import Progress
from andrea_model.config import AndreaConfig
from andrea_model.parameters import count_parameters

__all__ = ["bench"]

WORKER, METER = "andrea_export.bench.worker", "andrea_export.bench.meter"
STEADY = 1.3


def bench(
    sources: Sequence[SourceSpec],
    options: BenchOptions | None = None,
    *,
    progress: Progress | None = None,
) -> BenchResult:
    """Measure prefill and decode of each source, beside what the machine could do.

    Every source runs in a process of its own, one after the other: while one is measured the
    others wait.

    Args:
        sources: what to measure, at least one.
        options: how.
        progress: called with (turns done, turns in all).

    Raises:
        InputError: no source, or a context that a source does not have.
        AndreaExportError: a source that cannot be opened or run.
    """
    options = options or BenchOptions()
    if not sources:
        raise InputError("give at least one checkpoint, exported folder or engine")
    names = _names([spec.source for spec in sources])
    with ExitStack() as processes:
        runners = [
            _Runner(spec, processes.enter_context(Child(WORKER, name)))
            for spec, name in zip(sources, names, strict=True)
        ]
        workloads = plan(options, [(runner.name, runner.limit) for runner in runners])
        meter = _Meter(processes.enter_context(Child(METER, "the machine's meter")))
        rounds = _Rounds(runners, workloads, meter, options)
        rounds.run(progress)
        measured = tuple(runner.measured() for runner in runners)
    profiles = _profiles(sources, names, workloads, options) if options.profile_ops else ()
    return BenchResult(
        machine=describe_machine(),
        options=options.to_dict(),
        sources=measured,
        rows=rounds.rows(),
        read_rates=(min(meter.read_rates), max(meter.read_rates)),
        matmul_rates={
            dtype: (min(rates), max(rates)) for dtype, rates in meter.matmul_rates.items()
        },
        profiles=tuple(profiles),
        notes=(
            *_notes(rounds.rows()),
            *(_unprofiled(sources, names) if options.profile_ops else ()),
        ),
    )


class _Runner:
    """A source's process, and what it told."""

    def __init__(self, spec: SourceSpec, child: Child) -> None:
        self.spec, self.child, self.name = spec, child, child.name
        started = time.perf_counter()
        facts = child.ask("open", spec=spec.to_dict())
        self.config, self.limit = AndreaConfig.from_dict(facts["config"]), int(facts["limit"])
        self.start_seconds = time.perf_counter() - started
        self.first_call_seconds: float | None = None
        self.peak_rss_bytes = 0
        self.device_bytes: int | None = None

    def start(self) -> None:
        started = time.perf_counter()
        facts = self.child.ask("start")
        self.start_seconds += time.perf_counter() - started
        self.label, self.dtype, self.device = facts["label"], facts["dtype"], facts["device"]

    def measure(self, workload: Workload, options: BenchOptions) -> list[float]:
        answer = self.child.ask("measure", **_request(workload, options))
        seconds: list[float] = answer["seconds"]
        if self.first_call_seconds is None:
            self.first_call_seconds = seconds[0]
        self.peak_rss_bytes = answer["peak_rss_bytes"]
        self.device_bytes = max(answer["device_bytes"] or 0, self.device_bytes or 0) or None
        return seconds

    def measured(self) -> MeasuredSource:
        assert self.first_call_seconds is not None
        return MeasuredSource(
            name=self.name,
            source=self.spec.source,
            label=self.label,
            dtype=self.dtype,
            device=self.device,
            parameters=count_parameters(self.config),
            start_seconds=self.start_seconds,
            first_call_seconds=self.first_call_seconds,
            peak_rss_bytes=self.peak_rss_bytes,
            device_bytes=self.device_bytes,
        )


class _Meter:
    """All rates of the machine that were seen, in bytes/s and operations/s."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._reads: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self.matmul_rates: defaultdict[str, list[float]] = defaultdict(list)

    def multiply(self, runners: list[_Runner]) -> None:
        """In the dtype of each source."""
        for device, dtype in sorted({(runner.device, runner.dtype) for runner in runners}):
            answer = self._child.ask("matmul_rate", device=device, dtype=dtype)
            self.matmul_rates[dtype].append(answer["operations_per_second"])

    def read(self, device: str, work: Work) -> None:
        """As many bytes as the work moves."""
        nbytes = int(work.nbytes)
        answer = self._child.ask("read_rate", device=device, nbytes=nbytes)
        self._reads[device, nbytes].append(answer["bytes_per_second"])

    def reads(self, device: str, work: Work) -> tuple[float, ...]:
        """What was seen for so many bytes, whichever source it was measured beside."""
        return tuple(self._reads[device, int(work.nbytes)])

    @property
    def read_rates(self) -> list[float]:
        return [rate for rates in self._reads.values() for rate in rates]


class _Rounds:
    """Every round: for every workload, the machine and then each source in turn."""

    def __init__(
        self,
        runners: list[_Runner],
        workloads: list[Workload],
        meter: _Meter,
        options: BenchOptions,
    ) -> None:
        self.runners, self.workloads = runners, workloads
        self.meter, self.options = meter, options
        self.cells = {
            (workload, runner.name): _Cell() for workload in workloads for runner in runners
        }

    def run(self, progress: Progress | None) -> None:
        for runner in self.runners:
            runner.start()
            for workload in self.workloads:
                cell = self.cells[workload, runner.name]
                cell.work = work_of(runner.config, runner.dtype, workload)
                cell.first_call_seconds = runner.measure(workload, self.options)[0]
        total, done = self.options.rounds * len(self.cells), 0
        for _ in range(self.options.rounds):
            self.meter.multiply(self.runners)
            for workload, runner in product(self.workloads, self.runners):
                cell = self.cells[workload, runner.name]
                self.meter.read(runner.device, cell.work)
                cell.rounds.append(tuple(runner.measure(workload, self.options)))
                done += 1
                if progress is not None:
                    progress(done, total)

    def rows(self) -> tuple[Row, ...]:
        by_name = {runner.name: runner for runner in self.runners}
        return tuple(
            Row(
                source=name,
                workload=workload,
                work=cell.work,
                rounds=tuple(cell.rounds),
                read_rates=self.meter.reads(by_name[name].device, cell.work),
                matmul_rate=max(self.meter.matmul_rates[by_name[name].dtype]),
                first_call_seconds=cell.first_call_seconds,
            )
            for (workload, name), cell in self.cells.items()
        )


class _Cell:
    work: Work
    first_call_seconds: float

    def __init__(self) -> None:
        self.rounds: list[tuple[float, ...]] = []


def _profiles(
    sources: Sequence[SourceSpec],
    names: list[str],
    workloads: list[Workload],
    options: BenchOptions,
) -> list[Profile]:
    """In processes of their own: a profiler slows down what it watches."""
    found = []
    for spec, name in zip(sources, names, strict=True):
        if is_engine_folder(Path(spec.source)):
            continue
        with Child(WORKER, name) as child:
            child.ask("open", spec=spec.to_dict())
            child.ask("start", profile=True)
            requests = [_request(workload, options) for workload in workloads]
            answers = child.ask("profile", workloads=requests)["profiles"]
        found += [
            Profile(name, workload, tuple(OpTime(**op) for op in answer))
            for workload, answer in zip(workloads, answers, strict=True)
        ]
    return found


def _unprofiled(sources: Sequence[SourceSpec], names: list[str]) -> list[str]:
    pairs = zip(sources, names, strict=True)
    engines = [name for spec, name in pairs if is_engine_folder(Path(spec.source))]
    if not engines:
        return []
    return [
        f"{', '.join(engines)}: no profile by ops, because an engine's fused kernels are none: "
        "NVIDIA Nsight Systems shows them by name"
    ]


def _request(workload: Workload, options: BenchOptions) -> dict[str, Any]:
    return {
        "phase": workload.phase,
        "batch": workload.batch,
        "context": workload.context,
        "steps": workload.steps,
        "turn_seconds": options.turn_seconds,
    }


def _names(sources: Sequence[str]) -> list[str]:
    """The last part of each path; a number where that is not enough to tell them apart."""
    short = [Path(source).name or source for source in sources]
    return [
        name if short.count(name) == 1 else f"{name} ({number})"
        for number, name in enumerate(short, 1)
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = []
    spread = max(max(row.read_rates) / min(row.read_rates) for row in rows)
    if spread > STEADY:
        notes.append(
            f"the machine's memory was up to {spread:.1f} times slower in some rounds than in "
            "others: something else is at work on it; floors are those of the best round"
        )
    above = sum(row.percent_of_floor > 100 for row in rows)
    if above:
        notes.append(
            f"{above} rows are faster than their floor: the machine was slower each time it was "
            "measured than when they ran; measure again with more --rounds"
        )
    fewest = min(len(row.seconds) for row in rows)
    if fewest < 100:
        notes.append(f"a row has {fewest} samples: its p99 is close to its slowest one")
    return notes

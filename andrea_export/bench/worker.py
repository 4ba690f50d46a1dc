"""The process of one source: its memory and its threads are its own."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from andrea_export.bench.op_profile import OpProfiler
from andrea_export.bench.options import SourceSpec
from andrea_export.bench.pipe import serve
from andrea_export.errors import ConfigError

if TYPE_CHECKING:
    from andrea_export.session import Session
    from andrea_export.session.opening import Source
    from andrea_model.config import AndreaConfig

__all__: list[str] = []

LEAST_SAMPLES = 2


class Worker:
    """Opens a source, starts a session on it, and times it."""

    def __init__(self) -> None:
        self._profiler: OpProfiler | None = None

    def open(self, spec: dict[str, Any]) -> dict[str, Any]:
        """What there is, before anything large is loaded."""
        self._spec = SourceSpec(**spec)
        self._source = _opened(self._spec)
        config = self._source.config
        if config is None:
            raise ConfigError(f"{self._spec.source} has no config.json: its floor is not known")
        return {"config": config.to_dict(), "limit": _limit(self._source, config)}

    def start(self, profile: bool = False) -> dict[str, Any]:
        from andrea_export.engine.sidecar import EngineFolder
        from andrea_export.session import open_session

        if profile:
            self._profiler = OpProfiler()
        self._session = open_session(self._source, self._spec.backend, dtype=self._spec.dtype)
        return {
            "label": self._session.label,
            "dtype": self._session.dtype,
            "device": "cuda" if isinstance(self._source, EngineFolder) else "cpu",
            **_memory(),
        }

    def measure(
        self,
        phase: str,
        batch: int,
        context: int,
        steps: int,
        turn_seconds: float,
        recording: AbstractContextManager[None] | None = None,
    ) -> dict[str, Any]:
        """Seconds of each timed step of a turn; see `Workload`."""
        session = self._session
        ids = np.random.default_rng(0).integers(0, session.config.vocab_size, (batch, context))
        chosen = ids[:, 0]
        if phase == "decode":
            session.prefill(ids[:, : context - steps])
            chosen = _choose(session)
        seconds: list[float] = []
        turn_started = time.perf_counter()
        with recording or nullcontext():
            for _ in range(steps):
                started = time.perf_counter()
                if phase == "prefill":
                    session.prefill(ids)
                else:
                    session.step(chosen)
                chosen = _choose(session)
                ended = time.perf_counter()
                seconds.append(ended - started)
                if ended - turn_started > turn_seconds and len(seconds) >= LEAST_SAMPLES:
                    break
        return {"seconds": seconds, **_memory()}

    def profile(self, workloads: list[dict[str, Any]]) -> dict[str, Any]:
        """For each workload, of one timed step: op, calls and seconds, the slowest op first."""
        assert self._profiler is not None
        counts = []
        for workload in workloads:
            self.measure(**workload)  # warms up
            answer = self.measure(**workload, recording=self._profiler.recording())
            counts.append(len(answer["seconds"]))
        profiles = [
            [
                {"op": op, "calls": calls / count, "seconds": seconds / count}
                for op, (calls, seconds) in sorted(totals.items(), key=lambda item: -item[1][1])
            ]
            for totals, count in zip(self._profiler.results(), counts, strict=True)
        ]
        return {"profiles": profiles}


def _choose(session: Session) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The greedy choice: it is part of what a token costs, and waits for the device."""
    # A model whose logits are NaN has no choice, and a speed all the same.
    return session.likeliest(session.config.vocab_size).clip(0)


def _opened(spec: SourceSpec) -> Source:
    from andrea_export.engine.source import is_engine_folder
    from andrea_export.graph import is_graph_folder
    from andrea_export.session.opening import open_source
    from andrea_model.checkpoint import Layout, open_checkpoint, random_checkpoint
    from andrea_model.config import AndreaConfig

    path = Path(spec.source)
    if is_graph_folder(path) or is_engine_folder(path):
        return open_source(path)
    config = None if spec.config is None else AndreaConfig.from_file(Path(spec.config))
    if spec.random_weights is not None and not path.exists():
        return random_checkpoint(
            spec.source, spec.random_weights, config=config, settings=spec.parsed_settings
        )
    return open_checkpoint(
        spec.source,
        config=config,
        settings=spec.parsed_settings,
        layout=None if spec.layout is None else Layout.parse(spec.layout),
        allow_nonfinite=spec.allow_nonfinite,
    )


def _limit(source: Source, config: AndreaConfig) -> int:
    """The most tokens of a row: an engine may take fewer at once than the model's context."""
    from andrea_export.engine.sidecar import EngineFolder

    profiles = source.sidecar.get("profiles") if isinstance(source, EngineFolder) else None
    if not profiles:
        return config.context_length
    widest: int = max(profile["input_ids"]["max"][1] for profile in profiles)
    return min(widest, config.context_length)


def _memory() -> dict[str, Any]:
    """Peak resident bytes of this process, and bytes in use on the GPU by anyone.

    The kernel's high-water mark, because getrusage's begins with that of the parent.
    """
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return {"peak_rss_bytes": int(peak.split()[1]) * 1024, "device_bytes": _device_bytes()}


def _device_bytes() -> int | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


if __name__ == "__main__":
    worker = Worker()
    serve(
        {
            "open": worker.open,
            "start": worker.start,
            "measure": worker.measure,
            "profile": worker.profile,
        }
    )

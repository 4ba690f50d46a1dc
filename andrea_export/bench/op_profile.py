"""Where a step's time goes, by kind of op: from ONNX Runtime's own profiler, or torch's."""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from andrea_export.errors import BackendError

__all__ = ["BETWEEN", "OpProfiler"]

# What a recording spends outside every op: the session's own code, and the profiler's.
BETWEEN = "(between ops)"

Totals = dict[str, list[float]]  # op → calls, seconds


class OpProfiler:
    """Records windows of time. To be made before the session: ONNX Runtime records from the
    moment it loads a graph, or never.
    """

    def __init__(self) -> None:
        self._onnx = _recording_onnxruntime()
        self._windows: list[tuple[int, int]] = []
        self._torch: list[Totals] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        started = time.time_ns()
        if self._onnx:
            yield
        else:
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CPU]) as found:
                yield
            self._torch.append(
                {
                    event.key: [event.count, event.self_cpu_time_total / 1e6]
                    for event in found.key_averages()
                }
            )
        self._windows.append((started, time.time_ns()))

    def results(self) -> list[Totals]:
        """Of each recording: op → [calls, seconds]. Ends all recording.

        Raises:
            BackendError: neither ONNX Runtime nor torch ran anything.
        """
        found = _onnx_totals(self._onnx[-1], self._windows) if self._onnx else self._torch
        if not all(found):
            raise BackendError("no profile by ops: neither ONNX Runtime nor torch ran the model")
        for totals, (started, ended) in zip(found, self._windows, strict=True):
            inside = sum(seconds for _, seconds in totals.values())
            totals[BETWEEN] = [0, max(0.0, (ended - started) / 1e9 - inside)]
        return found


def _recording_onnxruntime() -> list[Any]:
    """From now on every session of this process records; gives the list that they will be in."""
    made: list[Any] = []
    try:
        import onnxruntime as ort
    except ImportError:
        return made
    plain = ort.InferenceSession

    def session(path: Any, options: Any, **others: Any) -> Any:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(tempfile.gettempdir()) / "andrea-export-profile")
        made.append(plain(path, options, **others))
        return made[-1]

    ort.InferenceSession = session
    return made


def _onnx_totals(session: Any, windows: list[tuple[int, int]]) -> list[Totals]:
    epoch = session.get_profiling_start_time_ns()
    path = Path(session.end_profiling())
    events = json.loads(path.read_text("utf-8"))
    path.unlink()
    found: list[Totals] = [defaultdict(lambda: [0, 0.0]) for _ in windows]
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        moment = epoch + event["ts"] * 1000
        for totals, (started, ended) in zip(found, windows, strict=True):
            if started <= moment <= ended:
                entry = totals[event["args"]["op_name"]]
                entry[0] += 1
                entry[1] += event["dur"] / 1e6
    return found

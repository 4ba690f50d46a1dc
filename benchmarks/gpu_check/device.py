"""Where a check runs: a CUDA device, or in a dry run the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

__all__ = ["CudaDevice", "Device", "HostDevice"]


class Device(Protocol):
    """`capture` gives a function that repeats what was captured; `times` runs it, in seconds."""

    torch_name: str
    name: str
    cache_bytes: int

    def stream(self) -> int | None: ...
    def capture(self, work: Callable[[], object]) -> Callable[[], None]: ...
    def times(self, replay: Callable[[], None], count: int) -> list[float]: ...
    def synchronize(self) -> None: ...


class CudaDevice:
    """The first GPU. The only part that no dry run can reach."""

    torch_name = "cuda"

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(0)
        self.name = properties.name
        self.cache_bytes = int(getattr(properties, "L2_cache_size", 64 << 20))

    def stream(self) -> int | None:
        return int(torch.cuda.current_stream().cuda_stream)

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        # Once outside: libraries load their code then, which a capture does not allow.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def times(self, replay: Callable[[], None], count: int) -> list[float]:
        events = [
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            for _ in range(count)
        ]
        replay()
        for start, end in events:
            start.record()
            replay()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class HostDevice:
    """The CPU in the GPU's place, with the host library: every other line of the check runs."""

    torch_name = "cpu"
    name = "dry run on the CPU"
    cache_bytes = 1 << 16

    def stream(self) -> int | None:
        return None

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        def replay() -> None:
            work()

        return replay

    def times(self, replay: Callable[[], None], count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            replay()
            seconds.append(time.perf_counter() - started)
        return seconds

    def synchronize(self) -> None:
        pass

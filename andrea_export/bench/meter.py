"""The process that measures the machine: how fast it reads memory and multiplies matrices.

It takes its turn beside the sources, because a shared machine is not equally fast all the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from andrea_export.bench.pipe import serve

__all__: list[str] = []

REPEATS = 5
SIDE = {"cpu": 1024, "cuda": 8192}
# torch's own fp16 product on a CPU is a slow loop, and runtimes there multiply in float32.
MATMUL_DTYPES = {
    "cpu": {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "fp16": torch.float32,
        "bf16": torch.bfloat16,
    },
    "cuda": {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
    },
}
_buffers: dict[str, torch.Tensor] = {}


def read_rate(device: str, nbytes: int) -> dict[str, Any]:
    """Bytes/s of reading `nbytes` again and again: what fits into a cache is read from there.

    On a GPU that of a copy, reads and writes counted.
    """
    numbers = max(nbytes // 4, 1024) // 2 * 2
    buffer = _buffers.get(device)
    if buffer is None or len(buffer) < numbers:
        # numpy asks for huge pages, as the fastest reader would.
        buffer = torch.from_numpy(np.ones(numbers, np.float32)).to(device)
        _buffers[device] = buffer
    data = buffer[:numbers]
    if device == "cuda":
        return {"bytes_per_second": 2 * 4 * numbers / _best(device, lambda: data.clone())}
    a, b = data.chunk(2)
    seconds = min(_best(device, lambda: torch.dot(a, b)), _best(device, data.sum))
    return {"bytes_per_second": 4 * numbers / seconds}


def matmul_rate(device: str, dtype: str) -> dict[str, Any]:
    """Operations/s (a multiplication and an addition are two) of a large square product."""
    side = SIDE[device]
    a = torch.ones(side, side, dtype=MATMUL_DTYPES[device][dtype], device=device)
    return {"operations_per_second": 2 * side**3 / _best(device, lambda: a @ a)}


def _best(device: str, run: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs, with all cores and with one.

    Where other work keeps a core, threads that wait for each other are slower than one alone.
    """
    cores, times = torch.get_num_threads(), []
    for threads in sorted({1, cores}):
        torch.set_num_threads(threads)
        run()  # warms up
        for _ in range(REPEATS):
            started = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    serve({"read_rate": read_rate, "matmul_rate": matmul_rate})

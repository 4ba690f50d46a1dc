"""The process that measures the machine: how fast it reads memory and multiplies matrices.

It takes its turn beside the sources, because a shared machine is not equally fast all the time.
Work comes in short pieces and the best one counts: a long one would always be interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from andrea_export.bench.pipe import serve

__all__: list[str] = []

PIECE_BYTES = 32 << 20
LEAST_PIECES = 15
PRODUCTS = 15
ENOUGH_SECONDS = 0.1
SIDE = {"cpu": 512, "cuda": 8192}
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
    data = _buffer(device, max(nbytes // 4, 1024))
    if device == "cuda":
        seconds = _best(device, [data] * LEAST_PIECES, torch.clone)
        return {"bytes_per_second": 2 * data.nbytes / seconds}
    # Piece after piece through all of it, or what is larger than the caches would be read from
    # them. Equal pieces: the rest at the end is left out.
    numbers = min(len(data), PIECE_BYTES // 4)
    pieces = [data[start : start + numbers] for start in range(0, len(data) - numbers + 1, numbers)]
    pieces *= -(-LEAST_PIECES // len(pieces))
    seconds = min(_best(device, pieces, _dot), _best(device, pieces, torch.sum))
    return {"bytes_per_second": pieces[0].nbytes / seconds}


def matmul_rate(device: str, dtype: str) -> dict[str, Any]:
    """Operations/s (a multiplication and an addition are two) of a square product.

    The best library counts: on some processors ONNX Runtime's float32 product is twice as fast as
    torch's.
    """
    side = SIDE[device]
    a = torch.ones(side, side, dtype=MATMUL_DTYPES[device][dtype], device=device)
    times = [_best(device, [a] * PRODUCTS, lambda a: a @ a)]
    if device == "cpu" and dtype != "fp64" and (product := _onnx_product(side)) is not None:
        times.append(_best(device, [torch.ones(side, side)] * PRODUCTS, product))
    return {"operations_per_second": 2 * side**3 / min(times)}


@cache
def _onnx_product(side: int) -> Callable[[torch.Tensor], object] | None:
    """Float32 product with a constant, which ONNX Runtime packs once, as it does with weights."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    a, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (side, side)) for name in ("a", "y")
    )
    weights = numpy_helper.from_array(np.ones((side, side), np.float32), "weights")
    node = helper.make_node("MatMul", ["a", "weights"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "product", [a], [y], [weights]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda value: session.run(None, {"a": value.numpy()})


def _buffer(device: str, numbers: int) -> torch.Tensor:
    buffer = _buffers.get(device)
    if buffer is None or len(buffer) < numbers:
        # numpy asks for huge pages, as the fastest reader would.
        buffer = torch.from_numpy(np.ones(numbers, np.float32)).to(device)
        _buffers[device] = buffer
    return buffer[:numbers]


def _dot(data: torch.Tensor) -> torch.Tensor:
    half = len(data) // 2
    return torch.dot(data[:half], data[half : 2 * half])


def _best(device: str, pieces: list[torch.Tensor], run: Callable[[torch.Tensor], object]) -> float:
    """Seconds of the fastest piece, with all cores and with one.

    Where other work keeps a core, threads that wait for each other are slower than one alone.
    """
    cores, times = torch.get_num_threads(), []
    for threads in sorted({1, cores}):
        torch.set_num_threads(threads)
        run(pieces[-1])  # warms up, and leaves the first piece out of the caches
        end = time.perf_counter() + ENOUGH_SECONDS
        for piece in pieces:
            started = time.perf_counter()
            run(piece)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
            if started > end:
                break
    return min(times)


if __name__ == "__main__":
    serve({"read_rate": read_rate, "matmul_rate": matmul_rate})

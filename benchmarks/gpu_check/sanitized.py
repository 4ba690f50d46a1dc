"""Launches for compute-sanitizer: every kernel once or twice, and no torch, to stay quick.

    compute-sanitizer --tool memcheck python -m benchmarks.gpu_check.sanitized LIBRARY

Each tensor is an allocation of exactly its size: one byte beyond it is an error that is seen.
With --host the memory comes from the C library, for a dry run with the host build.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["main"]

ITEM_BYTES = {0: 4, 1: 2, 2: 2}  # andrea_dtype
FORMS = (0, 1)  # andrea_gelu_form
# One for each line of the dispatch table that a row can take, in both alignments.
WIDTHS = (7, 256, 512, 768, 1000, 1023, 1024, 1536, 2048, 3072, 8192, 8193, 32768)
ROWS = 5

Allocate = Callable[[int], int]


def host_memory() -> tuple[Allocate, Callable[[], None]]:
    kept = []

    def allocate(nbytes: int) -> int:
        kept.append(ctypes.create_string_buffer(nbytes + 16))
        address = ctypes.addressof(kept[-1])
        return address + -address % 16

    return allocate, lambda: None


def device_memory() -> tuple[Allocate, Callable[[], None]]:
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: CUDA error {status}")

    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)

    def allocate(nbytes: int) -> int:
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        call("cuMemsetD8_v2", address, 0, ctypes.c_size_t(nbytes))
        return address.value

    return allocate, lambda: call("cuCtxSynchronize")


def calls(
    library: ctypes.CDLL, allocate: Allocate, dtype: int, width: int
) -> Iterator[tuple[str, int]]:
    """(name, status) of every launch at one type and width."""
    size = ITEM_BYTES[dtype]
    x, r, y, s = (ctypes.c_void_p(allocate(ROWS * width * size)) for _ in "xrys")
    gamma, beta = (ctypes.c_void_p(allocate(width * size)) for _ in "gb")
    rows, columns = ctypes.c_int64(ROWS), ctypes.c_int64(width)
    epsilon = ctypes.c_float(1e-5)
    yield (
        "layer_norm",
        library.andrea_layer_norm(dtype, x, gamma, beta, y, rows, columns, epsilon, None),
    )
    yield (
        "add_layer_norm",
        library.andrea_add_layer_norm(dtype, x, r, gamma, beta, y, s, rows, columns, epsilon, None),
    )
    for form in FORMS:
        count = ctypes.c_int64(ROWS * width)
        yield "gelu", library.andrea_gelu(dtype, form, x, y, count, None)
        yield "bias_gelu", library.andrea_bias_gelu(dtype, form, x, beta, y, rows, columns, None)


def main(path: Path, *, on_host: bool) -> int:
    allocate, synchronize = host_memory() if on_host else device_memory()
    library = ctypes.CDLL(str(path))
    launches = 0
    for dtype, width in itertools.product(ITEM_BYTES, WIDTHS):
        for name, status in calls(library, allocate, dtype, width):
            if status != 0:
                print(f"{name} at width {width}: status {status}")
                return 1
            launches += 1
        synchronize()
    print(f"{launches} launches")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), on_host="--host" in sys.argv[2:]))

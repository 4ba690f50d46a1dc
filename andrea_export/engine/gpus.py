"""The GPUs of this machine, asked of the driver itself: no torch, toolkit or nvidia-smi needed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

__all__ = ["Gpu", "Machine", "find_gpus", "machine"]

DRIVER = "libcuda.so.1"
# From cuda.h: CUdevice_attribute.
MAJOR, MINOR = 75, 76
NAME_BYTES = 256


@dataclass(frozen=True)
class Gpu:
    """A GPU: its name, compute capability as "8.9", and memory in bytes."""

    name: str
    compute_capability: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """What the driver says. `cuda` is the newest CUDA it can run, as "13.0"; None: no driver.

    problem: why there is a driver and no GPU, or why there is no driver.
    """

    gpus: tuple[Gpu, ...]
    cuda: str | None
    problem: str = ""


@cache
def machine() -> Machine:
    """This machine, asked once."""
    return find_gpus()


def find_gpus(driver: str = DRIVER) -> Machine:
    """Ask the driver library, by name or path. Never raises: without a GPU there are none."""
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return Machine((), None, "there is no NVIDIA driver (libcuda.so.1)")
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if status := cuda.cuInit(0):
        return Machine((), version, f"the driver finds no usable GPU (CUDA error {status})")
    cuda.cuDeviceGetCount(ctypes.byref(number))
    return Machine(tuple(_gpu(cuda, index) for index in range(number.value)), version)


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, value, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(NAME_BYTES)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, NAME_BYTES, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (MAJOR, MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(str(value.value))
    return Gpu(name.value.decode(errors="replace"), ".".join(capability), memory.value)

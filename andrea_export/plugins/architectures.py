"""Which GPUs a library is compiled for."""

from __future__ import annotations

import ctypes
import re

from andrea_export.errors import BackendError, InputError

__all__ = ["ALL_ARCHITECTURES", "local_architecture", "parse_architectures"]

# Turing, Ampere (data centre, desktop), Ada, Hopper, Blackwell (data centre, desktop).
ALL_ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")

# CUdevice_attribute
_MAJOR, _MINOR = 75, 76


def parse_architectures(text: str) -> tuple[str, ...]:
    """`all`, `native`, or a list such as `80,90` (also `sm_90` or `9.0`), in rising order.

    Raises:
        InputError: something else.
        BackendError: `native` on a machine without a GPU.
    """
    if text == "all":
        return ALL_ARCHITECTURES
    if text == "native":
        return (local_architecture(),)
    numbers = set()
    for word in filter(None, re.split(r"[,;\s]+", text)):
        match = re.fullmatch(r"(?:sm_|compute_)?(\d{2,3})|(\d{1,2})\.(\d)", word)
        if match is None:
            raise InputError(
                f"{word!r} is not a GPU architecture: --arch takes all, native, or a list such as "
                "80,90"
            )
        numbers.add(int(match[1] or match[2] + match[3]))
    if not numbers:
        raise InputError("--arch is empty: give all, native, or a list such as 80,90")
    return tuple(str(number) for number in sorted(numbers))


def local_architecture() -> str:
    """The compute capability of this machine's first GPU, as the driver gives it: "90".

    Raises:
        BackendError: there is no driver or no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise BackendError(
            "--arch native needs an NVIDIA driver, and there is none here: name the architecture, "
            "such as --arch 90, or build for --arch all"
        ) from None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    for attribute, value in ((_MAJOR, major), (_MINOR, minor)):
        status = status or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    if status != 0:
        raise BackendError(
            f"--arch native needs a GPU, and the driver shows none (CUDA error {status}): name the "
            "architecture, such as --arch 90"
        )
    return f"{major.value}{minor.value}"

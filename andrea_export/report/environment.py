"""On what a report was made: libraries, processor, memory, GPUs, threads."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from andrea_export import __version__
from andrea_export.engine.gpus import machine

__all__ = ["environment"]

LIBRARIES = (
    "torch", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu",
    "tensorrt-cu13", "tensorrt-rtx-cu13", "matplotlib",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """As plain values, for JSON. The host's name and the user's are not in it."""
    versions = {"andrea-export": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    here = machine()
    return {
        "versions": versions,
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "gpus": [gpu.name for gpu in here.gpus],
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None

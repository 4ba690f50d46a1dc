"""What one can ask of an engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from andrea_export.engine.flavors import Flavor
from andrea_export.engine.layer_tensors import FORMS, OFF, Choice
from andrea_export.errors import EngineError

__all__ = ["EngineOptions", "parse_bytes"]

Plugins = Literal["auto", "on", "off"]
DTYPES = ("fp32", "fp16", "bf16")
OPTIMIZATION_LEVELS = range(6)
LARGEST_SIZE = 2**63 - 1  # what TensorRT can count
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class EngineOptions:
    """Options of `build_engine`.

    Attributes:
        dtype: "fp32", "fp16" or "bf16"; None keeps the graph's (fp32 for a checkpoint).
        flavor: "auto", "tensorrt" or "rtx".
        plugins: "auto" uses the plugin library where flavor and library allow it, "on" insists,
            "off" leaves the custom ops to their definitions inside the graph.
        plugin_library: instead of the one that `plugins build` made.
        compute_capability: of TensorRT-RTX, "8.9" or "8.9,12.0"; None: this machine's GPU.
        profiles: optimization profiles, "input_ids=1x1:1x128:8x1024".
        batch, sequence: ranges "MIN:OPT:MAX" that fill what the profiles leave open.
        capacity: of the cache; None: the context length.
        kv_cache: give a checkpoint's graph a cache.
        workspace_bytes: scratch memory that a kernel may use.
        optimization_level: 0 (quick build) to 5.
        timing_cache: a file that remembers measured kernels from build to build.
        version_compatible: the engine also runs on later versions of TensorRT.
        hardware_compatible: the engine also runs on other GPUs, from Ampere on.
        strip_weights: an engine without weights, which `refit_engine` puts back.
        layer_tensors: "off", or which tensors between the layers a report can see when the engine
            runs: "unfused", "named" or "outputs".

    Raises:
        EngineError: a value outside these.
    """

    dtype: str | None = None
    flavor: str = "auto"
    plugins: Plugins = "auto"
    plugin_library: Path | None = None
    compute_capability: str | None = None
    profiles: tuple[str, ...] = ()
    batch: str | None = None
    sequence: str | None = None
    capacity: int | None = None
    kv_cache: bool = False
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: Path | None = None
    version_compatible: bool = False
    hardware_compatible: bool = False
    strip_weights: bool = False
    layer_tensors: Choice = "off"

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise EngineError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.plugins not in get_args(Plugins):
            raise EngineError(f"plugins {self.plugins!r} is not one of auto, on, off")
        if self.plugins == "off" and self.plugin_library is not None:
            raise EngineError("--plugin-library names what --plugins off leaves out: one of them")
        if self.optimization_level is not None and (
            self.optimization_level not in OPTIMIZATION_LEVELS
        ):
            raise EngineError(
                f"the optimization level is from 0 to 5, not {self.optimization_level}"
            )
        if self.capacity is not None and self.capacity < 1:
            raise EngineError(f"the cache's capacity must be at least 1, not {self.capacity}")
        if self.workspace_bytes is not None and not 1 <= self.workspace_bytes <= LARGEST_SIZE:
            raise EngineError(
                "the workspace must be at least 1 byte"
                if self.workspace_bytes < 1
                else f"a workspace of {self.workspace_bytes:,} bytes is more than any GPU has"
            )
        if self.layer_tensors not in FORMS:
            raise EngineError(
                f"layer tensors {self.layer_tensors!r} is not one of {', '.join(FORMS)}"
            )

    @property
    def shows_layers(self) -> bool:
        return self.layer_tensors != OFF

    def check_flavor(self, flavor: Flavor) -> None:
        """Refuse what that flavor does not have.

        Raises:
            EngineError: names the option and the reason.
        """
        asked: dict[str, Any] = {
            "--compute-capability": self.compute_capability,
            "--timing-cache": self.timing_cache,
            "--version-compatible": self.version_compatible,
            "--hardware-compatible": self.hardware_compatible,
            "--plugins on": self.plugins == "on",
            "--plugin-library": self.plugin_library,
        }
        for option, reason in flavor.lacks.items():
            if asked[option]:
                raise EngineError(f"{flavor.title} does not take {option}: {reason}")


def parse_bytes(text: str) -> int:
    """`512M`, `4GiB` or a number of bytes; K, M and G are powers of 1024.

    Raises:
        EngineError: not of that form.
    """
    match = re.fullmatch(r"(\d+)\s*(?:([KMG])i?)?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise EngineError(f"a size is a number with K, M or G, as 4G, not {text!r}")
    return int(match[1]) * UNITS[(match[2] or "").upper()]

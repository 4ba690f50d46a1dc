"""How fast? Every op beside a device-to-device copy, torch eager and torch.compile.

All of them are captured into CUDA graphs of many launches over rotating buffers, and the median
replay divided by its launches is the time of one: what an engine's CUDA graph would see.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.device import Device
from benchmarks.gpu_check.numerics import draw
from benchmarks.gpu_check.ops import DTYPES, OPS, Launchers, Op

__all__ = [
    "DECODE",
    "DRY",
    "LARGE",
    "Measurement",
    "Plan",
    "Target",
    "copy_speed",
    "measure",
    "targets",
]

LARGE = ((65536, 768), (8192, 3072))
DECODE = ((1, 768), (8, 768))


@dataclass(frozen=True)
class Plan:
    """Which shapes, how often, and whether torch.compile is measured."""

    shapes: tuple[tuple[int, int], ...]
    copy_bytes: int
    repeats: int
    launches: int  # in one graph
    compile: bool


FULL = Plan(LARGE + DECODE, 512 << 20, 30, 24, True)
DRY = Plan(((4, 768), (1, 768)), 1 << 16, 2, 2, False)


@dataclass
class Measurement:
    """One op at one shape. Times are of one launch, in microseconds, the median over replays."""

    op: str
    dtype: str
    shape: tuple[int, int]
    us: float
    gb_per_s: float
    percent_of_copy: float
    torch_us: float | None = None
    compile_us: float | None = None
    add_then_norm_us: float | None = None
    buffer_sets: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Target:
    what: str
    wanted: str
    seen: str
    is_met: bool


@dataclass
class Buffers:
    """Enough sets of tensors that none is still in the cache when its turn comes again."""

    inputs: list[list[Tensor]]
    outputs: list[list[Tensor]] = field(default_factory=list)

    @classmethod
    def make(
        cls, op: Op, shape: tuple[int, int], dtype: torch.dtype, device: Device, most: int
    ) -> Buffers:
        bytes_of_one = op.bytes_moved(*shape, dtype)
        count = max(2, min(most, -(-4 * device.cache_bytes // bytes_of_one)))
        inputs = [draw(op, *shape, dtype, device) for _ in range(count)]
        outputs = [[torch.empty_like(sets[0]) for _ in range(op.outputs)] for sets in inputs]
        return cls(inputs, outputs)

    def __len__(self) -> int:
        return len(self.inputs)


def median_us(device: Device, plan: Plan, launches: int, one: Callable[[int], object]) -> float:
    """Capture `launches` calls, one(0), one(1), ..., and give the time of one of them."""

    def work() -> None:
        for index in range(launches):
            one(index)

    replay = device.capture(work)
    return statistics.median(device.times(replay, plan.repeats)) / launches * 1e6


def copy_speed(device: Device, plan: Plan) -> float:
    """Bytes read plus bytes written in a second by a device-to-device copy."""
    pairs = [
        [torch.zeros(plan.copy_bytes, dtype=torch.uint8, device=device.torch_name) for _ in "ab"]
        for _ in range(2)
    ]
    us = median_us(device, plan, 4, lambda index: pairs[index % 2][0].copy_(pairs[index % 2][1]))
    return 2 * plan.copy_bytes / us * 1e6


def measure(
    launchers: Launchers,
    device: Device,
    plan: Plan,
    compile_seconds: float,
    say: Callable[[str], None],
) -> tuple[list[Measurement], float]:
    """All measurements and the copy's bytes per second.

    torch.compile is left out once `compile_seconds` are over, so that the whole ends in time.
    """
    started = time.monotonic()
    copy = copy_speed(device, plan)
    results = []
    # Half precision first: these are the ones with targets.
    for shape, dtype_name, op in itertools.product(
        plan.shapes, ("float16", "bfloat16", "float32"), OPS
    ):
        dtype = DTYPES[dtype_name]
        buffers = Buffers.make(op, shape, dtype, device, most=plan.launches)
        launches = max(plan.launches, len(buffers))
        sets = len(buffers)

        def ours(index: int, op: Op = op, buffers: Buffers = buffers, sets: int = sets) -> None:
            turn = index % sets
            launchers.run(op, buffers.inputs[turn], buffers.outputs[turn], device.stream())

        def eager(index: int, op: Op = op, buffers: Buffers = buffers, sets: int = sets) -> None:
            op.torch_form(*buffers.inputs[index % sets])

        us = median_us(device, plan, launches, ours)
        speed = op.bytes_moved(*shape, dtype) / us * 1e6
        result = Measurement(
            op.label, dtype_name, shape, us, speed / 1e9, 100 * speed / copy, buffer_sets=sets
        )
        result.torch_us = median_us(device, plan, launches, eager)
        if op.plugin == "AndreaAddLayerNorm":
            result.add_then_norm_us = median_us(
                device, plan, launches, add_then_norm(launchers, device, buffers)
            )
        is_timely = time.monotonic() - started < compile_seconds
        if plan.compile and dtype_name != "float32" and is_timely:
            result.compile_us = compiled_us(op, buffers, device, plan, launches, say)
        results.append(result)
        say(row(result))
        del buffers
    return results, copy


def add_then_norm(
    launchers: Launchers, device: Device, buffers: Buffers
) -> Callable[[int], object]:
    """What AddLayerNorm replaces: torch's add, then our LayerNorm."""

    def one(index: int) -> None:
        x, r, gamma, beta = buffers.inputs[index % len(buffers)]
        y, s = buffers.outputs[index % len(buffers)]
        torch.add(x, r, out=s)
        launchers.run(OPS[0], [s, gamma, beta], [y], device.stream())

    return one


def compiled_us(
    op: Op,
    buffers: Buffers,
    device: Device,
    plan: Plan,
    launches: int,
    say: Callable[[str], None],
) -> float | None:
    try:
        torch._dynamo.reset()
        compiled = torch.compile(op.torch_form, dynamic=False)
        compiled(*buffers.inputs[0])
        return median_us(
            device, plan, launches, lambda index: compiled(*buffers.inputs[index % len(buffers)])
        )
    except Exception as error:  # a missing Triton or compiler must not end the check
        say(f"torch.compile of {op.label}: {type(error).__name__}: {str(error)[:200]}")
        return None


HEADER = (
    f"{'op':14} {'dtype':9} {'shape':>14} {'us':>9} {'GB/s':>8} {'% copy':>7} "
    f"{'eager us':>9} {'compile us':>10} {'x compile':>9}"
)


def row(result: Measurement) -> str:
    def text(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    ratio = None if result.compile_us is None else result.compile_us / result.us
    shape = f"{result.shape[0]}x{result.shape[1]}"
    return (
        f"{result.op:14} {result.dtype:9} {shape:>14} {result.us:9.2f} {result.gb_per_s:8.0f} "
        f"{result.percent_of_copy:7.1f} {text(result.torch_us):>9} {text(result.compile_us):>10} "
        f"{text(ratio):>9}"
    )


def targets(results: Sequence[Measurement]) -> list[Target]:
    """The speeds that were set for an H200; on another GPU read them as a comparison."""
    found = []
    for result in results:
        name = f"{result.op} {result.dtype} {list(result.shape)}"
        if result.dtype == "float32":
            continue
        if result.shape in LARGE:
            share = result.percent_of_copy
            found.append(Target(name, ">= 90 % of a copy", f"{share:.1f} %", share >= 90))
            if result.compile_us is not None:
                ratio = result.compile_us / result.us
                found.append(Target(name, ">= 1.0x torch.compile", f"{ratio:.2f}x", ratio >= 1.0))
            if result.add_then_norm_us is not None:
                ratio = result.us / result.add_then_norm_us
                found.append(
                    Target(name, "<= 0.85x add + LayerNorm", f"{ratio:.2f}x", ratio <= 0.85)
                )
        elif result.shape in DECODE:
            found.append(
                Target(name, "<= 3 us in a CUDA graph", f"{result.us:.2f} us", result.us <= 3)
            )
    return found

"""Are the numbers right on this device? Fresh random data against torch in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu_check.device import Device
from benchmarks.gpu_check.ops import DTYPES, EPSILON, OPS, Launchers, Op, allowed_error
from benchmarks.gpu_check.v3_harness import Harness, Plugin, TensorSpec

__all__ = ["FULL", "SMALL", "Findings", "Sizes", "check_launchers", "check_plugins"]

CANARY = 0xFF  # not a number in all three types
POISON = 0xA5
MARGIN = 256  # bytes on both sides of a tensor
OFFSETS = ("aligned", "all by one", "only the last")


@dataclass(frozen=True)
class Sizes:
    widths: tuple[int, ...]
    rows: tuple[int, ...]


FULL = Sizes(
    (1, 2, 7, 31, 32, 33, 64, 127, 760, 768, 1000, 1023, 3072, 4096, 8193, 16384, 65536),
    (0, 1, 3, 65),
)
SMALL = Sizes((1, 33, 768, 1023, 3072), (0, 3))


@dataclass
class Findings:
    """How much was checked, and what was wrong (the first few of it)."""

    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def note(self, is_right: bool, what: str) -> None:
        self.checked += 1
        if not is_right:
            self.wrong.append(what)


class Guarded:
    """A tensor `offset` elements from a 16-byte boundary, between canaries."""

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: Device, offset: int = 0
    ) -> None:
        nbytes = int(torch.Size(shape).numel()) * dtype.itemsize
        self.memory = torch.full(
            (nbytes + 2 * MARGIN + 16,), CANARY, dtype=torch.uint8, device=device.torch_name
        )
        start = MARGIN + -(self.memory.data_ptr() + MARGIN) % 16 + offset * dtype.itemsize
        self.inside = slice(start, start + nbytes)
        # torch will not view bytes at an odd offset as a wider type: the values are copied through.
        self.shape, self.dtype = tuple(shape), dtype
        self.memory[self.inside] = POISON

    def write(self, values: Tensor) -> None:
        self.memory[self.inside] = values.contiguous().flatten().view(torch.uint8)

    def read(self) -> Tensor:
        return self.memory[self.inside].clone().view(self.dtype).reshape(self.shape)

    def data_ptr(self) -> int:
        return self.memory.data_ptr() + self.inside.start

    def is_intact(self) -> bool:
        outside = torch.cat([self.memory[: self.inside.start], self.memory[self.inside.stop :]])
        return bool((outside == CANARY).all())


def draw(op: Op, rows: int, width: int, dtype: torch.dtype, device: Device) -> list[Tensor]:
    """Activations around 0 with deviation 2, vectors with deviation 1."""
    shapes = [(rows, width)] * op.activations + [(width,)] * op.vectors
    scales = [2.0] * op.activations + [1.0] * op.vectors
    return [
        (scale * torch.randn(shape, device=device.torch_name)).to(dtype)
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def worst(actual: Tensor, expected: Tensor, size: Tensor) -> float:
    """The largest error as a share of what is allowed; infinite where something is not a number."""
    error = (actual.double() - expected).abs()
    share = error / allowed_error(actual.dtype, expected, size)
    return float(share.nan_to_num(nan=float("inf")).max()) if share.numel() else 0.0


def compare(
    what: str, op: Op, values: list[Tensor], outputs: list[Tensor], found: Findings
) -> None:
    for index, (output, expected) in enumerate(zip(outputs, op.expected(*values), strict=True)):
        share = worst(output, *expected)
        found.note(share <= 1, f"{what}, output {index}: {share:.3g} times the allowed error")


def check_launchers(launchers: Launchers, device: Device, sizes: Sizes) -> Findings:
    """Every op, type, width, row count and alignment through the C interface."""
    found = Findings()
    for op, dtype_name, width, rows, which in itertools.product(
        OPS, DTYPES, sizes.widths, sizes.rows, OFFSETS
    ):
        if rows * width > 2_000_000:
            continue
        dtype = DTYPES[dtype_name]
        values = draw(op, rows, width, dtype, device)
        count = len(values) + op.outputs
        offsets = {"aligned": [0] * count, "all by one": [1] * count}
        last = [0] * (count - 1) + [1]
        shapes = [tuple(value.shape) for value in values] + [(rows, width)] * op.outputs
        memory = [
            Guarded(shape, dtype, device, offset)
            for shape, offset in zip(shapes, offsets.get(which, last), strict=True)
        ]
        for guarded, value in zip(memory, values, strict=False):
            guarded.write(value)
        inputs, outputs = memory[: len(values)], memory[len(values) :]
        launchers.run(op, inputs, outputs, device.stream())
        what = f"{op.label} {dtype_name} [{rows}, {width}] {which}"
        compare(what, op, values, [guarded.read() for guarded in outputs], found)
        found.note(all(guarded.is_intact() for guarded in memory), f"{what}: wrote outside")
    for what, is_right in special_values(launchers, device):
        found.note(is_right, what)
    return found


def special_values(launchers: Launchers, device: Device) -> Iterator[tuple[str, bool]]:
    """A large mean, subnormal numbers, Inf and NaN; and the same bits twice."""
    norm, gelus = OPS[0], [op for op in OPS if op.plugin == "AndreaGelu"]
    x = 1e4 + torch.randn((5, 768), device=device.torch_name)
    ones, zeros = torch.ones_like(x[0]), torch.zeros_like(x[0])
    y, again = torch.empty_like(x), torch.empty_like(x)
    launchers.run(norm, [x, ones, zeros], [y], device.stream())
    expected = torch.nn.functional.layer_norm(x.double(), (768,), eps=EPSILON)
    yield "LayerNorm of mean 1e4", bool((y - expected).abs().max() < 1e-3)
    launchers.run(norm, [x, ones, zeros], [again], device.stream())
    yield "LayerNorm gives the same bits twice", torch.equal(y, again)

    for bad in (float("inf"), float("-inf"), float("nan")):
        spoiled = torch.randn((3, 3072), device=device.torch_name)
        spoiled[1, 1234] = bad
        vectors = [torch.ones_like(spoiled[0]), torch.zeros_like(spoiled[0])]
        y = torch.empty_like(spoiled)
        launchers.run(norm, [spoiled, *vectors], [y], device.stream())
        is_right = y[1].isnan().all() and y[[0, 2]].isfinite().all()
        yield f"LayerNorm of a row with {bad}", bool(is_right)

    for op, dtype in itertools.product(gelus, DTYPES.values()):
        inf = float("inf")
        special = torch.tensor([[inf, -inf, float("nan"), 6e4, -6e4, 0.0]], dtype=dtype)
        special = special.to(device.torch_name)
        y = torch.empty_like(special)
        launchers.run(op, [special], [y], device.stream())
        wanted = torch.tensor([[inf, float("nan"), float("nan"), 1, 0, 0]], dtype=torch.float64)
        wanted = wanted.to(device.torch_name)
        wanted[0, 3] = special[0, 3].double()
        yield (
            f"{op.label} of special values in {dtype}",
            torch.equal(y.double().nan_to_num(nan=-1.0), wanted.nan_to_num(nan=-1.0)),
        )
        tiny = torch.finfo(dtype).smallest_normal
        small = (tiny * torch.linspace(-0.9, 0.9, 64)[None]).to(dtype).to(device.torch_name)
        y = torch.empty_like(small)
        launchers.run(op, [small], [y], device.stream())
        difference = (y.double() - small.double() / 2).abs().max()
        yield f"{op.label} of subnormal values in {dtype}", bool(difference <= tiny * 2.0**-6)


def check_plugins(
    harness: Harness, library: Path, device: Device, shapes: Sequence[tuple[int, ...]]
) -> Findings:
    """Every plugin through TensorRT's interfaces, with enqueue inside a CUDA graph."""
    found = Findings()
    for op, dtype_name, shape in itertools.product(OPS, DTYPES, shapes):
        dtype = DTYPES[dtype_name]
        rows, width = int(torch.Size(shape[:-1]).numel()), shape[-1]
        axes = tuple(range(len(shape) - 1))
        specs = [TensorSpec(dtype_name, shape, axes)] * op.activations
        specs += [TensorSpec(dtype_name, (width,))] * op.vectors
        plugin = harness.open(library, op.plugin, op.attributes, specs, op.outputs)
        buffers = draw(op, rows, width, dtype, device)
        outputs = [torch.empty_like(buffers[0]) for _ in range(op.outputs)]

        enqueue = partial(_enqueue, plugin, buffers, outputs, device)
        replay = device.capture(enqueue)
        # New data after the capture: a graph has to read it, and outputs forget what they held.
        for turn in range(2):
            values = draw(op, rows, width, dtype, device)
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
            for output in outputs:
                output.fill_(float("nan"))
            replay()
            device.synchronize()
            compare(f"{op.plugin} {dtype_name} {shape} turn {turn}", op, values, outputs, found)
        plugin.close()
    return found


def _enqueue(plugin: Plugin, inputs: list[Tensor], outputs: list[Tensor], device: Device) -> None:
    plugin.enqueue(
        [tensor.data_ptr() for tensor in inputs],
        [tensor.data_ptr() for tensor in outputs],
        device.stream(),
    )

"""Prefill on a GPU, the 120M shape in fp16: engines against PyTorch and ONNX Runtime, in one table.

Every contestant has its ids on the GPU and leaves its logits there; CUDA events time it, and rounds
alternate. The floor is the time that the weights' matrix products take at the GPU's measured
matmul speed. Contestants that cannot run here are listed with the reason.

    python benchmarks/engine_gpu.py [--rounds 20] [--workdir DIR] [--dry-run]

`--dry-run` goes through the whole script on the CPU, with a small model and what runs there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from andrea_export.engine import EngineOptions, build_engine
from andrea_export.errors import AndreaExportError
from andrea_export.graph import GraphFolder, GraphOptions, export_graph
from andrea_model import Checkpoint, load_model, random_checkpoint
from andrea_model.parameters import parameter_shapes

SHAPES = ((1, 512), (8, 512))
WARM_UP = 3
MATMUL_SIZE = 4096

Contestant = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workdir", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with a small model")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("torch sees no GPU here; --dry-run tries the script on the CPU", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(dir=options.workdir) as workdir:
        bench = Bench(Path(workdir), dry_run=options.dry_run)
        result = bench.run(2 if options.dry_run else options.rounds)
    print(json.dumps(result, indent=2))
    print_table(result)
    return 0


class Bench:
    """One model, exported once, and everything that can run it."""

    def __init__(self, workdir: Path, *, dry_run: bool) -> None:
        self.workdir, self.dry_run = workdir, dry_run
        self.device = "cpu" if dry_run else "cuda"
        self.shapes = ((1, 16), (2, 16)) if dry_run else SHAPES
        self.dtype = "fp32" if dry_run else "fp16"
        self.checkpoint: Checkpoint = random_checkpoint(
            "andrea-nano" if dry_run else "andrea-120m", 0
        )
        options = GraphOptions(dtype=self.dtype)  # type: ignore[arg-type]
        self.graph: GraphFolder = export_graph(self.checkpoint, workdir / "graph", options)

    def run(self, rounds: int) -> dict[str, Any]:
        rows = []
        for shape in self.shapes:
            torch.manual_seed(0)
            ids = torch.randint(0, self.checkpoint.config.vocab_size, shape, device=self.device)
            ready: dict[str, Contestant] = {}
            absent: dict[str, str] = {}
            for name, prepare in self.contestants().items():
                try:
                    ready[name] = prepare(ids)
                except (AndreaExportError, ImportError, RuntimeError) as error:
                    absent[name] = str(error).splitlines()[0]
            rows.append({"shape": list(shape), **self.measure(ready, rounds), "absent": absent})
        return {
            "device": "CPU" if self.dry_run else torch.cuda.get_device_name(),
            "dtype": self.dtype,
            "rounds": rounds,
            "floor_ms": [round(self.floor_seconds(shape) * 1e3, 3) for shape in self.shapes],
            "rows": rows,
        }

    def contestants(self) -> dict[str, Callable[[torch.Tensor], Contestant]]:
        return {
            "torch eager": self.eager,
            "torch.compile": self.compiled,
            "onnxruntime": self.onnxruntime,
            "tensorrt native": lambda ids: self.engine(ids, "tensorrt", "off"),
            "tensorrt plugins": lambda ids: self.engine(ids, "tensorrt", "on"),
            "tensorrt-rtx": lambda ids: self.engine(ids, "rtx", "off"),
        }

    def eager(self, ids: torch.Tensor) -> Contestant:
        model = self.model()

        def run() -> object:
            with torch.inference_mode():
                return model(ids)

        return run

    def compiled(self, ids: torch.Tensor) -> Contestant:
        if self.dry_run:
            raise RuntimeError("compiling takes minutes on a CPU")
        model = torch.compile(self.model(), mode="max-autotune")

        def run() -> object:
            with torch.inference_mode():
                return model(ids)

        return run

    def model(self) -> torch.nn.Module:
        dtype = torch.float32 if self.dry_run else torch.float16
        return load_model(self.checkpoint, dtype).to(self.device)

    def onnxruntime(self, ids: torch.Tensor) -> Contestant:
        from andrea_export.session.runtime import load_graph

        runtime = load_graph(self.graph, provider="cpu" if self.dry_run else "cuda")
        logits = torch.empty(
            (*ids.shape, self.checkpoint.config.vocab_size), dtype=torch.float32, device=self.device
        )
        binding = runtime.io_binding()
        binding.bind_input("input_ids", self.device, 0, np.int64, list(ids.shape), ids.data_ptr())
        binding.bind_output(
            "logits", self.device, 0, np.float32, list(logits.shape), logits.data_ptr()
        )

        def run() -> object:
            runtime.run_with_iobinding(binding)
            return ids, logits  # the binding does not keep them alive

        return run

    def engine(self, ids: torch.Tensor, flavor: str, plugins: str) -> Contestant:
        from andrea_export.session.trt_bindings import plan
        from andrea_export.session.trt_runner import EngineRunner

        rows, width = ids.shape
        output = self.workdir / f"{flavor}-{plugins}-{rows}x{width}"
        options = EngineOptions(
            flavor=flavor,
            plugins=plugins,  # type: ignore[arg-type]
            batch=str(rows),
            sequence=str(width),
        )
        runner = EngineRunner(build_engine(self.graph.path, output, options))
        call = runner.bind(plan(runner.specs, runner.profiles, rows, width), {})
        return lambda: call.run({"input_ids": ids})

    def measure(self, contestants: dict[str, Contestant], rounds: int) -> dict[str, Any]:
        for run in contestants.values():
            for _ in range(WARM_UP):
                run()
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, run in contestants.items():
                times[name].append(self.seconds(run))
        medians = {name: statistics.median(found) for name, found in times.items()}
        eager = medians["torch eager"]
        return {
            "ms": {name: round(value * 1e3, 3) for name, value in medians.items()},
            "times_faster_than_eager": {
                name: round(eager / value, 2) for name, value in medians.items()
            },
        }

    def seconds(self, run: Contestant) -> float:
        if self.dry_run:
            started = time.perf_counter()
            run()
            return time.perf_counter() - started
        before, after = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        torch.cuda.synchronize()
        before.record()
        run()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3

    def floor_seconds(self, shape: tuple[int, int]) -> float:
        """2 operations per weight of a matrix and token, at the speed of a large matmul here."""
        shapes = parameter_shapes(self.checkpoint.config)
        weights = sum(
            size[0] * size[1]
            for name, size in shapes.items()
            if len(size) == 2 and name != "wpe.weight"
        )
        return 2 * weights * shape[0] * shape[1] / self.matmul_speed()

    def matmul_speed(self) -> float:
        """Operations per second of a square matmul in the model's dtype."""
        size = 512 if self.dry_run else MATMUL_SIZE
        dtype = torch.float32 if self.dry_run else torch.float16
        a = torch.randn(size, size, device=self.device, dtype=dtype)
        times = [self.seconds(lambda: a @ a) for _ in range(10)]
        return float(2 * size**3 / statistics.median(times))


def print_table(result: dict[str, Any]) -> None:
    """The same as a table, for people, on stderr."""
    for row, floor in zip(result["rows"], result["floor_ms"], strict=True):
        rows, width = row["shape"]
        print(f"\nprefill {rows}x{width}, {result['dtype']}, {result['device']}", file=sys.stderr)
        print(f"  {'floor':18s} {floor:9.3f} ms", file=sys.stderr)
        for name, value in row["ms"].items():
            ratio = row["times_faster_than_eager"][name]
            print(f"  {name:18s} {value:9.3f} ms  {ratio:5.2f}x eager", file=sys.stderr)
        for name, reason in row["absent"].items():
            print(f"  {name:18s} absent: {reason}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

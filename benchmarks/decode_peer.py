"""Generating with a GPT-2-shaped random model (768/12/12, vocabulary 8449), fp32, two threads.

Ours (an exported folder with a cache, ONNX Runtime) against optimum-onnx (ONNX Runtime with IO
binding) and transformers (torch). All start from the same Hugging Face folder. Each runs in a
process of its own that lives as long as the benchmark; in every round each takes every workload in
turn, so that drift of the machine hits all alike. A ratio is the median over the rounds of the
ratio within a round. Prints JSON.

A decode step reads all weights and the cache. `ceilings` says how many times faster than optimum
any float32 decoder could be here: optimum's time over the bytes that a step must read, at the
best rate of reading that was measured in the same round. A goal above it is out of reach. Ratios
follow that rate: where this was written it was 51 GB/s in some minutes and 82 in others.

    python benchmarks/decode_peer.py [--rounds 5] [--workdir DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export_peer import MAKE_MODEL
from peers import machine, measure, peers_python

from andrea_export.bench.floors import work_of
from andrea_export.bench.pipe import Child as Meter
from andrea_export.bench.workloads import Workload as Cell
from andrea_model.config import AndreaConfig

THREADS = 2
PROMPT = "What is a model"  # 15 letters and BOS: 16 tokens
NAMES = ("ours", "optimum", "transformers")
PEER_EXPORT = """
import sys
from optimum.exporters.onnx import main_export
main_export(sys.argv[1], sys.argv[2], task="text-generation-with-past", do_validation=False)
"""


@dataclass(frozen=True)
class Workload:
    """A prompt of `context` random tokens for each of `batch` rows, then `tokens` greedy steps."""

    name: str
    batch: int
    context: int
    tokens: int

    @property
    def command(self) -> dict[str, int]:
        return {"batch": self.batch, "context": self.context, "tokens": self.tokens}

    def least_bytes(self, config: AndreaConfig) -> float:
        """What one step must move, on average over the steps."""
        cell = Cell("decode", self.batch, self.context + self.tokens, self.tokens)
        return work_of(config, "fp32", cell).nbytes


WORKLOADS = (
    Workload("decode_64", 1, 64, 24),
    Workload("decode_896", 1, 896, 16),
    Workload("prefill_512", 1, 512, 0),
    Workload("decode_batch_8", 8, 64, 12),
)
WARM_UP = Workload("warm_up", 1, 8, 4)
BOUND_BY_MEMORY = ("decode_64", "decode_896")

Timings = dict[str, dict[str, list[float]]]  # workload → contestant → seconds, one a round


@dataclass(frozen=True)
class Goal:
    """A figure to reach: `measure` gives it, `at_least` or else `at_most` bounds it."""

    limit: float
    figure: Callable[[Timings], float]
    at_least: bool = True


def against(peer: str, workload: str) -> Callable[[Timings], float]:
    """How many times faster ours is."""

    def figure(timings: Timings) -> float:
        pairs = zip(timings[workload][peer], timings[workload]["ours"], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    return figure


def own_speed_kept(timings: Timings) -> float:
    """Speed of ours at context 896 as a share of that at 64."""
    pairs = zip(timings["decode_64"]["ours"], timings["decode_896"]["ours"], strict=True)
    return statistics.median(short / long for short, long in pairs)


GOALS = {
    "decode_64_vs_optimum": Goal(1.4, against("optimum", "decode_64")),
    "decode_896_vs_optimum": Goal(2.0, against("optimum", "decode_896")),
    "own_decode_896_vs_64": Goal(0.7, own_speed_kept),
    "prefill_512_vs_optimum": Goal(1.1, against("optimum", "prefill_512")),
    "decode_batch_8_vs_optimum": Goal(1.4, against("optimum", "decode_batch_8")),
    "overhead_ms_per_token": Goal(
        0.3, lambda t: statistics.median(t["overhead"]["ours"]) * 1e3, at_least=False
    ),
    "peak_rss_vs_optimum": Goal(
        0.7, lambda t: t["peak_rss_mb"]["ours"][-1] / t["peak_rss_mb"]["optimum"][-1],
        at_least=False,
    ),
    "cold_first_token_seconds": Goal(
        3.0, lambda t: statistics.median(t["cold_first_token"]["ours"]), at_least=False
    ),
}  # fmt: skip


class Child:
    """A contestant's process: one line in, one line out."""

    def __init__(self, python: str | Path, name: str, folder: Path) -> None:
        script = Path(__file__).with_name("decode_contestants.py")
        env = os.environ | {"OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
        self.name = name
        self.process = subprocess.Popen(
            [str(python), str(script), name, str(folder), str(THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def play(self, workload: Workload) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(workload.command), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()} in {workload}")
        return json.loads(answer)  # type: ignore[no-any-return]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workdir", type=Path, help="keep the models there for the next run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        workdir = options.workdir or Path(temporary)
        print(json.dumps(compare(prepare(workdir), options.rounds), indent=2))


def prepare(workdir: Path) -> dict[str, Path]:
    """The same weights for all: a Hugging Face folder, and what each exporter makes of it."""
    python = peers_python()
    folders = {
        "transformers": workdir / "gpt2",
        "ours": workdir / "ours",
        "optimum": workdir / "optimum",
    }
    source = folders["transformers"]
    commands: dict[str, list[str | Path]] = {
        "transformers": [python, "-c", MAKE_MODEL, source],
        "ours": [
            sys.executable, "-m", "andrea_export", "onnx", source, "-o", folders["ours"],
            "--kv-cache", "--logits", "last", "--no-check",
        ],
        "optimum": [python, "-c", PEER_EXPORT, source, folders["optimum"]],
    }  # fmt: skip
    for name, command in commands.items():
        if not folders[name].exists():
            measure(command, threads=THREADS)
    # Bytes, BOS and segments that no English prompt has: a letter is a token.
    segments = [chr(0x4E00 + number) for number in range(8449 - 257)]
    (workdir / "segments.json").write_text(json.dumps(segments))
    return folders | {"tokenizer": workdir / "segments.json"}


def ceilings(timings: Timings, config: AndreaConfig, rates: list[float]) -> dict[str, Any]:
    """Of the decode workloads, in milliseconds and as a ratio against optimum."""
    result: dict[str, Any] = {"read_gb_per_second": [round(rate / 1e9, 1) for rate in rates]}
    for workload in WORKLOADS:
        if workload.name in BOUND_BY_MEMORY:
            floors = [workload.least_bytes(config) / rate for rate in rates]
            theirs = timings[workload.name]["optimum"]
            most = statistics.median(t / f for t, f in zip(theirs, floors, strict=True))
            result[workload.name] = {
                "floor_ms": round(statistics.median(floors) * 1e3, 3),
                "vs_optimum": round(most, 3),
            }
    return result


def compare(paths: dict[str, Path], rounds: int) -> dict[str, Any]:
    config = AndreaConfig.from_file(paths["ours"] / "config.json")
    weight_bytes = (paths["ours"] / "model.onnx.data").stat().st_size
    rates: list[float] = []
    timings: Timings = {w.name: {name: [] for name in NAMES} for w in WORKLOADS}
    timings |= {
        "overhead": {name: [] for name in NAMES},
        "peak_rss_mb": {name: [] for name in NAMES},
        "cold_first_token": {"ours": [cold_first_token(paths) for _ in range(rounds)]},
    }
    python = {"ours": sys.executable, "optimum": peers_python(), "transformers": peers_python()}
    children = [Child(python[name], name, paths[name]) for name in NAMES]
    meter = Meter("andrea_export.bench.meter", "the machine's meter")
    same_tokens = True
    try:
        for child in children:
            child.play(WARM_UP)
        for _ in range(rounds):
            rate = meter.ask("read_rate", device="cpu", nbytes=weight_bytes)
            rates.append(rate["bytes_per_second"])
            for workload in WORKLOADS:
                answers = {child.name: child.play(workload) for child in children}
                same_tokens &= all(a["ids"] == answers["ours"]["ids"] for a in answers.values())
                for name, answer in answers.items():
                    record(timings, workload, name, answer)
    finally:
        for child in (*children, meter):
            child.close()
    figures = {name: goal.figure(timings) for name, goal in GOALS.items()}
    return {
        "machine": machine(),
        "rounds": rounds,
        "threads": THREADS,
        "same_tokens": same_tokens,
        "medians": medians(timings),
        "ceilings": ceilings(timings, config, rates),
        "figures": {name: round(figure, 3) for name, figure in figures.items()},
        "goals": {name: goal.limit for name, goal in GOALS.items()},
        "reached": {
            name: (figures[name] >= goal.limit) if goal.at_least else (figures[name] <= goal.limit)
            for name, goal in GOALS.items()
        },
    }


def record(timings: Timings, workload: Workload, name: str, answer: dict[str, Any]) -> None:
    steps, inside = answer["step_seconds"], answer["runtime_seconds"]
    timings[workload.name][name].append(
        statistics.median(steps) if steps else answer["first_seconds"]
    )
    if workload.name == "decode_64" and inside is not None:
        outside = [step - run for step, run in zip(steps, inside, strict=True)]
        timings["overhead"][name].append(statistics.median(outside))
    timings["peak_rss_mb"][name].append(answer["peak_rss_mb"])


def medians(timings: Timings) -> dict[str, dict[str, float]]:
    """Milliseconds of one step, and for a prefill of the whole; megabytes; seconds."""
    units = {"peak_rss_mb": ("", 1.0), "cold_first_token": ("_seconds", 1.0)}
    result = {}
    for key, found in timings.items():
        suffix, scale = units.get(key, ("_ms", 1e3))
        result[key + suffix] = {
            name: round(statistics.median(values) * scale, 3)
            for name, values in found.items()
            if values
        }
    return result


def cold_first_token(paths: dict[str, Path]) -> float:
    """Seconds from the start of `andrea-export generate` to the first byte that it prints."""
    command = [
        sys.executable, "-m", "andrea_export", "generate", str(paths["ours"]),
        "--prompt", PROMPT, "--max-new-tokens", "8",
        "--tokenizer", str(paths["tokenizer"]),
    ]  # fmt: skip
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.stdout.read()
        errors = process.stderr.read().decode()
    if process.returncode:
        raise RuntimeError(f"generate ended with {process.returncode}:\n{errors}")
    return seconds


if __name__ == "__main__":
    main()

"""Building an engine of the 120M shape: `andrea-export trt` and a bare script, side by side.

The bare script parses the same file, builds it with the same profile and writes the plan, and does
nothing else: no sidecar, no hashes, no checks, no process of its own. Rounds alternate. Memory is
that of a command's whole process tree, sampled. Prints JSON: medians, and ours as a ratio.

    python benchmarks/engine_build.py [--rounds 5] [--dtype fp16] [--workdir DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from peers import machine

CAPABILITY = "8.9"
CONTEXT = 1024
BARE = f"""
import sys
import tensorrt_rtx as trt
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network(0)
parser = trt.OnnxParser(network, logger)
assert parser.parse_from_file(sys.argv[1])
config = builder.create_builder_config()
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM{CAPABILITY.replace(".", "")}, 0)
profile = builder.create_optimization_profile()
profile.set_shape("input_ids", (1, 1), (1, 128), (8, {CONTEXT}))
config.add_optimization_profile(profile)
plan = builder.build_serialized_network(network, config)
with open(sys.argv[2], "wb") as file:
    file.write(plan)
"""
# At most so many seconds, and so much more of either than the bare script takes.
REACH_SECONDS, REACH_RATIO = 6.0, 1.1
SAMPLE_SECONDS = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--workdir", type=Path, help="where to work (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.workdir) as workdir:
        print(json.dumps(compare(Path(workdir), options.rounds, options.dtype), indent=2))


def compare(workdir: Path, rounds: int, dtype: str) -> dict[str, object]:
    graph, engine, plan = workdir / "graph", workdir / "engine", workdir / "plan"
    export = ["onnx", "andrea-120m", "--random-weights", "0", "--dtype", dtype, "--no-check"]
    ours = [sys.executable, "-m", "andrea_export"]
    subprocess.run([*ours, *export, "-o", graph], check=True, capture_output=True)
    commands: dict[str, list[str | Path]] = {
        "bare": [sys.executable, "-c", BARE, graph / "model.onnx", plan],
        "ours": [
            *ours, "trt", graph, "-o", engine, "--flavor", "rtx",
            "--compute-capability", CAPABILITY,
        ],
    }  # fmt: skip
    runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            shutil.rmtree(engine, ignore_errors=True)
            plan.unlink(missing_ok=True)
            found = measure(command)
            if number:  # the first round warms the disk's cache
                runs[name].append(found)
    keys = ("seconds", "cpu_seconds", "peak_rss_mb")
    medians = {
        name: {
            key: round(statistics.median(values), 3)
            for key, values in zip(keys, zip(*found, strict=True), strict=True)
        }
        for name, found in runs.items()
    }
    # Pairs of neighbours: what else the machine does falls on both.
    ratios = {
        key: round(
            statistics.median(
                a[index] / b[index] for a, b in zip(runs["ours"], runs["bare"], strict=True)
            ),
            3,
        )
        for index, key in enumerate(keys)
    }
    return {
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "dtype": dtype,
        "rounds": rounds,
        **medians,
        "ratios": ratios,
        "reached": {
            "seconds": medians["ours"]["seconds"] <= REACH_SECONDS,
            "seconds_ratio": ratios["seconds"] <= REACH_RATIO,
            "peak_rss_ratio": ratios["peak_rss_mb"] <= REACH_RATIO,
        },
    }


def measure(command: list[str | Path]) -> tuple[float, float, float]:
    """Seconds, CPU seconds, and peak megabytes (10^6) of a command and all its children."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peak = 0.0
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_SECONDS):
            peak = max(peak, tree_rss_mb(process.pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    done.set()
    sampler.join()
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{command} failed: {errors.decode(errors='replace')[-500:]}")
    return seconds, usage.ru_utime + usage.ru_stime, peak


def tree_rss_mb(pid: int) -> float:
    """Resident memory of a process and its children, in 10^6 bytes."""
    try:
        status = Path(f"/proc/{pid}/statm").read_text().split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = int(status[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return own + sum(tree_rss_mb(int(child)) for child in children)


if __name__ == "__main__":
    main()

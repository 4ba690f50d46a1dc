"""Decoding one token at a time on a GPU: 768/12/12, vocabulary 8449, fp16, batch 1.

A TensorRT engine with native layers, one with our plugins, torch eager, and torch.compile with
CUDA graphs. The greedy choice stays on the GPU and feeds the next step: nothing waits for the host
within a measurement. Contestants alternate in rounds, each at every context. The floor is one read
of the weights at the rate of a device-to-device copy, measured in the same run. Prints JSON.

    python benchmarks/decode_gpu.py [--rounds 5] [--tokens 100] [--only NAME,...] [--dry-run]

Needs torch with CUDA; the engines also need full TensorRT, the plugins `andrea-export plugins
build`. What is missing is named and left out. --dry-run runs a tiny model on the CPU instead, with
the engines' calls played by torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch
from decode_gpu_models import CONTESTANTS, WARM_UP_STEPS, Decoder, Plan

from andrea_export.errors import AndreaExportError
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.presets import preset

TOKENS_PER_SECOND_GOAL = 6000  # on an H200
PLUGIN_GOAL = 0.95  # of the native engine
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 24}
DRY_CONFIG = AndreaConfig(97, 256, 32, 2, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--only", default=",".join(CONTESTANTS), metavar="NAME,...")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(CONTESTANTS):
        parser.error(f"no contestant {unknown.pop()!r}; there are: {', '.join(CONTESTANTS)}")
    if options.dry_run:
        drawn = random_checkpoint("andrea-nano", 0, config=DRY_CONFIG)
        plan = Plan("cpu", torch.float32, drawn, (64, 200), min(options.tokens, 8), 2)
    elif torch.cuda.is_available():
        drawn = random_checkpoint("andrea-120m", 0, config=preset("andrea-120m"))
        plan = Plan("cuda", torch.float16, drawn, (64, 896), options.tokens, options.rounds)
    else:
        print("decode_gpu: torch sees no GPU here; --dry-run needs none", file=sys.stderr)
        return 2
    print(json.dumps(compare(plan, names), indent=2))
    return 0


def compare(plan: Plan, names: list[str]) -> dict[str, Any]:
    decoders, missing = open_all(plan, names)
    seconds: dict[tuple[str, int], list[float]] = {
        (name, context): [] for name in decoders for context in plan.contexts
    }
    copies = []
    for _ in range(plan.rounds):
        copies.append(copy_rate(plan.device))
        for (name, context), found in seconds.items():
            found.append(per_token(plan, decoders[name], context))
    copy = statistics.median(copies)
    floor = plan.weight_bytes / copy
    rows = [
        {
            "contestant": name,
            "context": context,
            "ms_per_token": statistics.median(found) * 1e3,
            "tokens_per_second": 1 / statistics.median(found),
            "percent_of_floor": 100 * floor / statistics.median(found),
        }
        for (name, context), found in seconds.items()
    ]
    return {
        "device": torch.cuda.get_device_name() if plan.device == "cuda" else "cpu (dry run)",
        "torch": torch.__version__,
        "rounds": plan.rounds,
        "tokens": plan.tokens,
        "weight_bytes": plan.weight_bytes,
        "copy_gb_per_second": copy / 1e9,
        "floor_ms_per_token": floor * 1e3,
        "rows": rows,
        "missing": missing,
        **goals(rows, plan.contexts[0]),
    }


def open_all(plan: Plan, names: list[str]) -> tuple[dict[str, Decoder], dict[str, str]]:
    """Those that can run here, and why the others cannot."""
    decoders, missing = {}, {}
    for name in names:
        try:
            decoders[name] = CONTESTANTS[name](plan)
            per_token(plan, decoders[name], plan.contexts[0])  # builds and captures what is lazy
        except (AndreaExportError, ImportError, RuntimeError) as error:
            decoders.pop(name, None)
            missing[name] = str(error).strip().splitlines()[0]
    return decoders, missing


def per_token(plan: Plan, decoder: Decoder, context: int) -> float:
    """Seconds a token, over the tokens that follow `context` others."""
    decoder.start(context)
    for _ in range(WARM_UP_STEPS):
        decoder.step()
    decoder.start(context)
    wait(plan.device)
    started = time.perf_counter()
    for _ in range(plan.tokens):
        decoder.step()
    wait(plan.device)
    return (time.perf_counter() - started) / plan.tokens


def copy_rate(device: str) -> float:
    """Bytes/s of a device-to-device copy, reads and writes counted."""
    source = torch.ones(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(6):
        wait(device)
        started = time.perf_counter()
        target.copy_(source)
        wait(device)
        times.append(time.perf_counter() - started)
    return 2 * source.nbytes / min(times)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def goals(rows: list[dict[str, Any]], context: int) -> dict[str, Any]:
    rates = {
        row["contestant"]: row["tokens_per_second"] for row in rows if row["context"] == context
    }
    figures: dict[str, float] = {}
    engines = [rates[name] for name in ("native_engine", "plugin_engine") if name in rates]
    if engines:
        figures["best_engine_tokens_per_second"] = max(engines)
    if len(engines) == 2:
        figures["plugin_vs_native"] = rates["plugin_engine"] / rates["native_engine"]
    limits = {
        "best_engine_tokens_per_second": TOKENS_PER_SECOND_GOAL,
        "plugin_vs_native": PLUGIN_GOAL,
    }
    reached = {name: figure >= limits[name] for name, figure in figures.items()}
    return {"figures": figures, "goals": limits, "reached": reached}


if __name__ == "__main__":
    sys.exit(main())

"""Exporting a GPT-2-shaped random model (768/12/12, vocabulary 8449): ours and optimum-onnx's.

Both read the same Hugging Face folder and write fp32 ONNX without a cache, neither checks its
result, and their rounds alternate. Prints JSON: the medians, and ours as a ratio of the peer's.

    python benchmarks/export_peer.py [--rounds 3] [--workdir DIR]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from peers import Measured, machine, measure, peers_python

MAKE_MODEL = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
config = GPT2Config(vocab_size=8449, n_positions=1024, n_embd=768, n_layer=12, n_head=12,
                    bos_token_id=256, eos_token_id=256)
model = GPT2LMHeadModel(config)
model.save_pretrained(sys.argv[1])
print(sum(p.numel() for p in model.parameters()) * 4)
"""
PEER_EXPORT = """
import sys
from optimum.exporters.onnx import main_export
main_export(sys.argv[1], sys.argv[2], task="text-generation", do_validation=False)
"""
REACH = {"seconds": 0.6, "peak_rss_mb": 0.6}
REACH_BYTES = 1.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workdir", type=Path, help="where to work (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.workdir) as workdir:
        print(json.dumps(compare(Path(workdir), options.rounds), indent=2))


def compare(workdir: Path, rounds: int) -> dict[str, object]:
    python = peers_python()
    model = workdir / "gpt2"
    weight_bytes = int(measure([python, "-c", MAKE_MODEL, model]).output.split()[-1])
    outputs = {"ours": workdir / "ours", "optimum": workdir / "optimum"}
    commands: dict[str, list[str | Path]] = {
        "ours": [
            sys.executable, "-m", "andrea_export", "onnx", model, "-o", outputs["ours"],
            "--no-check",
        ],
        "optimum": [python, "-c", PEER_EXPORT, model, outputs["optimum"]],
    }  # fmt: skip
    runs: dict[str, list[Measured]] = {name: [] for name in commands}
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        for name, command in commands.items():
            shutil.rmtree(outputs[name], ignore_errors=True)
            runs[name].append(measure(command))
            sizes[name] = sum(path.stat().st_size for path in outputs[name].glob("*.onnx*"))
    medians = {
        name: {
            "seconds": round(statistics.median(run.seconds for run in found), 2),
            "peak_rss_mb": round(statistics.median(run.peak_rss_mb for run in found)),
            "bytes": sizes[name],
        }
        for name, found in runs.items()
    }
    ratios = {
        key: round(medians["ours"][key] / medians["optimum"][key], 3)
        for key in ("seconds", "peak_rss_mb", "bytes")
    }
    of_weights = round(sizes["ours"] / weight_bytes, 4)
    return {
        "machine": machine(),
        "rounds": rounds,
        "tied_weight_bytes": weight_bytes,
        **medians,
        "ratios": ratios,
        "bytes_per_tied_weight_byte": of_weights,
        "reached": {
            **{key: ratios[key] <= limit for key, limit in REACH.items()},
            "bytes": of_weights <= REACH_BYTES,
        },
    }


if __name__ == "__main__":
    main()

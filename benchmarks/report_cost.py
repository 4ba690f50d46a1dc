"""What a report costs beside the forward passes that it needs: seconds, and peak memory.

    python benchmarks/report_cost.py [--preset andrea-120m] [--windows 16] [--tokens 512] [--quick]

Wanted at the 120M shape, fp32, 16 windows of 512 tokens, two cores: in all at most 1.5 times the
forward passes (float64 included), and at most 3 GB. Random weights: speed does not know them.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from pathlib import Path

from andrea_export.graph import GraphOptions, export_graph
from andrea_export.report.candidates import CandidateSpec
from andrea_export.report.make import ReportOptions, make_report
from andrea_model import open_checkpoint, random_checkpoint

MOST_TIMES, MOST_GB = 1.5, 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="andrea-120m")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--quick", action="store_true", help="the demo checkpoint with --quick")
    arguments = parser.parse_args()
    if arguments.quick:
        checkpoint = open_checkpoint("andrea-nano")
        options = ReportOptions(quick=True)
    else:
        checkpoint = random_checkpoint(arguments.preset, 1)
        options = ReportOptions(windows=arguments.windows, tokens=arguments.tokens)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "candidate"
        export_graph(checkpoint, folder, GraphOptions(dtype=arguments.dtype))
        report = make_report(checkpoint, [CandidateSpec(str(folder))], options)
    timing = report.timing
    needed = timing["forward_seconds"] + timing["layer_seconds"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    result = {
        "status": report.status,
        **timing,
        "total / forward": round(timing["total_seconds"] / timing["forward_seconds"], 2),
        "total / (forward + layers)": round(timing["total_seconds"] / needed, 2),
        "peak GB": round(memory, 2),
        "wanted": {"total / forward": MOST_TIMES, "peak GB": MOST_GB},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

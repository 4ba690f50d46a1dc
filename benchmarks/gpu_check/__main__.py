"""The check from beginning to end: build, numbers, sanitizer, engines, their layers, speed."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from andrea_export.errors import AndreaExportError
from benchmarks.gpu_check.build import REPOSITORY, Built, build_all, prepare_headers

OUTPUT = REPOSITORY / "build" / "gpu-check"
PLUGIN_SHAPES = ((2, 3, 768), (5, 33), (1, 3072))
SANITIZER_TOOLS = ("memcheck", "racecheck")
SANITIZER_SECONDS = 35
# The whole check ends within four minutes: torch.compile, its slowest part, stops before.
COMPILE_UNTIL_SECONDS = 190


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        if options.prepare:
            print(f"TensorRT's headers are in {prepare_headers()}")
            return 0
        return check(options)
    except AndreaExportError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for results")
    parser.add_argument("--arch", default="native", help="as for andrea-export plugins build")
    parser.add_argument("--seed", type=int, help="the data of an earlier run again")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="on the CPU, as tests/plugins/test_gpu_check.py does with an nvcc of its own, which "
        "gives libraries for the host",
    )
    parser.add_argument("--prepare", action="store_true", help="only copy the headers to build/")
    return parser.parse_args(arguments)


def check(options: argparse.Namespace) -> int:
    started = time.monotonic()
    options.output.mkdir(parents=True, exist_ok=True)
    device = open_device(dry_run=options.dry_run)
    if device is None:
        print("gpu-check: torch sees no GPU here", file=sys.stderr)
        return 2
    report: dict[str, Any] = {"device": device.name, "seed": set_seed(options.seed)}
    say(f"{device.name}; seed {report['seed']}; building for {options.arch}")
    built = build_all(options.output, options.arch)
    say(f"built in {built.seconds:.0f} s: {built.library}")

    faults = check_numbers(built, device, report, dry_run=options.dry_run)
    faults += check_sanitizer(built, report, dry_run=options.dry_run)
    faults += check_engine_forms(built, device, report)
    faults += check_engine_layers(options.output, report, dry_run=options.dry_run)
    compile_seconds = COMPILE_UNTIL_SECONDS - (time.monotonic() - started)
    check_speed(built, device, report, compile_seconds, dry_run=options.dry_run)

    report["faults"] = faults
    report["seconds"] = round(time.monotonic() - started, 1)
    path = options.output / "gpu-check.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    for fault in faults:
        say(f"WRONG: {fault}")
    say(f"{len(faults)} faults; {report['seconds']} s; {path}")
    return 1 if faults else 0


def open_device(*, dry_run: bool) -> Any:
    import torch

    from benchmarks.gpu_check.device import CudaDevice, HostDevice

    if dry_run:
        return HostDevice()
    return CudaDevice() if torch.cuda.is_available() else None


def set_seed(seed: int | None) -> int:
    """Fresh data every time, and a number by which to have the same again."""
    import torch

    if seed is None:
        return torch.seed()
    torch.manual_seed(seed)
    return seed


def check_numbers(built: Built, device: Any, report: dict[str, Any], *, dry_run: bool) -> list[str]:
    from benchmarks.gpu_check.numerics import FULL, SMALL, check_launchers, check_plugins
    from benchmarks.gpu_check.ops import Launchers
    from benchmarks.gpu_check.v3_harness import Harness

    kernels = check_launchers(Launchers(str(built.library)), device, SMALL if dry_run else FULL)
    say(f"bare launchers: {kernels.checked} checks, {len(kernels.wrong)} wrong")
    harness = Harness(built.harness)
    plugins = check_plugins(harness, built.library, device, PLUGIN_SHAPES)
    say(f"plugins in a CUDA graph: {plugins.checked} checks, {len(plugins.wrong)} wrong")
    idle = check_plugins(harness, built.idle_library, device, PLUGIN_SHAPES[:1])
    is_seen = len(idle.wrong) == idle.checked
    say(f"an enqueue that does nothing: {'seen' if is_seen else 'NOT SEEN'}")
    report["checks"] = {"launchers": kernels.checked, "plugins": plugins.checked}
    faults = kernels.wrong[:20] + plugins.wrong[:20]
    return faults if is_seen else [*faults, "an enqueue that does nothing passes as right"]


def check_sanitizer(built: Built, report: dict[str, Any], *, dry_run: bool) -> list[str]:
    """memcheck and racecheck where there is compute-sanitizer; a dry run calls the script bare."""
    script = [sys.executable, "-m", "benchmarks.gpu_check.sanitized", str(built.library)]
    program = shutil.which("compute-sanitizer")
    results: dict[str, str] = {}
    if dry_run:
        runs = {"host": [*script, "--host"]}
    elif program is None:
        say("compute-sanitizer is not installed: not run")
        runs = {}
    else:
        runs = {
            tool: [program, "--tool", tool, "--error-exitcode", "9", *script]
            for tool in SANITIZER_TOOLS
        }
    faults = []
    for tool, command in runs.items():
        try:
            result = subprocess.run(
                command,
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=SANITIZER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            results[tool] = f"not finished in {SANITIZER_SECONDS} s"
        else:
            lines = (result.stdout + result.stderr).strip().splitlines() or [""]
            results[tool] = f"exit code {result.returncode}: {lines[-1]}"
            if result.returncode != 0:
                faults.append(f"{tool}: {' / '.join(lines[-5:])}")
        say(f"{tool}: {results[tool]}")
    report["sanitizer"] = results
    return faults


def check_engine_forms(built: Built, device: Any, report: dict[str, Any]) -> list[str]:
    from benchmarks.gpu_check.engines import check_engines, missing_for_engines

    missing = missing_for_engines()
    if missing is not None:
        say(f"engines: {missing}: not run")
        report["engines"] = missing
        return []
    found = check_engines(built.library, device)
    say(f"engines: {found.checked} checks, {len(found.wrong)} wrong")
    report["engines"] = found.checked
    return found.wrong


def check_engine_layers(output: Path, report: dict[str, Any], *, dry_run: bool) -> list[str]:
    """A dry run builds the engines; that no GPU runs them is no fault there."""
    from benchmarks.gpu_check.layers import check_layers, missing_for_layers

    missing = missing_for_layers(dry_run=dry_run)
    if missing is not None:
        say(f"layers of engines: {missing}: not run")
        report["layers"] = missing
        return []
    try:
        sights = check_layers(output / "layers", say, dry_run=dry_run)
    except AndreaExportError as error:
        say(f"layers of engines: {error}")
        report["layers"] = str(error)
        return [f"layers of engines: {error}"]
    report["layers"] = [sight.to_dict() for sight in sights]
    return [] if dry_run else [sight.fault for sight in sights if sight.fault is not None]


def check_speed(
    built: Built, device: Any, report: dict[str, Any], compile_seconds: float, *, dry_run: bool
) -> None:
    from benchmarks.gpu_check import timing
    from benchmarks.gpu_check.ops import Launchers

    plan = timing.DRY if dry_run else timing.FULL
    say(timing.HEADER)
    launchers = Launchers(str(built.library))
    results, copy = timing.measure(launchers, device, plan, compile_seconds, say)
    say(f"a device-to-device copy: {copy / 1e9:.0f} GB/s")
    found = timing.targets(results)
    for target in found:
        if not target.is_met:
            say(f"target missed: {target.what}: wanted {target.wanted}, got {target.seen}")
    say(f"targets (set for an H200): {sum(t.is_met for t in found)} of {len(found)} met")
    report["copy_gb_per_s"] = round(copy / 1e9, 1)
    report["measurements"] = [result.to_dict() for result in results]
    report["targets"] = [asdict(target) for target in found]


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

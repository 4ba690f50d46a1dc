"""What the benchmarks against peers share: the peers' own environment, and measured processes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
VENV = HERE / ".peers"
WARM_UP_SECONDS = 30
# optimum-onnx 0.1.0 asks for transformers below 4.58.
REQUIREMENTS = ("torch==2.13.0", "optimum-onnx[onnxruntime]==0.1.0", "transformers==4.57.6")


@dataclass(frozen=True)
class Measured:
    """One finished process: wall seconds, peak resident megabytes (10^6), what it printed."""

    seconds: float
    peak_rss_mb: float
    output: str


def peers_python() -> Path:
    """The interpreter of a virtual environment with the peers in it, made at the first call."""
    python = VENV / "bin" / "python"
    wanted = "\n".join(REQUIREMENTS)
    stamp = VENV / "installed"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"Installing the peers into {VENV} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        stamp.write_text(wanted)
    return python


def measure(command: list[str | Path], *, threads: int = 2) -> Measured:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed; the message ends with what it printed.
    """
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}:\n{output[-3000:]}")
    return Measured(seconds, usage.ru_maxrss * 1024 / 1e6, output)


def warm_up() -> None:
    """Keep every core busy for a while, so that the machine is in the state of one at work.

    One that has idled can be slow for long: where this was written, memory was read at 50 GB/s,
    and after 20-30 s of full load at 80, also while much less was going on.
    """
    spin = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    time.sleep(WARM_UP_SECONDS)
    for process in busy:
        process.kill()
        process.wait()


def machine() -> dict[str, str | int | None]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}

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

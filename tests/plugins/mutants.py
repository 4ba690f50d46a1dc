"""Faults put into the sources on purpose: the suite must fail on every one of them.

    python -m tests.plugins.mutants          make and run all
    python -m tests.plugins.mutants NAME     one of them

A mutant that survives is a hole in the tests. Only the changed folder is compiled again;
the four of IN_EVERY_RUN are part of `make test`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.plugins.host_library import REPOSITORY

__all__ = ["IN_EVERY_RUN", "MUTANTS", "Mutant", "fails_the_suite"]

KERNEL_TESTS = ("tests/plugins/test_kernels.py", "tests/plugins/test_kernel_values.py")
PLUGIN_TESTS = ("tests/plugins/test_plugins.py",)


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in the file, so that a mutant cannot silently stop being one."""

    name: str
    path: str
    old: str
    new: str
    suite: tuple[str, ...]


MUTANTS = (
    Mutant("dropped barrier", "kernels/team.cuh", "__syncthreads();", "", KERNEL_TESTS),
    Mutant(
        "dropped tail guard of a row",
        "kernels/row.cuh",
        "            if (pack < row_packs) {\n                packs[i] = load_pack",
        "            if (pack < row_packs + 1) {\n                packs[i] = load_pack",
        KERNEL_TESTS,
    ),
    Mutant(
        "dropped tail guard of gelu",
        "kernels/gelu.cu",
        "first < N && tail < count",
        "first < N",
        KERNEL_TESTS,
    ),
    Mutant("dropped tail of gelu", "kernels/gelu.cu", "if (N > 1 &&", "if (false &&", KERNEL_TESTS),
    Mutant(
        "gamma and beta swapped in the kernel",
        "kernels/layer_norm.cu",
        "affine.prefetch(team, gamma, beta, packs);",
        "affine.prefetch(team, beta, gamma, packs);",
        KERNEL_TESTS,
    ),
    Mutant(
        "gamma and beta swapped in the plugin",
        "trt/op.cpp",
        "andrea_layer_norm(call.dtype, call.inputs[0], call.inputs[1], call.inputs[2]",
        "andrea_layer_norm(call.dtype, call.inputs[0], call.inputs[2], call.inputs[1]",
        PLUGIN_TESTS,
    ),
    Mutant(
        "an enqueue that does nothing",
        "trt/plugin.cpp",
        "const andrea_status status = op_.launch(call, settings_);",
        "const andrea_status status = 0; (void)call;",
        PLUGIN_TESTS,
    ),
    Mutant(
        "an epsilon that is lost on the way into the engine",
        "trt/fields.cpp",
        "std::memcpy(&settings->epsilon, field.data, sizeof(float));",
        "settings->epsilon = 1e-5f;",
        PLUGIN_TESTS,
    ),
    Mutant(
        "a mean without its correction",
        "kernels/row.cuh",
        "- m.centre - m.shift)",
        "- m.centre)",
        KERNEL_TESTS,
    ),
    Mutant(
        "the residual stored where the sum belongs",
        "kernels/add_layer_norm.cu",
        "        slice.store(team, s + row * width, packs);\n",
        "        residual.store(team, s + row * width, packs);\n",
        KERNEL_TESTS,
    ),
    Mutant(
        "rows of the second launch that start over",
        "kernels/row_plan.cuh",
        "op.first_row + team.row();\n    if",
        "team.row();\n    if",
        KERNEL_TESTS,
    ),
    Mutant(
        "a fit with one digit wrong",
        "kernels/gelu_math.cuh",
        "1.34848177f",
        "1.34858177f",
        KERNEL_TESTS,
    ),
)

IN_EVERY_RUN = (
    "dropped barrier",
    "dropped tail guard of gelu",
    "gamma and beta swapped in the kernel",
    "an enqueue that does nothing",
)


def fails_the_suite(mutant: Mutant) -> tuple[bool, str]:
    """Whether a test fails (and not merely the compiler), with the run's last lines."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "plugins"
        shutil.copytree(REPOSITORY / "plugins", sources)
        path = sources / mutant.path
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name}: its text occurs {text.count(mutant.old)} times")
        path.write_text(text.replace(mutant.old, mutant.new))
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=line", *mutant.suite],
            cwd=REPOSITORY,
            env={**os.environ, "ANDREA_PLUGIN_SOURCES": str(sources)},
            capture_output=True,
            text=True,
            check=False,
        )
    lines = result.stdout.splitlines()
    failed = any(line.startswith("FAILED") for line in lines)
    return result.returncode == 1 and failed, "\n".join(lines[-4:])


def main(names: list[str]) -> int:
    survivors = 0
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        is_caught, output = fails_the_suite(mutant)
        survivors += not is_caught
        print(f"{'caught  ' if is_caught else 'SURVIVED'}  {mutant.name}", flush=True)
        if not is_caught:
            print(output)
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

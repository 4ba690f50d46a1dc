"""The building process: its progress, its death, its end; and the GPUs of the machine."""

import errno
import subprocess
import sys
import time

import pytest
from fake_driver import driver

from andrea_export.child_failure import as_event
from andrea_export.engine.child import Child
from andrea_export.engine.gpus import find_gpus
from andrea_export.engine.progress import BuildProgress
from andrea_export.errors import EngineError, InputError


def test_nested_phases_give_one_growing_fraction():
    progress = BuildProgress()
    progress.start("build", None, 4)
    progress.step("build", 0)
    assert progress.fraction == pytest.approx(0.25)
    progress.start("tactics", "build", 10)
    progress.step("tactics", 4)
    assert progress.fraction == pytest.approx(0.25 + 0.5 / 4)
    progress.finish("tactics")
    progress.step("build", 1)
    assert progress.fraction == pytest.approx(0.5)
    progress.finish("build")
    assert progress.fraction == 1.0


def test_fraction_never_shrinks_when_a_phase_starts_over():
    progress = BuildProgress()
    progress.start("a", None, 2)
    progress.step("a", 0)
    progress.start("a", None, 2)
    progress.step("a", -1)
    assert progress.fraction == pytest.approx(0.5)


# The child process


def child(code):
    return Child((sys.executable, "-c", "import json, os, sys, time\n" + code))


SEND = "events = os.fdopen(int(sys.argv[1]), 'w')\n"


def test_result_of_the_child_is_returned_and_its_progress_reported():
    seen = []
    code = (
        SEND + "sys.stdin.readline()\n"
        "print(json.dumps({'event': 'progress', 'fraction': 0.5}), file=events)\n"
        "print(json.dumps({'event': 'done', 'answer': 42}), file=events)"
    )
    result = child(code).run("{}", "x.onnx", lambda *pair: seen.append(pair))
    assert result == {"answer": 42}
    assert seen == [(500, 1000)]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os.abort()", r"x.onnx: TensorRT's process died while starting \(signal SIGABRT\)"),
        ("os.kill(os.getpid(), 9)", r"\(signal SIGKILL\); the system may be out of memory"),
        ("print('last words'); sys.exit(3)", r"\(exit code 3\): last words"),
        (
            SEND + 'print(\'{"event": "stage", "name": "parsing"}\', file=events, flush=True)'
            "\nos.abort()",
            r"died while parsing \(signal SIGABRT\)",
        ),
    ],
)
def test_death_of_the_child_is_told_with_its_signal_and_last_words(code, message):
    with pytest.raises(EngineError, match=message):
        child(code).run("{}", "x.onnx")


def test_error_of_the_child_keeps_its_class():
    code = SEND + (
        "print(json.dumps({'event': 'error', 'kind': 'InputError', 'message': 'm'}), file=events)"
    )
    with pytest.raises(InputError, match=r"^m$"):
        child(code).run("{}", "x.onnx")


def test_trouble_with_the_disk_keeps_its_number():
    event = {"event": "error", **as_event(OSError(errno.ENOSPC, "No space left on device"))}
    with pytest.raises(OSError, match="No space left") as caught:
        child(SEND + f"print(json.dumps({event!r}), file=events)").run("{}", "x.onnx")
    assert caught.value.errno == errno.ENOSPC


def test_child_stops_when_its_input_closes():
    waiting = child("sys.stdin.read()")
    waiting.close()
    assert waiting._process.returncode == 0


def test_child_stops_when_its_parent_is_killed(tmp_path):
    code = f"""
import os, sys
from andrea_export.engine.child import Child
inner = "import sys; sys.stdin.read(); open({str(tmp_path / "stopped")!r}, 'w').close()"
Child((sys.executable, "-c", inner))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    deadline = time.monotonic() + 10
    while not (tmp_path / "stopped").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "stopped").exists()


# The GPU


def test_gpus_are_read_from_the_driver(tmp_path):
    machine = find_gpus(driver(tmp_path, 0))
    assert machine.cuda == "13.1"
    assert [gpu.name for gpu in machine.gpus] == ["A", "B"]
    assert [gpu.compute_capability for gpu in machine.gpus] == ["8.6", "9.6"]
    assert machine.gpus[0].memory_bytes == 6_000_000_000


def test_driver_that_finds_no_gpu_is_told_apart_from_no_driver(tmp_path):
    machine = find_gpus(driver(tmp_path, 100))
    assert (machine.gpus, machine.cuda) == ((), "13.1")
    assert machine.problem == "the driver finds no usable GPU (CUDA error 100)"


def test_machine_without_a_driver_has_no_gpus(tmp_path):
    machine = find_gpus(str(tmp_path / "libcuda.so.1"))
    assert machine.gpus == ()
    assert machine.cuda is None
    assert "no NVIDIA driver" in machine.problem

"""Reports whose candidates kill the process that runs them: really, by a signal."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from andrea_export.black_box import BOX, DEATHS, BlackBox
from andrea_export.graph import GraphOptions, export_graph
from andrea_export.survival import outlive, runs_candidates
from andrea_model.checkpoint import save_folder

# Python reads this module when it starts. Code after `if` runs in the watched process alone.
DEADLY = """
import os, signal
if {box!r} in os.environ:
    from andrea_export.session import onnx_session
    from andrea_export.report import taps

    def deadly(owner, name):
        true = getattr(owner, name)
        def call(self, *arguments, **options):
            if self._graph.path.name == "bad":
                os.kill(os.getpid(), signal.{signal})
            return true(self, *arguments, **options)
        setattr(owner, name, call)

    {patch}
"""


@pytest.fixture
def place(tiny, tmp_path):
    """A checkpoint, and two exports of it."""
    save_folder(tiny, tmp_path / "ckpt")
    export_graph(tiny, tmp_path / "good")
    export_graph(tiny, tmp_path / "bad", GraphOptions(opset=23))
    return tmp_path


@pytest.fixture
def report(place):
    """Runs the command with code that kills it at some place; gives exit code, report, stderr."""

    def run(patch, number="SIGSEGV", *options):
        (place / "sitecustomize.py").write_text(DEADLY.format(box=BOX, signal=number, patch=patch))
        command = [sys.executable, "-m", "andrea_export", "report", "ckpt", "-o", "out", "--quick"]
        candidates = ["--candidate", "bad", "--candidate", "good"]
        done = subprocess.run(
            [*command, *candidates, *options],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        written = place / "out" / "report.json"
        return done, json.loads(written.read_text()) if written.is_file() else None

    return run


@pytest.mark.parametrize(
    ("number", "told"),
    [
        ("SIGSEGV", "its process died (SIGSEGV)"),
        ("SIGKILL", "its process died (SIGKILL); the system may be out of memory"),
    ],
)
def test_candidate_that_kills_its_process_is_a_row_and_the_others_are_judged(report, number, told):
    done, found = report('deadly(onnx_session.OnnxSession, "_forward")', number)
    assert done.returncode == 1, done.stderr
    bad, good = found["candidates"]
    assert bad["ways"][0]["error"] == told
    assert bad["ways"][0]["status"] == "out of tolerance"
    assert good["ways"][0]["status"] == "within tolerance"


def test_candidate_whose_layers_kill_the_process_keeps_its_figures(report):
    done, found = report('deadly(taps.OnnxTaps, "__call__")')
    assert done.returncode == 0, done.stderr
    bad, good = (each["ways"][0] for each in found["candidates"])
    assert bad["status"] == "within tolerance"
    assert bad["no_layers"] == "its process died (SIGSEGV)"
    assert good["no_layers"] is None


def test_command_lines_that_run_candidates_are_watched(monkeypatch):
    monkeypatch.delenv(BOX, raising=False)
    assert runs_candidates(["report", "ckpt", "--candidate", "x", "-o", "y"])
    assert runs_candidates(["--debug", "report", "make", "ckpt"])
    for others in ("report diff a b", "report", "report --help", "info report"):
        assert not runs_candidates(others.split())
    monkeypatch.setenv(BOX, "file")
    assert not runs_candidates(["report", "ckpt"])


def python(code):
    return (sys.executable, "-c", "import os, signal, sys, json; " + code)


def test_process_that_dies_outside_of_any_candidate_is_not_begun_again(tmp_path):
    log = tmp_path / "log"
    code = f"open({str(log)!r}, 'a').write('x'); os.kill(os.getpid(), signal.SIGSEGV)"
    assert outlive([], python(code)) == 128 + signal.SIGSEGV
    assert log.read_text() == "x"


def test_process_that_dies_twice_at_one_place_is_not_begun_again(tmp_path):
    log = tmp_path / "log"
    code = (
        f"open({str(log)!r}, 'a').write('x'); open(os.environ[{BOX!r}], 'w').write('1: a'); "
        "os.kill(os.getpid(), signal.SIGSEGV)"
    )
    assert outlive([], python(code)) == 128 + signal.SIGSEGV
    assert log.read_text() == "xx"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_code_of_the_process_is_the_commands(code):
    assert outlive([str(code)], python("sys.exit(int(sys.argv[1]))")) == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_ended_command_ends_its_process(tmp_path, number, code):
    inner = tmp_path / "inner.py"
    inner.write_text(
        "import os, time\nopen('pid.part', 'w').write(str(os.getpid()))\n"
        "os.rename('pid.part', 'pid')\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: os._exit(130)"
    )
    outer = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "from andrea_export.survival import outlive\n"
        f"sys.exit(outlive([], ({sys.executable!r}, {str(inner)!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", outer], cwd=tmp_path)
    pid = tmp_path / "pid"
    while not pid.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait() == code
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_black_box_names_a_place_while_something_runs_there(tmp_path):
    box = BlackBox(tmp_path / "box")
    with box.at("1: engine"):
        assert (tmp_path / "box").read_text() == "1: engine"
    assert (tmp_path / "box").read_text() == ""
    with pytest.raises(ZeroDivisionError), box.at("2: engine"):
        _ = 1 / 0
    assert (tmp_path / "box").read_text() == ""


def test_black_box_of_an_unwatched_process_writes_nothing(monkeypatch):
    monkeypatch.delenv(BOX, raising=False)
    with BlackBox.from_environment().at("1: engine"):
        pass
    monkeypatch.setenv(BOX, "file")
    monkeypatch.setenv(DEATHS, '{"1: engine": "died"}')
    assert BlackBox.from_environment().deaths == {"1: engine": "died"}

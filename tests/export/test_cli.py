"""The command line as a whole: what any command prints, refuses, and how it exits."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call, refused

from andrea_export.cli import run


def test_help_needs_none_of_the_heavy_packages():
    code = (
        "import sys; from andrea_export.cli import run; code = run(['--help']);"
        "heavy = {'torch', 'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'tokenizers', 'tensorrt'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("info", "onnx", "validate", "generate"):
        assert command in done.stdout


def test_module_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "andrea_export", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "0.1.0\n")


def test_debug_shows_the_traceback_and_exits_as_ever(capsys, ckpt, tmp_path):
    (tmp_path / "out").mkdir()
    code, out, err = call(capsys, "onnx", ckpt, "-o", tmp_path / "out", "--debug")
    assert (code, out) == (2, "")
    assert err.startswith("Traceback (most recent call last):")
    assert "out exists: choose another output" in err.splitlines()[-1]


def test_debug_alone_shows_the_help(capsys):
    code, out, err = call(capsys, "--debug")
    assert (code, err) == (2, "")
    assert "Usage: andrea-export" in out


def test_broken_pipe_is_not_a_model_out_of_tolerance(ckpt):
    command = f"{sys.executable} -m andrea_export info {ckpt} -v; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"( {command} ) | head -c 1 >/dev/null"], capture_output=True, text=True
    )
    assert done.stderr.strip() in {"141", "0"}  # 0: all was written before the reader went


def test_pipe_that_breaks_in_the_middle_of_a_long_output_is_none_either(tiny_folder):
    command = f"{sys.executable} -m andrea_export inspect {tiny_folder} --json; echo $? >&2"
    done = subprocess.run(
        # Unbuffered, so that a print meets the pipe that nobody reads any more.
        ["bash", "-c", f"( export PYTHONUNBUFFERED=1; sleep 0.2; {command} ) | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "141"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trt", "--foo"], "No such option: --foo"),
        (["trt"], "Missing argument 'SRC'"),
        (["trt", "a", "b", "-o", "c"], "unexpected extra argument"),
        (["nosuch"], "No such command 'nosuch'"),
        (["plugins", "nosuch"], "No such command 'nosuch'"),
        (["bench", "--rounds", "x", "andrea-nano"], "Invalid value for '--rounds'"),
        (["onnx", "andrea-nano", "-o"], "'-o' requires an argument"),
    ],
)
def test_mistyped_command_line_is_told_in_two_lines(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_command_alone_shows_its_help(capsys):
    code, out, err = call(capsys)
    assert (code, err) == (2, "")
    assert "Usage: andrea-export" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_output_that_cannot_be_written_is_told(ckpt):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "andrea_export", "info", str(ckpt)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "the output cannot be written: No space left on device" in done.stderr


def test_place_that_may_not_be_looked_into_is_no_fault_of_ours(monkeypatch, capsys):
    def closed(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("andrea_export.inspection.inspect_path", closed)
    assert run(["inspect", "closed/x.onnx"]) == 2
    assert capsys.readouterr().err == "andrea-export: closed/x.onnx: Permission denied\n"


@pytest.mark.parametrize("command", ["trt", "inspect", "validate", "generate"])
def test_path_that_is_too_long_is_no_fault_of_ours(command, capsys, tmp_path):
    options = {"trt": ["-o", str(tmp_path / "x")], "generate": ["--prompt", "x"]}
    options["validate"] = ["--candidate", "x"]
    assert run([command, "x" * 300, *options.get(command, [])]) == 2
    message = capsys.readouterr().err
    assert "File name too long" in message
    assert "fault" not in message


def test_validate_text_that_is_not_utf8_is_refused(capsys, ckpt, tmp_path):
    call(capsys, "onnx", ckpt, "-o", tmp_path / "out", "--no-check")
    bad = tmp_path / "latin.txt"
    bad.write_bytes(b"the caf\xe9 and the " * 50)
    message = refused(capsys, "validate", ckpt, "--candidate", tmp_path / "out", "--text", bad)
    assert "latin.txt" in message
    assert "UTF-8" in message
    assert "7" in message  # the byte's offset

"""The command: exit codes, the table, JSON alone on stdout, and errors in one line."""

import json
import shutil

import pytest

from andrea_export.cli import run
from andrea_export.graph import GraphOptions, export_graph
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.checkpoint import save_folder
from andrea_model.tokenizer import HarrisTokenizer

CONFIG = AndreaConfig(259, 24, 32, 2, 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint with a tokenizer, its export, and an export of other weights."""
    place = tmp_path_factory.mktemp("cli")
    HarrisTokenizer(["the ", "and "]).save(place / "tokenizer.json")
    for name, seed in (("ckpt", 1), ("other", 2)):
        checkpoint = random_checkpoint("andrea-nano", seed, config=CONFIG)
        save_folder(checkpoint, place / name)
        export_graph(checkpoint, place / f"{name}-onnx")
        export_graph(checkpoint, place / f"{name}-half", GraphOptions(dtype="fp16"))
    return place


@pytest.fixture
def command(capsys):
    """Runs the command and gives exit code, stdout and stderr."""

    def call(*arguments):
        code = run(["validate", *(str(each) for each in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def with_tokenizer(place):
    return ("--tokenizer", place / "tokenizer.json")


def test_an_honest_export_exits_0_and_says_so_last(place, command):
    code, out, _ = command(
        place / "ckpt", "--candidate", place / "ckpt-onnx", *with_tokenizer(place)
    )
    assert code == 0
    assert out.splitlines()[-1].startswith("Within tolerance: RMS error")
    for word in ("float64", "torch fp32", "candidate", "ratio", "limit", "perplexity", "KL mean"):
        assert word in out
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_other_weights_exit_1_and_name_figure_and_limit(place, command):
    code, out, _ = command(place / "ckpt", "--candidate", place / "other-onnx", "--windows", 1)
    assert code == 1
    assert "out: rms_error" in out
    assert "times the limit 1e-05" in out
    assert "exported from another checkpoint" in out
    assert "Out of tolerance" in out


def test_half_precision_labels_what_is_simulated_and_what_proves_nothing(place, command):
    code, out, _ = command(place / "ckpt", "--candidate", place / "ckpt-half", "--windows", 1, "-v")
    assert code == 0
    assert "simulated: every node's result rounded" in out
    assert "computed in float32 by this provider" in out
    assert "Rounding the weights to fp16 alone explains" in out
    assert "s in forward passes" in out


def test_json_is_alone_on_stdout(place, command):
    code, out, _ = command(
        place / "other", "--candidate", place / "ckpt-onnx", "--windows", 3, "--json"
    )
    result = json.loads(out)
    assert (code, result["exit_code"], result["status"]) == (1, 1, "out of tolerance")
    assert result["data"] == {
        "source": "random token ids: no tokenizer",
        "is_text": False,
        "windows": 3,
        "tokens_per_window": 24,
    }


def test_no_progress_bar_where_stderr_is_no_terminal(place, command):
    _, _, err = command(place / "ckpt", "--candidate", place / "ckpt-onnx", "--windows", 1)
    assert err == ""


def test_a_preset_with_random_weights_can_be_validated(tmp_path, command):
    export_graph(random_checkpoint("andrea-nano", 7), tmp_path / "out")
    code, out, err = command(
        "andrea-nano", "--random-weights", 7, "--candidate", tmp_path / "out", "--windows", 1
    )
    assert code == 0
    assert "random weights" in out
    assert "not a trained model" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"caf\xe9", "is not UTF-8: byte 0xE9 at offset 3"),
        (b"", "is empty"),
        (b"x", "has 1 token"),
    ],
)
def test_a_text_that_cannot_be_used_exits_2_in_one_line(place, tmp_path, command, content, said):
    text = tmp_path / "text.txt"
    text.write_bytes(content)
    code, out, err = command(
        place / "ckpt", "--candidate", place / "ckpt-onnx", "--text", text, *with_tokenizer(place)
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"andrea-export: {text} {said}" in err


def test_a_candidate_that_is_not_there_exits_2(place, tmp_path, command):
    code, out, err = command(place / "ckpt", "--candidate", tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere does not exist" in err


def test_a_candidate_that_is_a_checkpoint_exits_2(place, command):
    code, _, err = command(place / "ckpt", "--candidate", place / "ckpt")
    assert code == 2
    assert "is not an exported folder: it has no model.onnx" in err


def test_a_candidate_of_another_depth_exits_2_with_both_numbers(place, tmp_path, command):
    export_graph(
        random_checkpoint("andrea-nano", 1, config=CONFIG.replace(n_layer=3)), tmp_path / "deep"
    )
    code, _, err = command(place / "ckpt", "--candidate", tmp_path / "deep")
    assert code == 2
    assert "n_layer 3 (checkpoint: 2)" in err


def test_a_damaged_graph_exits_2_and_is_named(place, tmp_path, command):
    copy = shutil.copytree(place / "ckpt-onnx", tmp_path / "copy")
    (copy / "model.onnx").write_bytes(b"rubbish")
    code, out, err = command(place / "ckpt", "--candidate", copy, "--windows", 1)
    assert (code, out) == (2, "")
    assert "copy/model.onnx is no ONNX model" in err


def test_truncated_weights_exit_2_and_the_table_says_why(place, tmp_path, command):
    copy = shutil.copytree(place / "ckpt-onnx", tmp_path / "copy")
    (copy / "model.onnx.data").write_bytes(b"rubbish")
    code, out, _ = command(place / "ckpt", "--candidate", copy, "--windows", 1)
    assert code == 2
    assert "could not run" in out
    assert "Could not judge" in out
    assert "model.onnx.data was changed after the export" in out


def test_no_windows_exit_2(place, command):
    code, _, err = command(place / "ckpt", "--candidate", place / "ckpt-onnx", "--windows", 0)
    assert code == 2
    assert "at least 1, not 0" in err

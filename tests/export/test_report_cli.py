"""The command: exit codes, files, JSON alone on stdout, and errors in one line."""

import json
import shutil

import planted_faults as faults
import pytest

from andrea_export.cli import run
from andrea_export.graph import export_graph, open_graph
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.checkpoint import save_folder
from andrea_model.tokenizer import HarrisTokenizer

CONFIG = AndreaConfig(259, 24, 32, 2, 4)
SMALL = ("--windows", "1", "--tokens", "16")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    checkpoint = random_checkpoint("andrea-nano", 1, config=CONFIG)
    save_folder(checkpoint, place / "ckpt")
    HarrisTokenizer(["the ", "and "]).save(place / "ckpt" / "tokenizer.json")
    export_graph(checkpoint, place / "good")
    spoil = faults.attention_scale(1, 1.1).plant
    faults.spoiled(open_graph(place / "good"), place / "bad", spoil)
    return place


@pytest.fixture
def command(capsys):
    def call(*arguments):
        code = run(["report", *(str(each) for each in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_report_is_three_files_and_exit_0(place, command, tmp_path):
    out = tmp_path / "out"
    code, printed, noted = command(place / "ckpt", "--candidate", place / "good", "-o", out, *SMALL)
    assert code == 0
    assert {each.name for each in out.iterdir()} == {"report.json", "report.md", "report.html"}
    assert printed.splitlines()[-1].startswith("Within tolerance: RMS error")
    assert "report.html" in noted


def test_json_is_alone_on_stdout_and_a_bad_candidate_exits_1(place, command, tmp_path):
    code, printed, _ = command(
        place / "ckpt", "--candidate", place / "good", "--candidate", place / "bad",
        "-o", tmp_path / "out", "--json", "--quick", *SMALL,
    )  # fmt: skip
    values = json.loads(printed)
    assert (code, values["verdict"]["exit_code"]) == (1, 1)
    assert values == json.loads((tmp_path / "out" / "report.json").read_text())
    assert [each["status"] for each in values["candidates"]] == [
        "within tolerance", "out of tolerance",
    ]  # fmt: skip


def test_one_that_cannot_be_judged_exits_2_and_the_rest_is_written(place, command, tmp_path):
    code, printed, _ = command(
        place / "ckpt", "--candidate", place / "good", "--candidate", tmp_path / "gone",
        "-o", tmp_path / "out", *SMALL,
    )  # fmt: skip
    assert code == 2
    assert "could not judge" in printed
    assert (tmp_path / "out" / "report.html").is_file()


def test_diff_exits_1_on_a_regression_and_names_it(place, command, tmp_path):
    for name in ("good", "bad"):
        shutil.copytree(place / name, tmp_path / "candidate", dirs_exist_ok=True)
        command(
            place / "ckpt", "--candidate", tmp_path / "candidate", "-o", tmp_path / name, *SMALL
        )
    code, printed, _ = command("diff", tmp_path / "good" / "report.json", tmp_path / "bad")
    assert code == 1
    assert "status within tolerance → out of tolerance" in printed
    assert "rms_error" in printed
    code, printed, _ = command("diff", tmp_path / "bad", tmp_path / "good", "--json")
    assert code == 0
    assert json.loads(printed)["regressions"] == 0
    code, printed, _ = command("diff", tmp_path / "good", tmp_path / "good")
    assert (code, printed.strip()) == (0, "No regression.")


def test_an_older_report_is_replaced_with_force_and_nothing_else_is(place, command, tmp_path):
    arguments = (place / "ckpt", "--candidate", place / "good", *SMALL)
    out = tmp_path / "out"
    assert command(*arguments, "-o", out)[0] == 0
    code, _, error = command(*arguments, "-o", out)
    assert (code, "--force" in error) == (2, True)
    assert command(*arguments, "-o", out, "--force")[0] == 0
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    code, _, error = command(*arguments, "-o", place / "good", "--force")
    assert code == 2
    assert "has no report.json" in error
    assert (place / "good" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--candidate", "x,colour=red"), "'colour=red' is not one of"),
        (("--candidate", "x", "--tolerance", "none.json"), "none.json cannot be read"),
        (("--candidate", "x", "--text", "none.txt"), "none.txt cannot be read"),
        (("--candidate", "x", "--windows", "0"), "must be at least 1"),
        (("--candidate", "x", "--windows", "0", "--quick"), "must be at least 1"),
        (("--candidate", "x", "--tokens", "0"), "must be at least 1"),
        (("--candidate", ""), "has no path"),
        (("--candidate", "x", "--target", "0.1"), "add --bisect"),
        (("--candidate", "x", "--bisect", "--target", "0"), "must be an RMS error above 0, not 0"),
        (("--candidate", "x", "--bisect", "--target", "nan"), "above 0, not nan"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(place, command, tmp_path, arguments, said):
    code, printed, error = command(place / "ckpt", *arguments, "-o", tmp_path / "out")
    assert (code, printed) == (2, "")
    assert said in error
    assert len(error.strip().splitlines()) <= 2
    assert not (tmp_path / "out").exists()


def test_an_unknown_key_in_the_tolerance_file_is_refused(place, command, tmp_path):
    (tmp_path / "own.json").write_text('{"fp32": {"rms": {"absolute": 1}}}')
    code, _, error = command(
        place / "ckpt", "--candidate", place / "good", "-o", tmp_path / "out",
        "--tolerance", tmp_path / "own.json",
    )  # fmt: skip
    assert code == 2
    assert "unknown figure of fp32 'rms'" in error


def test_limits_of_ones_own_decide(place, command, tmp_path):
    (tmp_path / "own.json").write_text(
        json.dumps({"fp32": {"rms_error": {"absolute": 1e-9, "floor": 0}}})
    )
    code, printed, _ = command(
        place / "ckpt", "--candidate", place / "good", "-o", tmp_path / "out", *SMALL,
        "--tolerance", tmp_path / "own.json",
    )  # fmt: skip
    assert code == 1
    assert "times the limit 1e-09" in printed


def test_a_file_that_is_no_report_is_refused_by_diff(command, tmp_path):
    (tmp_path / "other.json").write_text('{"schema": {"name": "x"}}')
    code, _, error = command("diff", tmp_path / "other.json", tmp_path / "other.json")
    assert code == 2
    assert "is no report: its schema is" in error

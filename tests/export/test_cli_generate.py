"""`generate` as people type it: what it prints, what it refuses, and how it ends."""

import json
import os
import signal
import subprocess
import sys

import pytest
from command_line import AS_BIN, call, refused


def test_generate_prints_the_same_greedy_text_from_torch_and_onnx(capsys, ckpt, tmp_path):
    call(capsys, "onnx", ckpt, "-o", tmp_path / "out", "--no-check")
    options = ("--prompt", "the ", "--max-new-tokens", 12)
    code, torch_text, err = call(capsys, "generate", ckpt, *options)
    assert code == 0
    assert "12 tokens in" in err
    assert "tokens/s" in err
    assert call(capsys, "generate", tmp_path / "out", *options)[1] == torch_text


def test_generate_json_is_all_that_is_printed(capsys, ckpt):
    options = ("--prompt", "the ", "--max-new-tokens", 3, "--json")
    code, out, err = call(capsys, "generate", ckpt, *options)
    assert (code, err) == (0, "")
    assert len(json.loads(out)["ids"]) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "x" * 50], "the prompt has 51 tokens, the model's context length is 40"),
        (["--prompt", "\udc80abc"], "lone surrogate"),
        (["--prompt", "x", "--max-new-tokens", "0"], "must be at least 1, not 0"),
        (["--prompt", "x", "--temperature", "0"], "temperature must be a number above 0"),
        (["--prompt", "x", "--top-p", "1.5"], "top-p must be above 0 and at most 1"),
        (["--prompt", "x", "--top-k", "0"], "top-k must be at least 1"),
        (["--prompt", "x", "--backend", "onnx"], "the onnx backend runs exported folders"),
        (["--prompt", "x", "--dtype", "fp8"], "dtype 'fp8' is not one of"),
    ],
    ids=str,
)
def test_generate_refuses_what_it_cannot_do(capsys, ckpt, options, words):
    assert words in refused(capsys, "generate", ckpt, *options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "fp16"], "--dtype is for checkpoints"),
        (["--set", "n_head=3"], "--set is for checkpoints"),
        (["--layout", "zzz", "--random-weights", "1"], "--layout, --random-weights is for"),
    ],
    ids=str,
)
def test_generate_refuses_options_that_an_exported_folder_cannot_take(
    capsys, ckpt, tmp_path, options, words
):
    call(capsys, "onnx", ckpt, "-o", tmp_path / "out", "--no-check")
    message = refused(capsys, "generate", tmp_path / "out", "--prompt", "x", *options)
    assert words in message
    assert "is an exported folder" in message


def test_generate_refuses_a_provider_that_does_not_exist(capsys, ckpt, tmp_path):
    call(capsys, "onnx", ckpt, "-o", tmp_path / "out", "--no-check")
    options = ("--prompt", "x", "--provider", "rocm")
    message = refused(capsys, "generate", tmp_path / "out", *options)
    assert "provider 'rocm' is not one of cpu, cuda, tensorrt" in message


def test_generate_refuses_a_plugin_library_for_a_checkpoint(capsys, ckpt):
    options = ("--prompt", "x", "--plugin-library", "plugins.so")
    assert "--plugin-library is for engines" in refused(capsys, "generate", ckpt, *options)


@pytest.mark.parametrize("form", [["--prompt", "é"], ["--prompts", "prompts.txt"]], ids=" ".join)
def test_generate_json_loses_no_letter_where_stdout_is_ascii(ckpt, tmp_path, form):
    (tmp_path / "prompts.txt").write_text("é\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "andrea_export", "generate", ckpt, *form, "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["prompt"] == "é"


def test_generate_that_is_interrupted_keeps_its_text_and_exits_with_130(capsys, ckpt):
    options = ("--prompt", "the ", "--on-full", "slide", "--max-new-tokens")
    whole = call(capsys, "generate", ckpt, *options, 30)[1].rstrip("\n")
    command = [sys.executable, "-m", "andrea_export", "generate", ckpt, *options, "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.read(len(whole.encode()))
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first.decode(errors="replace") == whole
    assert rest.endswith(b"\n")
    assert b"Traceback" not in err


def test_generate_json_that_is_interrupted_prints_nothing(ckpt, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("andrea_export.session.generate", interrupted)
    code, out, _ = call(capsys, "generate", ckpt, "--prompt", "x", "--json")
    assert (code, out) == (130, "")


def test_generate_that_ends_at_once_claims_no_time_to_a_first_token(capsys, ckpt, monkeypatch):
    from andrea_export.session.sampling import Sampler

    monkeypatch.setattr(Sampler, "choose", lambda *_: 256)  # BOS
    _, _, err = call(capsys, "generate", ckpt, "--prompt", "x", "--temperature", "1")
    assert "no new token; torch" in err
    assert "the first after" not in err


def test_generate_refuses_a_provider_for_a_checkpoint(capsys, ckpt):
    message = refused(capsys, "generate", ckpt, "--prompt", "x", "--provider", "cuda")
    assert "--provider is for exported folders" in message


def test_generate_from_a_bin_that_reads_as_noise_warns(capsys, bin_file, ckpt):
    options = (*AS_BIN, "--prompt", "x", "--max-new-tokens", 2)
    code, _, err = call(
        capsys, "generate", bin_file, *options, "--tokenizer", ckpt / "tokenizer.json"
    )
    assert code == 0
    assert "no better than guessing among 261 tokens" in err
    assert "--probe" in err


def test_generate_names_the_line_of_a_prompt_that_is_too_long(capsys, ckpt, tmp_path):
    (tmp_path / "prompts.txt").write_text("one\ntwo\n" + "x" * 50 + "\n")
    message = refused(capsys, "generate", ckpt, "--prompts", tmp_path / "prompts.txt")
    assert "prompt 3: the prompt has 51 tokens" in message


def test_generate_from_a_file_gives_a_json_line_for_each_prompt(capsys, ckpt, tmp_path):
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\n")
    options = ("--prompts", tmp_path / "prompts.txt", "--batch-size", 2, "--max-new-tokens", 3)
    code, out, err = call(capsys, "generate", ckpt, *options)
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["one", "two", "three"]
    assert "tokens for 3 prompts" in err


def test_generate_without_a_tokenizer_says_how_to_give_one(capsys, ckpt):
    (ckpt / "tokenizer.json").unlink()
    assert "--tokenizer" in refused(capsys, "generate", ckpt, "--prompt", "x")


def test_generate_with_ids_outside_the_vocabulary_is_refused(capsys, ckpt, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps([f"word{i}" for i in range(50)]))
    message = refused(capsys, "generate", ckpt, "--prompt", "word49", "--tokenizer", other)
    assert "the tokenizer has 307 ids, the model 261" in message

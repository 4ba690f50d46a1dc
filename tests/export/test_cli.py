"""The commands as people type them: what they print, what they refuse, how they exit."""

import errno
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from andrea_export.cli import run
from andrea_model import AndreaConfig, open_checkpoint, random_checkpoint
from andrea_model.checkpoint import save_folder, write_bin
from andrea_model.tokenizer import HarrisTokenizer

CONFIG = AndreaConfig(vocab_size=261, context_length=40, d_model=24, n_layer=2, n_head=3)
AS_BIN = ["--set", "vocab_size=261", "--set", "context_length=40", "--set", "d_model=24"]
AS_BIN += ["--set", "n_layer=2", "--set", "n_head=3"]


@pytest.fixture(scope="module")
def drawn():
    return random_checkpoint("andrea-nano", 7, config=CONFIG)


@pytest.fixture
def ckpt(drawn, tmp_path):
    """A checkpoint folder of our own, with a tokenizer."""
    folder = tmp_path / "ckpt"
    save_folder(drawn, folder)
    HarrisTokenizer(["the ", "and ", "é", "über"]).save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def bin_file(drawn, tmp_path):
    path = tmp_path / "step_000003.bin"
    write_bin(drawn.config, drawn.tensors, path, step=3)
    return path


def call(capsys, *arguments):
    """Exit code, stdout, stderr."""
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments):
    """The message of a command that must end with exit code 2 and say one or two lines."""
    code, out, err = call(capsys, *arguments)
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert 1 <= len(err.strip().splitlines()) <= 2, err
    return err


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


def test_info_prints_the_table_with_the_exact_total(capsys, ckpt):
    code, out, _ = call(capsys, "info", ckpt)
    assert code == 0
    # wte 261·24, wpe 40·24, per block 4·24² + 8·24² + 96 + 24 + 4·24, final norm 2·24
    total = 261 * 24 + 40 * 24 + 2 * (12 * 24 * 24 + 120 + 96) + 48
    assert f"{total:,}" in out
    assert "d_model" in out


def test_info_json_has_the_config_and_nothing_else_is_printed(capsys, ckpt):
    code, out, err = call(capsys, "info", ckpt, "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert AndreaConfig.from_dict(result["config"]) == CONFIG
    assert sum(part["parameters"] for part in result["parts"]) == result["parameters"]


def test_info_says_why_a_nominal_name_is_not_the_size(capsys):
    _, out, _ = call(capsys, "info", "andrea-120m-published", "--random-weights", 1)
    text = " ".join(out.split())
    assert '"120M" is a nominal name: this model has 98.7M parameters' in text
    assert "with GPT-2's 50257 ids the same blocks make 124.4M" in text


def test_info_probe_finds_the_layout_of_a_trained_model(capsys, tmp_path):
    demo = open_checkpoint("andrea-nano")
    from andrea_model.checkpoint import Layout
    from andrea_model.demo import heldout_text

    path = tmp_path / "nano.bin"
    layout = "orientation=out_in,head=last,norms=last,attention=kqvo"
    write_bin(demo.config, demo.tensors, path, step=1, layout=Layout.parse(layout))
    code, out, _ = call(
        capsys,
        "info",
        path,
        "--probe",
        heldout_text(),
        "--tokenizer",
        demo.tokenizer_path,
        "--json",
    )
    assert code == 0
    best = json.loads(out)["probe"][0]
    assert best["layout"] == layout
    assert best["id_layout"] == "bytes,bos,segments"


def test_onnx_checks_what_it_wrote_and_says_so(capsys, ckpt, tmp_path):
    code, out, err = call(capsys, "onnx", ckpt, "-o", tmp_path / "out")
    assert code == 0
    assert "Within tolerance" in out
    assert "4 AndreaAddLayerNorm, 2 AndreaBiasGelu, 1 AndreaLayerNorm" in err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "model.onnx",
        "model.onnx.data",
        "config.json",
        "tokenizer.json",
        "export.json",
    }


def test_onnx_json_is_the_record_and_the_check(capsys, ckpt, tmp_path):
    code, out, _ = call(capsys, "onnx", ckpt, "-o", tmp_path / "out", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["options"]["dtype"] == "fp32"
    assert result["custom_ops"] == {
        "AndreaAddLayerNorm": 4,
        "AndreaBiasGelu": 2,
        "AndreaLayerNorm": 1,
    }
    assert "check" in result


def test_onnx_takes_a_bin_by_its_settings(capsys, bin_file, tmp_path):
    out = tmp_path / "out"
    code, _, _ = call(capsys, "onnx", bin_file, *AS_BIN, "-o", out, "--no-check", "--json")
    assert code == 0
    record = json.loads((out / "export.json").read_text())
    assert record["checkpoint"]["step"] == 3
    assert record["checkpoint"]["layout"]["attention"] == "qkvo"


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


def test_debug_shows_the_traceback(ckpt, tmp_path):
    from andrea_export.errors import OutputError

    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError):
        run(["onnx", str(ckpt), "-o", str(tmp_path / "out"), "--debug"])


# --- bad input: each by its own words, exit code 2, nothing written ------------------------------


@pytest.fixture
def onnx_refused(capsys, tmp_path):
    def call_it(source, *options):
        message = refused(capsys, "onnx", source, *options, "-o", tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".*partial*"))
        return message

    return call_it


def test_truncated_bin_is_refused(onnx_refused, bin_file):
    size = bin_file.stat().st_size
    bin_file.write_bytes(bin_file.read_bytes()[:-100])
    message = onnx_refused(bin_file, *AS_BIN)
    assert str(size - 100) in message.replace(",", "")
    assert "step_000003.bin" in message


def test_n_params_of_no_variant_lists_the_nearest(onnx_refused, tmp_path):
    path = tmp_path / "odd.bin"
    path.write_bytes(struct.pack("<ii", 1, 1_119_105) + bytes(4 * 1_119_105))
    message = onnx_refused(path)
    assert "1,119,105" in message
    assert "1,119,104" in message  # andrea-nano, one parameter away
    assert "--config" in message


@pytest.mark.parametrize("n_params", [-5, 2_000_000_000])
def test_n_params_that_cannot_be_is_refused(onnx_refused, tmp_path, n_params):
    path = tmp_path / "odd.bin"
    path.write_bytes(struct.pack("<ii", 1, n_params) + bytes(400))
    assert f"{n_params:,}" in onnx_refused(path)


def test_nan_weights_are_named_and_can_be_allowed(capsys, onnx_refused, ckpt, tmp_path):
    tensors = load_file(ckpt / "model.safetensors")
    tensors["blocks.1.mlp.fc2.weight"][3, 4] = np.nan
    save_file(tensors, ckpt / "model.safetensors")
    message = onnx_refused(ckpt)
    assert "blocks.1.mlp.fc2.weight" in message
    assert "--allow-nonfinite" in message
    options = ("-o", tmp_path / "out", "--no-check", "--allow-nonfinite")
    assert call(capsys, "onnx", ckpt, *options)[0] == 0


def edit_config(ckpt, **changes):
    path = ckpt / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, ["model_type is 'llama'", "andrea", "gpt2"]),
        ({"n_head": 5}, ["d_model 24", "n_head 5"]),
        ({"activation": "tanh"}, ["activation", "'tanh'", "gelu_tanh"]),
        ({"vocab_size": 262}, ["wte.weight", "(261, 24)", "(262, 24)"]),
        ({"n_layer": 3}, ["blocks.2."]),
        ({"colour": 1}, ["'colour'"]),
    ],
    ids=str,
)
def test_config_that_does_not_fit_is_refused(onnx_refused, ckpt, changes, words):
    edit_config(ckpt, **changes)
    message = onnx_refused(ckpt)
    for word in words:
        assert word in message.replace("[261, 24]", "(261, 24)").replace("[262, 24]", "(262, 24)")


def test_missing_tensor_is_named(onnx_refused, ckpt):
    tensors = load_file(ckpt / "model.safetensors")
    del tensors["blocks.0.attn.k.weight"]
    save_file(tensors, ckpt / "model.safetensors")
    assert "blocks.0.attn.k.weight" in onnx_refused(ckpt)


def test_pickle_with_code_in_it_is_refused_and_not_run(onnx_refused, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    path = tmp_path / "ckpt.pt"
    path.write_bytes(pickle.dumps({"model": Evil(), "model_args": {}}))
    message = onnx_refused(path)
    assert "ckpt.pt" in message
    assert not (tmp_path / "owned").exists()


def test_existing_output_needs_force(capsys, ckpt, tmp_path):
    assert call(capsys, "onnx", ckpt, "-o", tmp_path / "out", "--no-check")[0] == 0
    before = (tmp_path / "out" / "model.onnx").stat().st_mtime_ns
    assert "--force" in refused(capsys, "onnx", ckpt, "-o", tmp_path / "out")
    assert (tmp_path / "out" / "model.onnx").stat().st_mtime_ns == before
    options = ("-o", tmp_path / "out", "--no-check", "--force")
    assert call(capsys, "onnx", ckpt, *options)[0] == 0


def test_output_is_never_the_checkpoint_itself(capsys, ckpt):
    message = refused(capsys, "onnx", ckpt, "-o", ckpt, "--force")
    assert "has no export.json" in message
    assert (ckpt / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "int8"], "dtype 'int8' is not one of fp32, fp16, bf16"),
        (["--ops", "cuda"], "ops 'cuda' is not one of plugin, standard"),
        (["--opset", "9"], "opset 9 is not between 20 and 24"),
        (["--set", "n_head"], "--set takes KEY=VALUE, not 'n_head'"),
        (["--set", "heads=3"], "unknown setting 'heads'"),
        (["--set", "n_head=three"], "n_head must be a whole number, not 'three'"),
        (["--random-weights", "1"], "no preset"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(onnx_refused, ckpt, options, words):
    assert words in onnx_refused(ckpt, *options)


def test_source_that_is_not_there_is_named(onnx_refused):
    assert "nowhere/model.bin" in onnx_refused("nowhere/model.bin")


def test_preset_without_weights_says_how_to_get_random_ones(onnx_refused):
    assert "--random-weights" in onnx_refused("andrea-12m")


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


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_graph_of_last_logits_is_checked_like_any_other(capsys, ckpt, tmp_path, dtype):
    options = ("--kv-cache", "--logits", "last", "--dtype", dtype, "-o", tmp_path / "out")
    code, out, _ = call(capsys, "onnx", ckpt, *options)
    assert code == 0, out
    assert "Within tolerance" in out


@pytest.mark.parametrize("bad", ["config.json", "larger.json", "folder"])
def test_tokenizer_is_looked_at_before_anything_is_written(onnx_refused, ckpt, tmp_path, bad):
    (tmp_path / "larger.json").write_text(json.dumps([f"word{i}" for i in range(50)]))
    (tmp_path / "folder").mkdir()
    path = ckpt / bad if bad == "config.json" else tmp_path / bad
    assert path.name in onnx_refused(ckpt, "--tokenizer", path)


def test_force_does_not_delete_the_checkpoint_it_reads(capsys, ckpt, tmp_path):
    out = tmp_path / "out"
    call(capsys, "onnx", ckpt, "-o", out, "--no-check")
    (ckpt / "model.safetensors").rename(out / "model.safetensors")
    assert "also holds model.safetensors" in refused(capsys, "onnx", out, "-o", out, "--force")
    assert (out / "model.safetensors").is_file()


def test_path_with_brackets_is_printed_as_it_is(capsys, ckpt, tmp_path):
    odd = tmp_path / "we[ird] [bold]ünï"
    ckpt.rename(odd)
    code, out, _ = call(capsys, "info", odd)
    assert code == 0
    assert "we[ird] [bold]ünï" in out.replace("\n", "")


def test_long_probe_is_text_and_not_a_path(capsys, tmp_path):
    demo = open_checkpoint("andrea-nano")
    path = tmp_path / "nano.bin"
    write_bin(demo.config, demo.tensors, path, step=1)
    options = ("--probe", "Good madam, let me see your face. " * 20)
    code, out, _ = call(capsys, "info", path, *options, "--tokenizer", demo.tokenizer_path)
    assert code == 0
    assert "Use it with: --layout orientation=in_out," in out


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


def test_terminated_export_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    options = ["onnx", "andrea-480m", "--random-weights", "1", "-o", str(out), "--no-check"]
    process = subprocess.Popen([sys.executable, "-m", "andrea_export", *options])
    while not list(tmp_path.glob(".out.*.partial/*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait() == 128 + 15
    assert list(tmp_path.iterdir()) == []


def test_generate_without_a_tokenizer_says_how_to_give_one(capsys, ckpt):
    (ckpt / "tokenizer.json").unlink()
    assert "--tokenizer" in refused(capsys, "generate", ckpt, "--prompt", "x")


def test_generate_with_ids_outside_the_vocabulary_is_refused(capsys, ckpt, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps([f"word{i}" for i in range(50)]))
    message = refused(capsys, "generate", ckpt, "--prompt", "word49", "--tokenizer", other)
    assert "the tokenizer has 307 ids, the model 261" in message


def test_validate_text_that_is_not_utf8_is_refused(capsys, ckpt, tmp_path):
    call(capsys, "onnx", ckpt, "-o", tmp_path / "out", "--no-check")
    bad = tmp_path / "latin.txt"
    bad.write_bytes(b"the caf\xe9 and the " * 50)
    message = refused(capsys, "validate", ckpt, "--candidate", tmp_path / "out", "--text", bad)
    assert "latin.txt" in message
    assert "UTF-8" in message
    assert "7" in message  # the byte's offset

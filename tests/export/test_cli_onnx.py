"""`onnx` as people type it: what it prints, and what it refuses before anything is written."""

import json
import pickle
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from command_line import AS_BIN, call, refused
from safetensors.numpy import load_file, save_file


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

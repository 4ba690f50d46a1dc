"""GPT-2 checkpoints: transformers' folders and nanoGPT's file give their own logits."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from andrea_model.checkpoint import Checkpoint, load_model, open_checkpoint
from andrea_model.errors import CheckpointError, ConfigError

transformers = pytest.importorskip("transformers", reason="the peer whose logits are wanted")

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
SIZES = {"vocab_size": 61, "n_positions": 16, "n_embd": 24, "n_layer": 3, "n_head": 4}


def gpt2(**changes: Any) -> Any:
    """A random GPT2LMHeadModel whose biases and norms are not the trivial zeros and ones."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    return load_model(checkpoint)(IDS)


@torch.no_grad()
def assert_same_logits(checkpoint: Checkpoint, model: Any) -> None:
    wanted = model(IDS).logits
    assert wanted.abs().max() > 1  # or the tolerance would mean nothing
    torch.testing.assert_close(logits(checkpoint), wanted, rtol=1e-5, atol=1e-5)


def rewrite_config(folder: Path, **changes: object) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({}, {"activation": "gelu_tanh", "tied_head": True, "bias": "all", "norm_eps": 1e-5}),
        ({"activation_function": "gelu"}, {"activation": "gelu_erf"}),
        ({"activation_function": "relu", "n_inner": 55}, {"activation": "relu", "mlp_dim": 55}),
        ({"layer_norm_epsilon": 1e-2}, {"norm_eps": 1e-2}),
        ({"tie_word_embeddings": False}, {"tied_head": False}),
    ],
)
def test_gpt2_folder_when_saved_by_transformers_then_the_logits_are_its_own(
    tmp_path: Path, changes: dict[str, Any], ours: dict[str, Any]
) -> None:
    model = gpt2(**changes)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.format == "gpt2"
    assert {key: getattr(checkpoint.config, key) for key in ours} == ours
    assert_same_logits(checkpoint, model)


def test_gpt2_folder_when_its_weights_are_a_torch_file_then_the_logits_are_the_same(
    tmp_path: Path,
) -> None:
    model = gpt2()
    model.config.save_pretrained(tmp_path)
    # As the first transformers wrote it: no prefix, and the causal mask of every layer.
    state = {name.removeprefix("transformer."): t for name, t in model.state_dict().items()}
    state |= {f"h.{i}.attn.bias": torch.ones(1, 1, 16, 16).tril().bool() for i in range(3)}
    state |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert_same_logits(open_checkpoint(tmp_path), model)


def test_gpt2_folder_when_its_torch_file_is_of_the_old_kind_then_it_is_read(tmp_path: Path) -> None:
    model = gpt2()
    model.config.save_pretrained(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=False)
    assert_same_logits(open_checkpoint(tmp_path), model)


def test_gpt2_folder_when_it_is_sharded_then_all_shards_are_read_and_hashed(tmp_path: Path) -> None:
    model = gpt2()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.files) > 1
    assert_same_logits(checkpoint, model)
    before = checkpoint.sha256()
    checkpoint.files[-1].write_bytes(checkpoint.files[-1].read_bytes()[:-1] + b"\x01")
    assert open_checkpoint(tmp_path).sha256() != before
    checkpoint.files[0].unlink()
    with pytest.raises(CheckpointError, match=r"this shard of .* is missing"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_gpt2_folder_when_stored_in_half_then_the_stored_type_is_kept(
    tmp_path: Path, dtype: torch.dtype, kind: str
) -> None:
    model = gpt2().to(dtype)
    model.save_pretrained(tmp_path)
    if kind == "torch":
        (tmp_path / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    checkpoint = open_checkpoint(tmp_path)
    assert {t.dtype.name for t in checkpoint.tensors.values()} == {str(dtype).split(".")[1]}
    assert_same_logits(checkpoint, model.float())
    same = load_model(checkpoint, dtype).state_dict()["wpe.weight"]
    assert torch.equal(same, model.transformer.wpe.weight.to(dtype))


def test_gpt2_folder_when_the_head_differs_against_the_config_then_it_is_kept_with_a_note(
    tmp_path: Path,
) -> None:
    model = gpt2(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    rewrite_config(tmp_path, tie_word_embeddings=True)
    checkpoint = open_checkpoint(tmp_path)
    assert not checkpoint.config.tied_head
    assert "lm_head.weight differs from the embedding" in checkpoint.notes[0]
    assert_same_logits(checkpoint, model)


def test_gpt2_folder_when_an_untied_head_is_missing_then_it_is_named(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    rewrite_config(tmp_path, tie_word_embeddings=False)
    message = re.escape("tensor 'lm_head.weight' of shape (61, 24) is missing (1 of 41 tensors")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_gpt2_folder_when_both_kinds_of_weights_are_there_then_safetensors_are_read(
    tmp_path: Path,
) -> None:
    model = gpt2()
    model.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not looked at")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.notes == (
        "pytorch_model.bin is there too and was not read: model.safetensors comes first",
    )
    assert_same_logits(checkpoint, model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is True; only False is supported",
        ),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn is True; only False"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False; only True is supported"),
        ({"add_cross_attention": True}, "add_cross_attention is True; only False is supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}; only None"),
        ({"activation_function": "silu"}, "activation_function is 'silu'; known: gelu_new, "),
        ({"n_embd": None}, "n_embd is missing"),
        ({"n_head": 5}, "d_model 24 is not divisible by n_head 5"),
    ],
)
def test_gpt2_config_when_it_asks_for_what_this_model_lacks_then_it_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    gpt2().save_pretrained(tmp_path)
    rewrite_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        open_checkpoint(tmp_path)
    assert "config.json" in str(caught.value)


def test_gpt2_folder_when_a_shape_is_wrong_then_seen_and_wanted_are_named(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    rewrite_config(tmp_path, n_positions=32)
    message = "tensor 'wpe.weight' has shape (16, 24), the config wants (32, 24)"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        open_checkpoint(tmp_path)


def test_gpt2_folder_when_it_is_another_head_then_the_extra_tensor_is_named(tmp_path: Path) -> None:
    config = transformers.GPT2Config(**SIZES, num_labels=2)
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    message = "tensor 'score.weight' of shape (2, 24) is not part of the model"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        open_checkpoint(tmp_path)


def nanogpt(path: Path, model: Any, *, bias: bool = True, old: bool = False) -> None:
    """nanoGPT's ckpt.pt of a compiled model: GPT-2's names, nn.Linear's [out, in] matrices."""
    state = {}
    for name, tensor in model.state_dict().items():
        is_matrix = ".h." in name and tensor.ndim == 2
        if bias or not name.endswith(".bias"):
            state[f"_orig_mod.{name}"] = tensor.T.contiguous() if is_matrix else tensor
    args = {"n_layer": 3, "n_head": 4, "n_embd": 24, "block_size": 16, "vocab_size": 61}
    args |= {"dropout": 0.0} if old else {"dropout": 0.0, "bias": bias}
    moments = {0: {"exp_avg": torch.full((61, 24), torch.nan)}}
    content = {"model": state, "optimizer": {"state": moments}, "model_args": args}
    torch.save(content | {"iter_num": 2000, "best_val_loss": torch.tensor(3.2)}, path)


@pytest.mark.parametrize(("old", "activation"), [(False, "gelu"), (True, "gelu_new")])
def test_nanogpt_when_opened_then_the_logits_are_gpt2s(
    tmp_path: Path, old: bool, activation: str
) -> None:
    model = gpt2(activation_function=activation)
    nanogpt(tmp_path / "ckpt.pt", model, old=old)
    checkpoint = open_checkpoint(tmp_path / "ckpt.pt")
    assert (checkpoint.format, checkpoint.step) == ("nanogpt", 2000)
    assert checkpoint.config.tied_head
    assert "the file names no activation" in checkpoint.notes[0]
    assert_same_logits(checkpoint, model)


def test_nanogpt_when_it_has_no_biases_then_norms_have_gamma_only(tmp_path: Path) -> None:
    model = gpt2(activation_function="gelu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
    nanogpt(tmp_path / "ckpt.pt", model, bias=False)
    checkpoint = open_checkpoint(tmp_path / "ckpt.pt")
    assert (checkpoint.config.bias, checkpoint.config.norm_affine) == ("none", "scale")
    assert not any(name.endswith(".bias") for name in checkpoint.tensors)
    assert_same_logits(checkpoint, model)


def test_nanogpt_when_read_then_its_matrices_are_views_of_the_file(tmp_path: Path) -> None:
    nanogpt(tmp_path / "ckpt.pt", gpt2())
    fc1 = open_checkpoint(tmp_path / "ckpt.pt").tensors["blocks.0.mlp.fc1.weight"]
    assert fc1.shape == (24, 96)
    assert fc1.flags.f_contiguous
    assert not fc1.flags.owndata
    assert not fc1.flags.writeable


def test_nanogpt_when_the_vocabulary_is_padded_then_a_note_says_so(tmp_path: Path) -> None:
    model = gpt2(vocab_size=50304)
    nanogpt(tmp_path / "ckpt.pt", model)
    content = torch.load(tmp_path / "ckpt.pt")
    content["model_args"]["vocab_size"] = 50304
    torch.save(content, tmp_path / "ckpt.pt")
    notes = open_checkpoint(tmp_path / "ckpt.pt").notes
    assert any("vocab_size 50304 is GPT-2's 50257 rounded up" in note for note in notes)


def test_logits_when_the_model_is_float64_then_they_are_transformers_float64(
    tmp_path: Path,
) -> None:
    model = gpt2()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        wanted = model.double()(IDS).logits.numpy()
    seen = load_model(open_checkpoint(tmp_path), torch.float64)(IDS).numpy()
    np.testing.assert_allclose(seen, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())

"""Any value for any key of another's configuration: taken, or refused by key and value."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from andrea_model.checkpoint import open_checkpoint, random_checkpoint, save_folder
from andrea_model.config import FIELDS, OPTIONS, AndreaConfig
from andrea_model.errors import AndreaExportError, ConfigError, shown

TINY = AndreaConfig(vocab_size=300, context_length=6, d_model=8, n_layer=1, n_head=2)
SIZES = {"vocab_size": 5, "n_positions": 4, "n_embd": 2, "n_layer": 1, "n_head": 1}
GPT2 = SIZES | {
    "activation_function": "gelu",
    "n_inner": 8,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
NANOGPT = {"vocab_size": 5, "block_size": 4, "n_embd": 2, "n_layer": 1, "n_head": 1, "bias": True}

# One or more of every JSON type, and what Python's reader takes beyond the standard.
VALUES: list[object] = [
    *(None, True, False, 0, -1, 3.5, 1e9, 10**9, 10**400, float("nan"), float("inf")),
    *("", "x", "8", "x" * 10_000, [], ["gelu"], [[["x"]]], {}, {"a": {"b": 1}}, list(range(9999))),
]
WRONG_EVERYWHERE: list[object] = ["x", "8", ["gelu"], [8], {}, {"a": 1}, -1, float("nan"), 3.5]


def write_config(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values))


@pytest.fixture
def andrea(tmp_path: Path) -> Path:
    save_folder((TINY, random_checkpoint("andrea-nano", 9, config=TINY).tensors), tmp_path)
    return tmp_path


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    torch.save({"wte.weight": torch.ones(5, 2)}, tmp_path / "pytorch_model.bin")
    return tmp_path


def error_of(source: Path) -> AndreaExportError | None:
    try:
        open_checkpoint(source)
    except AndreaExportError as error:
        return error
    return None


def assert_only_ours(source: Path, key: str, value: object) -> None:
    """It opens, or the error is one of ours: about the config it names the key, and is short."""
    error = error_of(source)
    if isinstance(error, ConfigError):
        message = str(error)
        assert key in message
        assert shown(value) in message or "is missing" in message or "divisible" in message
        assert len(message) < 800


@pytest.mark.parametrize("key", ["model_type", *FIELDS])
def test_andrea_config_when_any_value_stands_for_a_key_then_no_other_error_comes_out(
    andrea: Path, key: str
) -> None:
    for value in VALUES:
        write_config(andrea, TINY.to_dict() | {key: value})
        assert_only_ours(andrea, key, value)


@pytest.mark.parametrize("key", ["model_type", *GPT2, "quantization_config", "n_ctx"])
def test_gpt2_config_when_any_value_stands_for_a_key_then_no_other_error_comes_out(
    gpt2: Path, key: str
) -> None:
    for value in VALUES:
        write_config(gpt2, {"model_type": "gpt2"} | GPT2 | {key: value})
        assert_only_ours(gpt2, key, value)


@pytest.mark.parametrize("key", NANOGPT)
def test_nanogpt_args_when_any_value_stands_for_a_key_then_no_other_error_comes_out(
    tmp_path: Path, key: str
) -> None:
    path = tmp_path / "ckpt.pt"
    more = [torch.ones(2), torch.tensor(True), {"a": torch.ones(2)}, (1, 2), b"x", 10**5000]
    for value in [*VALUES, *more]:
        model = {"wte.weight": torch.ones(5, 2)}
        torch.save({"model": model, "model_args": NANOGPT | {key: value}}, path)
        assert_only_ours(path, key, value)


@pytest.mark.parametrize("key", GPT2)
def test_gpt2_config_when_a_value_is_of_the_wrong_type_then_key_and_value_are_named(
    gpt2: Path, key: str
) -> None:
    for value in WRONG_EVERYWHERE:
        write_config(gpt2, {"model_type": "gpt2"} | GPT2 | {key: value})
        said = rf"config\.json: {key} .*{re.escape(shown(value))}"
        with pytest.raises(ConfigError, match=said):
            open_checkpoint(gpt2)


@pytest.mark.parametrize("key", [*FIELDS])
def test_andrea_config_when_a_value_is_of_the_wrong_type_then_key_and_value_are_named(
    andrea: Path, key: str
) -> None:
    numbers = (3.5,) if key in ("mlp_ratio", "norm_eps") else ()
    for value in WRONG_EVERYWHERE:
        if value in numbers:
            continue
        write_config(andrea, TINY.to_dict() | {key: value})
        said = rf"config\.json: {key} .*{re.escape(shown(value))}"
        with pytest.raises(ConfigError, match=said):
            open_checkpoint(andrea)


@pytest.mark.parametrize("key", NANOGPT)
def test_nanogpt_args_when_a_value_is_of_the_wrong_type_then_key_and_value_are_named(
    tmp_path: Path, key: str
) -> None:
    path = tmp_path / "ckpt.pt"
    for value in [*WRONG_EVERYWHERE, torch.ones(2)]:
        torch.save({"model": {}, "model_args": NANOGPT | {key: value}}, path)
        said = rf"\(model_args\): {key} .*{re.escape(shown(value))}"
        with pytest.raises(ConfigError, match=said):
            open_checkpoint(path)


def test_options_when_a_list_stands_for_one_then_the_choices_are_listed(andrea: Path) -> None:
    for key, choices in OPTIONS.items():
        write_config(andrea, TINY.to_dict() | {key: [choices[0]]})
        said = f"{key} must be one of {', '.join(choices)}, not [{choices[0]!r}]"
        with pytest.raises(ConfigError, match=re.escape(said)):
            open_checkpoint(andrea)


def test_gpt2_config_when_only_n_ctx_gives_the_context_then_it_is_taken(gpt2: Path) -> None:
    values = {key: value for key, value in GPT2.items() if key != "n_positions"}
    write_config(gpt2, {"model_type": "gpt2", "n_ctx": 0} | values)
    with pytest.raises(ConfigError, match=r"n_positions must be a whole number .* not 0"):
        open_checkpoint(gpt2)


def test_weights_when_a_safetensors_shape_is_no_number_then_the_tensor_is_named(
    andrea: Path,
) -> None:
    header = {"a": {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    content = np.uint64(len(text)).tobytes() + text + bytes(4)
    (andrea / "model.safetensors").write_bytes(content)
    with pytest.raises(AndreaExportError, match="tensor 'a' is described as"):
        open_checkpoint(andrea)

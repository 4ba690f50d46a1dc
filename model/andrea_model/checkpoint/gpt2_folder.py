"""A Hugging Face GPT-2 folder: `config.json` and safetensors or `pytorch_model.bin`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from andrea_model.checkpoint.checkpoint import Array, Checkpoint
from andrea_model.checkpoint.gpt2_names import (
    HEAD,
    has_own_head,
    plain_names,
    sizes_of,
    to_canonical,
)
from andrea_model.checkpoint.safetensors_file import read_safetensors
from andrea_model.checkpoint.torch_file import arrays_of, read_torch_file
from andrea_model.config import Activation, AndreaConfig, check_number, check_size, check_switch
from andrea_model.errors import CheckpointError, ConfigError, shown

__all__ = ["WEIGHT_FILES", "gpt2_config", "open_gpt2_folder"]

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "relu": "relu",
}
SIZES = {
    "vocab_size": "vocab_size",
    "n_positions": "context_length",
    "n_embd": "d_model",
    "n_layer": "n_layer",
    "n_head": "n_head",
}
# What a GPT2Config may ask for and this model does not have: key → the only value it may have.
FIXED: dict[str, object] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "quantization_config": None,
}


def _read_torch(path: Path) -> dict[str, Array]:
    return arrays_of(read_torch_file(path), str(path))


# The first that is there is read; an index lists the shards of a large model.
WEIGHT_FILES: dict[str, Callable[[Path], dict[str, Array]]] = {
    "model.safetensors": read_safetensors,
    "model.safetensors.index.json": read_safetensors,
    "pytorch_model.bin": _read_torch,
    "pytorch_model.bin.index.json": _read_torch,
}


def open_gpt2_folder(
    folder: Path,
    values: Mapping[str, Any],
    *,
    config: AndreaConfig | None = None,
    settings: Mapping[str, str] | None = None,
) -> Checkpoint:
    """values: the folder's config.json. A given config replaces it; settings change single fields.

    Raises:
        CheckpointError: no weights, damaged ones, or tensors that do not fit the config.
        ConfigError: an option that this model does not have.
    """
    found = [name for name in WEIGHT_FILES if (folder / name).is_file()]
    if not found:
        raise CheckpointError(f"{folder}: no weights; wanted {' or '.join(WEIGHT_FILES)}")
    chosen, *ignored = found
    notes = [f"{name} is there too and was not read: {chosen} comes first" for name in ignored]
    files = _shards(folder / chosen) if chosen.endswith(".index.json") else [folder / chosen]
    state: dict[str, Array] = {}
    for file in files:
        state |= WEIGHT_FILES[chosen](file)
    state = plain_names(state)

    if config is None:
        source = folder / "config.json"
        config, note = _with_head(gpt2_config(values, source), values, state, source)
        notes += note
    config = config.with_settings(dict(settings or {}))
    return Checkpoint(
        path=folder,
        format="gpt2",
        config=config,
        tensors=to_canonical(state, config, out_in=False, source=str(folder / chosen)),
        notes=tuple(notes),
        files=tuple(files),
    )


def gpt2_config(values: Mapping[str, Any], source: Path) -> AndreaConfig:
    """Our configuration of a GPT2Config, with a tied head.

    Raises:
        ConfigError: a missing size, or an option that this model does not have.
    """
    for key, only in FIXED.items():
        if (value := values.get(key, only)) != only:
            raise ConfigError(f"{source}: {key} is {shown(value)}; only {only!r} is supported")
    activation = values.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ConfigError(
            f"{source}: activation_function is {shown(activation)}; known: {', '.join(ACTIVATIONS)}"
        )
    n_inner, epsilon = values.get("n_inner"), values.get("layer_norm_epsilon", 1e-5)
    old = {"n_positions": values["n_ctx"]} if "n_ctx" in values else {}
    try:
        sizes = sizes_of({**old, **values}, SIZES)
        check_number("norm_eps", epsilon, "layer_norm_epsilon")
        if n_inner is not None:
            check_size("mlp_dim", n_inner, "n_inner")
        return AndreaConfig(
            **sizes,
            activation=ACTIVATIONS[activation],
            mlp_ratio=None if n_inner is None else n_inner / sizes["d_model"],
            bias="all",
            norm_eps=epsilon,
        )
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _with_head(
    config: AndreaConfig, values: Mapping[str, Any], state: Mapping[str, Array], source: Path
) -> tuple[AndreaConfig, list[str]]:
    tied = values.get("tie_word_embeddings", True)
    try:
        check_switch("tie_word_embeddings", tied)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    if not has_own_head(state):
        # Without a stored head, an untied config is an error that names the tensor.
        return config.replace(tied_head=tied or HEAD in state), []
    note = f"{HEAD} differs from the embedding: read as an untied head, against the config"
    return config.replace(tied_head=False), [note] if tied else []


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        files = [index.parent / name for name in names if Path(name).name == name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index}: not a readable list of shards: {error!r}") from error
    if len(files) != len(names) or not files:
        raise CheckpointError(
            f"{index}: wanted names of files in the same folder, found {shown(names)}"
        )
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{file}: this shard of {index.name} is missing")
    return files

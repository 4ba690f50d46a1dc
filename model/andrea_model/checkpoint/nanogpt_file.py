"""nanoGPT's `ckpt.pt`: a torch file with `model` (a state dict) and `model_args`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea_model.checkpoint.checkpoint import Checkpoint
from andrea_model.checkpoint.gpt2_names import has_own_head, plain_names, sizes_of, to_canonical
from andrea_model.checkpoint.torch_file import arrays_of, read_torch_file
from andrea_model.config import Activation, AndreaConfig, check_switch
from andrea_model.errors import CheckpointError, ConfigError, shown

__all__ = ["open_nanogpt"]

SIZES = {
    "vocab_size": "vocab_size",
    "block_size": "context_length",
    "n_embd": "d_model",
    "n_layer": "n_layer",
    "n_head": "n_head",
}
GPT2_VOCABULARY, PADDED_VOCABULARY = 50257, 50304


def open_nanogpt(
    path: Path,
    *,
    config: AndreaConfig | None = None,
    settings: Mapping[str, str] | None = None,
) -> Checkpoint:
    """A given config replaces that of `model_args`; settings change single fields.

    Raises:
        CheckpointError: another kind of torch file, a damaged one, or tensors that do not fit.
        ConfigError: `model_args` that no model can have.
    """
    content = read_torch_file(path)
    if not isinstance(content, Mapping) or not {"model", "model_args"} <= set(content):
        raise CheckpointError(_what_it_is(path, content))
    args, source = content["model_args"], f"{path} (model_args)"
    if not isinstance(args, Mapping):
        raise CheckpointError(f"{source}: is {type(args).__name__}, wanted a dict")
    state = plain_names(arrays_of(content["model"], f"{path} (model)"))
    notes: list[str] = []
    if config is None:
        config, notes = _config_of(args, source)
        if has_own_head(state):
            config = config.replace(tied_head=False)
            notes.append("lm_head.weight differs from the embedding: read as an untied head")
    config = config.with_settings(dict(settings or {}))
    if config.vocab_size == PADDED_VOCABULARY:
        notes.append(
            f"vocab_size {PADDED_VOCABULARY} is GPT-2's {GPT2_VOCABULARY} rounded up: "
            "the last ids stand for nothing"
        )
    step = content.get("iter_num")
    return Checkpoint(
        path=path,
        format="nanogpt",
        config=config,
        tensors=to_canonical(state, config, out_in=True, source=str(path)),
        step=step if isinstance(step, int) else None,
        notes=tuple(notes),
        files=(path,),
    )


def _config_of(args: Mapping[str, Any], source: str) -> tuple[AndreaConfig, list[str]]:
    # Versions without the option `bias` had all biases and their own GELU with tanh.
    bias, activation = args.get("bias", True), _activation(args)
    try:
        check_switch("bias", bias)
        config = AndreaConfig(
            **sizes_of(args, SIZES),
            activation=activation,
            norm_affine="scale_bias" if bias else "scale",
            bias="all" if bias else "none",
        )
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    other = "gelu_tanh" if activation == "gelu_erf" else "gelu_erf"
    why = "nn.GELU of today's nanoGPT" if activation == "gelu_erf" else "new_gelu of old versions"
    return config, [f"the file names no activation: {activation} ({why}); --set activation={other}"]


def _activation(args: Mapping[str, Any]) -> Activation:
    return "gelu_erf" if "bias" in args else "gelu_tanh"


def _what_it_is(path: Path, content: object) -> str:
    if isinstance(content, Mapping):
        keys = ", ".join(shown(key) for key in list(content)[:4]) or "nothing"
        hint = "; for pytorch_model.bin, give the folder that holds its config.json"
        return f"{path}: a torch file with {keys}, wanted nanoGPT's 'model' and 'model_args'{hint}"
    return f"{path}: a torch file with a {type(content).__name__}, wanted nanoGPT's dict"

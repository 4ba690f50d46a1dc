"""GPT-2's names for our tensors and sizes, as transformers and nanoGPT write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from andrea_model.checkpoint.checkpoint import Array, Tensors
from andrea_model.checkpoint.checks import check_shapes
from andrea_model.config import AndreaConfig, check_size
from andrea_model.errors import ConfigError
from andrea_model.parameters import Shape, parameter_shapes

__all__ = ["has_own_head", "plain_names", "sizes_of", "to_canonical"]

NAMES: dict[str, str] = {
    "wte": "wte",
    "wpe": "wpe",
    "norm1": "ln_1",
    "attn.q": "attn.c_attn",
    "attn.k": "attn.c_attn",
    "attn.v": "attn.c_attn",
    "attn.o": "attn.c_proj",
    "norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "norm_f": "ln_f",
    "head": "lm_head",
}
FUSED = ("attn.q", "attn.k", "attn.v")  # side by side along c_attn's outputs
HEAD = "lm_head.weight"
PREFIXES = re.compile(r"^(_orig_mod\.|module\.)*(transformer\.)?")
# The causal mask, which old versions stored as a buffer of every layer.
MASKS = re.compile(r"^h\.\d+\.attn\.(bias|masked_bias)$")
CANONICAL = re.compile(r"^(?:blocks\.(?P<block>\d+)\.)?(?P<module>.+)\.(?P<leaf>weight|bias)$")


def plain_names(state: Mapping[str, Array]) -> dict[str, Array]:
    """Without the prefixes of wrappers, and without mask buffers."""
    plain = {PREFIXES.sub("", name): array for name, array in state.items()}
    return {name: array for name, array in plain.items() if not MASKS.match(name)}


def has_own_head(state: Tensors) -> bool:
    """Whether an output head is stored that differs from the token embedding."""
    if HEAD not in state or "wte.weight" not in state:
        return HEAD in state
    return not np.array_equal(state[HEAD], state["wte.weight"])


def to_canonical(
    state: Tensors, config: AndreaConfig, *, out_in: bool, source: str
) -> dict[str, Array]:
    """Views under our names. out_in: matrices are nn.Linear's [out, in], not Conv1D's [in, out].

    Raises:
        CheckpointError: a missing or unexpected tensor, or a wrong shape.
    """
    places = {name: _place(name) for name in parameter_shapes(config)}
    wanted = {
        theirs: _their_shape(shape, fused is not None, out_in and name.startswith("blocks."))
        for name, shape in parameter_shapes(config).items()
        for theirs, fused in [places[name]]
    }
    if config.tied_head:
        state = {name: array for name, array in state.items() if name != HEAD}
    check_shapes(state, wanted, source)
    result: dict[str, Array] = {}
    for name, (theirs, fused) in places.items():
        array = state[theirs]
        if out_in and name.startswith("blocks."):
            array = array.T  # a vector stays as it is
        if fused is not None:
            d = config.d_model
            array = array[..., fused * d : (fused + 1) * d]
        result[name] = array
    return result


def sizes_of(values: Mapping[Any, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Our sizes out of another format's configuration. names: their key → our field.

    Raises:
        ConfigError: one that is missing or impossible, by their key.
    """
    for theirs, ours in names.items():
        if values.get(theirs) is None:
            raise ConfigError(f"{theirs} is missing")
        check_size(ours, values[theirs], theirs)
    return {ours: values[theirs] for theirs, ours in names.items()}


def _place(name: str) -> tuple[str, int | None]:
    """Their name, and which third of it is ours where three share one tensor."""
    match = CANONICAL.match(name)
    assert match is not None
    block, module, leaf = match["block"], match["module"], match["leaf"]
    theirs = f"{NAMES[module]}.{leaf}" if block is None else f"h.{block}.{NAMES[module]}.{leaf}"
    return theirs, FUSED.index(module) if module in FUSED else None


def _their_shape(shape: Shape, fused: bool, transposed: bool) -> Shape:
    if fused:
        shape = (*shape[:-1], 3 * shape[-1])
    return shape[::-1] if transposed else shape

"""The tensors of a model: their names, shapes and canonical order, derived from the config alone.

Matrices are [in, out] everywhere (x @ W, as GPT-2's Conv1D), embeddings and head [vocab, d_model].
"""

import math

from andrea_model.config import AndreaConfig

__all__ = ["count_parameters", "parameter_shapes"]

Shape = tuple[int, ...]


def parameter_shapes(config: AndreaConfig) -> dict[str, Shape]:
    """Name → shape of every stored tensor, in the canonical order.

    A tied head is not stored: it is `wte.weight`.
    """
    d, mlp = config.d_model, config.mlp_dim
    fc1_out = 2 * mlp if config.activation == "swiglu" else mlp  # gate and value side by side
    bias_attn, bias_mlp = config.bias == "all", config.bias in ("mlp", "all")

    shapes: dict[str, Shape] = {
        "wte.weight": (config.vocab_size, d),
        "wpe.weight": (config.context_length, d),
    }
    for i in range(config.n_layer):
        block = f"blocks.{i}"
        shapes |= _norm(f"{block}.norm1", config)
        for name in ("q", "k", "v", "o"):
            shapes |= _linear(f"{block}.attn.{name}", d, d, bias_attn)
        shapes |= _norm(f"{block}.norm2", config)
        shapes |= _linear(f"{block}.mlp.fc1", d, fc1_out, bias_mlp)
        shapes |= _linear(f"{block}.mlp.fc2", mlp, d, bias_mlp)
    shapes |= _norm("norm_f", config)
    if not config.tied_head:
        shapes["head.weight"] = (config.vocab_size, d)
    return shapes


def count_parameters(config: AndreaConfig) -> int:
    """Number of stored parameters; a tied head counts once."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def _norm(name: str, config: AndreaConfig) -> dict[str, Shape]:
    leaves = {"scale_bias": ("weight", "bias"), "scale": ("weight",), "none": ()}
    return {f"{name}.{leaf}": (config.d_model,) for leaf in leaves[config.norm_affine]}


def _linear(name: str, n_in: int, n_out: int, bias: bool) -> dict[str, Shape]:
    weight: dict[str, Shape] = {f"{name}.weight": (n_in, n_out)}
    return weight | {f"{name}.bias": (n_out,)} if bias else weight

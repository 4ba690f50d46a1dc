"""The places inside a model that are looked at, and what their values are called in a graph.

One scheme for torch modules, ONNX values and TensorRT tensors: `embedding`, `blocks.0.norm1`,
`blocks.0.attn.q`, ..., `norm_f`, `logits`. A report calls each of them a tap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andrea_model.config import AndreaConfig

__all__ = ["LOGITS", "kind_of", "tap_names", "value_name", "width_of"]

LOGITS = "logits"
# In order of computation; "residual" taps carry the growth curve.
PARTS = {
    "pre": (
        "norm1", "attn.q", "attn.k", "attn.v", "attn.context", "attn.o", "attn_sum",
        "norm2", "mlp.activation", "mlp.fc2", "mlp_sum",
    ),
    "post": (
        "attn.q", "attn.k", "attn.v", "attn.context", "attn.o", "attn_sum", "norm1",
        "mlp.activation", "mlp.fc2", "mlp_sum", "norm2",
    ),
}  # fmt: skip
KINDS = {
    "embedding": "residual", "attn_sum": "residual", "mlp_sum": "residual",
    "norm1": "norm", "norm2": "norm", "norm_f": "norm", "activation": "activation",
}  # fmt: skip


def tap_names(config: AndreaConfig) -> list[str]:
    """All taps of a model, in the order in which they are computed."""
    parts = PARTS[config.norm_position]
    blocks = [f"blocks.{i}.{part}" for i in range(config.n_layer) for part in parts]
    return ["embedding", *blocks, "norm_f", LOGITS]


def kind_of(name: str) -> str:
    """residual, norm, activation, or projection."""
    return KINDS.get(name.split(".")[-1], "projection")


def value_name(tap: str) -> str:
    """The name of a tap's value in a graph."""
    return f"{tap}/merged" if tap.endswith(".attn.context") else tap


def width_of(tap: str, config: AndreaConfig) -> int:
    """The last size of a tap's value [B, T, width]."""
    if tap == LOGITS:
        return config.vocab_size
    return config.mlp_dim if tap.endswith(".mlp.activation") else config.d_model

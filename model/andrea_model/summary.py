"""What a checkpoint is, in figures: its parameters by part, and what its name promises."""

from __future__ import annotations

import math
from dataclasses import dataclass

from andrea_model.config import AndreaConfig
from andrea_model.parameters import parameter_shapes
from andrea_model.presets import LABELS

__all__ = ["Part", "label_note", "parts"]

# A tensor belongs to the first part whose key is in its name.
PARTS = (
    ("wte", "token embedding"),
    ("wpe", "position embedding"),
    (".attn.", "attention"),
    (".mlp.", "MLP"),
    ("norm", "norms"),
    ("head", "output head"),
)
LABEL_TOLERANCE = 0.1
GPT2_VOCAB = 50257


@dataclass(frozen=True)
class Part:
    """One row of the parameter table.

    Attributes:
        name: what it is.
        tensors: how many tensors are stored for it.
        parameters: how many numbers those hold.
    """

    name: str
    tensors: int
    parameters: int


def parts(config: AndreaConfig) -> list[Part]:
    """The parameter table; its sum is `count_parameters(config)`. A tied head has no row."""
    sizes: dict[str, list[int]] = {name: [] for _, name in PARTS}
    for tensor, shape in parameter_shapes(config).items():
        part = next(name for key, name in PARTS if key in tensor)
        sizes[part].append(math.prod(shape))
    return [Part(name, len(found), sum(found)) for name, found in sizes.items() if found]


def label_note(config: AndreaConfig) -> str | None:
    """Why a model of the ANDREA family is not as large as its name says, where it is not."""
    label = LABELS.get((config.d_model, config.n_layer))
    if label is None or config.vocab_size >= GPT2_VOCAB:
        return None
    total = sum(part.parameters for part in parts(config))
    if abs(total / (float(label.removesuffix("M")) * 1e6) - 1) < LABEL_TOLERANCE:
        return None
    embedding = config.vocab_size * config.d_model
    other = total + embedding if config.tied_head else total - embedding
    other_head = "untied" if config.tied_head else "tied"
    as_gpt2 = config.replace(vocab_size=GPT2_VOCAB, tied_head=True)
    gpt2_total = sum(part.parameters for part in parts(as_gpt2))
    return (
        f'"{label}" is a nominal name: this model has {total / 1e6:.1f}M parameters. '
        f"Its vocabulary of {config.vocab_size} takes {embedding / 1e6:.1f}M for an embedding "
        f"table (with the head {other_head} the total is {other / 1e6:.1f}M); with GPT-2's "
        f"{GPT2_VOCAB} ids the same blocks make {gpt2_total / 1e6:.1f}M."
    )

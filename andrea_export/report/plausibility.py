"""Whether a model reads real text at all: a wrong layout or tokenizer loads without an error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from andrea_export.report.texts import evaluation_data

if TYPE_CHECKING:
    from andrea_export.session import Session
    from andrea_model.checkpoint import Checkpoint
    from andrea_model.tokenizer import Tokenizer

__all__ = ["checkpoint_warnings", "quick_warnings"]

# A trained model is far below its vocabulary size; one whose weights are read wrongly is at it, or
# above. The tenth is for the chance of a short text.
UNIFORM_SHARE = 0.9
QUICK_TOKENS = 128


def checkpoint_warnings(checkpoint: Checkpoint, perplexity: float | None) -> list[str]:
    """What a checkpoint's own perplexity on real text says about how it was read."""
    vocab_size = checkpoint.config.vocab_size
    if checkpoint.format == "random":
        return ["random weights, not a trained model: perplexity means nothing"]
    if perplexity is None or perplexity < UNIFORM_SHARE * vocab_size:
        return []
    return [
        f"the checkpoint's own perplexity {perplexity:.0f} is no better than guessing among "
        f"{vocab_size} tokens: a wrong layout, orientation or tokenizer loads silently; "
        "try `andrea-export info CKPT --probe TEXT`"
    ]


def quick_warnings(session: Session, checkpoint: Checkpoint, tokenizer: Tokenizer) -> list[str]:
    """The same from one forward pass over a piece of the bundled text."""
    data = evaluation_data(checkpoint.config, tokenizer, windows=1, tokens=QUICK_TOKENS)
    [window] = data.windows
    if window.targets is None:
        return []
    logits = session.forward(window.ids[None])[0].astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(logits, window.targets[:, None], axis=-1)[:, 0]
    losses = np.log(np.exp(logits).sum(axis=-1)) - chosen
    return checkpoint_warnings(checkpoint, math.exp(min(float(losses.mean()), 700.0)))

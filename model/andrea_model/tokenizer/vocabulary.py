"""Whether a tokenizer and a model can belong together."""

from __future__ import annotations

from pathlib import Path

from andrea_model.config import AndreaConfig
from andrea_model.errors import TokenizerError
from andrea_model.tokenizer.protocol import Tokenizer

__all__ = ["check_vocabulary"]


def check_vocabulary(tokenizer: Tokenizer, config: AndreaConfig, path: Path | None = None) -> None:
    """Refuse a tokenizer with more ids than the model has rows. Fewer are fine: some models pad.

    Raises:
        TokenizerError: with both numbers, and the tokenizer's path where it is given.
    """
    if tokenizer.vocab_size > config.vocab_size:
        place = "" if path is None else f"{path}: "
        raise TokenizerError(
            f"{place}the tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size}: "
            "they do not belong together; give another with --tokenizer"
        )

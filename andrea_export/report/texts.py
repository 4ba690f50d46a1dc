"""What the models are compared on: windows of token ids, from real text where there is a tokenizer.

Random ids understate the trouble that half precision makes (on real text up to six times as many
NaN were seen, arXiv 2603.28708), so they are the last resort and are labelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.errors import InputError
from andrea_export.session.protocol import Array
from andrea_export.text_file import read_text
from andrea_model.config import AndreaConfig
from andrea_model.demo import heldout_text
from andrea_model.parameters import count_parameters
from andrea_model.tokenizer import Tokenizer, check_vocabulary

__all__ = ["TOKENS_PER_WINDOW", "EvaluationData", "Window", "evaluation_data"]


TOKENS_PER_WINDOW = 256
# As many windows as one forward pass can feed with about 1e11 multiplications (a second or two),
# within these bounds: 16 for andrea-nano, 4 for a 120M model. 1024 positions show a disagreement of
# 0.1 %, and a window more or less changes no verdict.
DEFAULT_MULTIPLICATIONS = 1e11
FEWEST_WINDOWS, MOST_WINDOWS = 4, 16
RANDOM_SEED = 0


@dataclass(frozen=True)
class Window:
    """One forward pass: `ids` int64 [T], and the tokens that really follow each, int64 [T].

    `targets` is None where the ids are no text.
    """

    ids: Array
    targets: Array | None


@dataclass(frozen=True)
class EvaluationData:
    """Windows, and where they come from.

    Attributes:
        source: for people: the file's path, or "random token ids: no tokenizer".
        is_text: whether perplexity means anything.
        windows: at least one, of equal length.
        notes: what differs from what was asked for.
    """

    source: str
    is_text: bool
    windows: tuple[Window, ...]
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_window(self) -> int:
        return len(self.windows[0].ids)

    @property
    def positions(self) -> int:
        return len(self.windows) * self.tokens_per_window

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "is_text": self.is_text,
            "windows": len(self.windows),
            "tokens_per_window": self.tokens_per_window,
        }


def evaluation_data(
    config: AndreaConfig,
    tokenizer: Tokenizer | None,
    *,
    text: Path | None = None,
    windows: int | None = None,
    tokens: int = TOKENS_PER_WINDOW,
) -> EvaluationData:
    """Windows spread evenly over a text; the same arguments give the same ones.

    Args:
        config: whose vocabulary and context length the ids must fit.
        tokenizer: None gives random ids.
        text: a UTF-8 file; the bundled held-out play if not given.
        windows: how many, fewer if the text ends before; None takes 4 to 16 by the model's size.
        tokens: length of each; the context length and the text bound it.

    Raises:
        InputError: a number below 1; a text that is missing, empty, not UTF-8 (with the byte
            offset) or shorter than 2 tokens; a text without a tokenizer.
        TokenizerError: a tokenizer with more ids than the model.
    """
    if tokens < 1 or (windows is not None and windows < 1):
        raise InputError(f"windows and tokens must be at least 1, not {windows} and {tokens}")
    tokens = min(tokens, config.context_length)
    windows = windows or _default_windows(config, tokens)
    if tokenizer is None:
        if text is not None:
            raise InputError(
                f"{text} cannot be used: the checkpoint has no tokenizer; give one with --tokenizer"
            )
        return _random_data(config, windows, tokens)
    check_vocabulary(tokenizer, config)
    path = text or heldout_text()
    ids = np.array(tokenizer.encode(read_text(path)), np.int64)
    if len(ids) < 2:
        raise InputError(f"{path} has {len(ids)} token: at least 2 are needed to predict one")
    cut = _cut(ids, windows, tokens)
    is_short = len(cut) < windows or len(cut[0].ids) < tokens
    note = (
        f"{path} has {len(ids)} tokens: {len(cut)} of {windows} windows, "
        f"of {len(cut[0].ids)} tokens each"
    )
    return EvaluationData(str(path), True, cut, (note,) if is_short else ())


def _default_windows(config: AndreaConfig, tokens: int) -> int:
    affordable = int(DEFAULT_MULTIPLICATIONS / (count_parameters(config) * tokens))
    return min(max(affordable, FEWEST_WINDOWS), MOST_WINDOWS)


def _cut(ids: Array, windows: int, tokens: int) -> tuple[Window, ...]:
    """Each window's last token is predicted too, so a window takes one id more than it feeds."""
    tokens = min(tokens, len(ids) - 1)
    windows = min(windows, (len(ids) - 1) // tokens)
    starts = np.linspace(0, len(ids) - 1 - tokens, windows).astype(int)
    return tuple(
        Window(ids[start : start + tokens], ids[start + 1 : start + 1 + tokens]) for start in starts
    )


def _random_data(config: AndreaConfig, windows: int, tokens: int) -> EvaluationData:
    random = np.random.default_rng(RANDOM_SEED)
    drawn = random.integers(0, config.vocab_size, (windows, tokens), np.int64)
    return EvaluationData(
        "random token ids: no tokenizer", False, tuple(Window(ids, None) for ids in drawn)
    )

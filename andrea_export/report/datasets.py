"""What a report runs the models on: real text first, then inputs that strain them.

The same checkpoint and options give the same ids, to the last one. Random draws are of PCG64 with
seed 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.report.texts import EvaluationData, evaluation_data
from andrea_export.session.protocol import Array
from andrea_export.text_file import read_text
from andrea_model.config import AndreaConfig
from andrea_model.demo import heldout_text
from andrea_model.tokenizer import Tokenizer

__all__ = [
    "ALIKE",
    "GREEDY",
    "Batch",
    "DataSet",
    "Prompts",
    "greedy_prompts",
    "stress_sets",
    "text_set",
]


# The set that prompts and their greedy continuations make.
GREEDY = "greedy texts"
REPEATED = "one token repeated"
# Here one position is much like the next: where two logits nearly tie, they flip in all of them at
# once, so a count of flips says nothing about how likely one is.
ALIKE = frozenset({GREEDY, REPEATED})

STRESS_TOKENS = 256
RANDOM_SEED = 0
ROWS = 4
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 8, 24, 48
QUICK_PROMPTS, QUICK_NEW_TOKENS = 4, 24


@dataclass(frozen=True)
class Batch:
    """One forward pass.

    Attributes:
        ids: int64 [B, T], padded on the right.
        lengths: int64 [B], how many tokens of each row are real.
        targets: int64 [B, T], the token that really follows each; None where the ids are no text.
    """

    ids: Array
    lengths: Array
    targets: Array | None = None

    @property
    def is_real(self) -> Array:
        """bool [B, T]."""
        real: Array = np.arange(self.ids.shape[1]) < self.lengths[:, None]
        return real


@dataclass(frozen=True)
class DataSet:
    """Batches of one kind.

    Attributes:
        name: short and stable: reports are compared by it.
        description: for people.
        is_text: whether perplexity means anything.
        batches: at least one.
    """

    name: str
    description: str
    is_text: bool
    batches: tuple[Batch, ...]

    @property
    def positions(self) -> int:
        return int(sum(batch.lengths.sum() for batch in self.batches))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "is_text": self.is_text,
            "forward_passes": len(self.batches),
            "rows": int(sum(len(batch.ids) for batch in self.batches)),
            "longest": int(max(batch.lengths.max() for batch in self.batches)),
            "positions": self.positions,
        }


@dataclass(frozen=True)
class Prompts:
    """Starts of texts that every model continues greedily: ids [B, P], `lengths` [B] of them."""

    ids: Array
    lengths: Array
    new_tokens: int


def text_set(
    config: AndreaConfig,
    tokenizer: Tokenizer | None,
    *,
    text: Path | None = None,
    windows: int | None = None,
    tokens: int | None = None,
) -> tuple[DataSet, EvaluationData]:
    """Windows over a text, each as long as the context if `tokens` is not given.

    Without a tokenizer the ids are random, and the set is no text.

    Raises:
        InputError, TokenizerError: see `evaluation_data`.
    """
    tokens = config.context_length if tokens is None else tokens
    data = evaluation_data(config, tokenizer, text=text, windows=windows, tokens=tokens)
    batches = tuple(
        Batch(
            window.ids[np.newaxis],
            np.array([len(window.ids)]),
            None if window.targets is None else window.targets[np.newaxis],
        )
        for window in data.windows
    )
    kind = "held-out play" if text is None and data.is_text else data.source
    description = f"{kind}: {len(batches)} windows of {data.tokens_per_window} tokens"
    return DataSet("text" if data.is_text else "random", description, data.is_text, batches), data


def text_ids(config: AndreaConfig, tokenizer: Tokenizer | None, text: Path | None) -> Array:
    """Ids to cut inputs from: real ones where there is a tokenizer, else random ones."""
    if tokenizer is not None:
        return np.array(tokenizer.encode(read_text(text or heldout_text())), np.int64)
    return _draw(config, 4 * config.context_length)


def stress_sets(config: AndreaConfig, ids: Array, *, quick: bool = False) -> tuple[DataSet, ...]:
    """Inputs at the edges of what a model is given.

    Args:
        config: whose vocabulary and context length the ids fit.
        ids: of the text, at least one.
        quick: leave out the full context.
    """
    width = min(STRESS_TOKENS, config.context_length)
    sets = [
        _single("one token", "the first token of the text, alone", ids[:1]),
        _single(REPEATED, f"that token, {width} times", np.repeat(ids[:1], width)),
        _single("random ids", f"{width} ids drawn evenly", _draw(config, width)),
        _every_id(config, width),
        _different_lengths(config, ids, width),
    ]
    if not quick and config.context_length > width:
        full = np.resize(ids, config.context_length)
        sets.append(_single("full context", f"{len(full)} tokens of the text", full))
    return tuple(sets)


def greedy_prompts(config: AndreaConfig, ids: Array, *, quick: bool = False) -> Prompts:
    """Prompts of different lengths from all over the text, with room left to go on."""
    rows = QUICK_PROMPTS if quick else PROMPTS
    longest = max(1, min(PROMPT_TOKENS, config.context_length // 2))
    new = min(QUICK_NEW_TOKENS if quick else NEW_TOKENS, config.context_length - longest)
    # From a third of the longest to the longest.
    lengths = np.linspace(max(1, longest // 3), longest, rows).astype(np.int64)
    starts = np.linspace(0, max(0, len(ids) - longest), rows).astype(np.int64)
    prompts = np.zeros((rows, longest), np.int64)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        prompts[row, :length] = np.resize(ids[start:], length)
    return Prompts(prompts, lengths, new)


def _draw(config: AndreaConfig, count: int) -> Array:
    return np.random.default_rng(RANDOM_SEED).integers(0, config.vocab_size, count, np.int64)


def _single(name: str, description: str, ids: Array) -> DataSet:
    return DataSet(name, description, False, (Batch(ids[np.newaxis], np.array([len(ids)])),))


def _every_id(config: AndreaConfig, width: int) -> DataSet:
    """Batches of four rows; the last row is filled up from the beginning."""
    order = np.random.default_rng(RANDOM_SEED).permutation(config.vocab_size).astype(np.int64)
    rows = np.resize(order, (math.ceil(config.vocab_size / width), width))
    parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
    return DataSet(
        "every vocabulary id",
        f"all {config.vocab_size} ids in random order, {ROWS} rows of {width} at a time",
        False,
        tuple(Batch(part, np.full(len(part), width)) for part in parts),
    )


def _different_lengths(config: AndreaConfig, ids: Array, width: int) -> DataSet:
    lengths = np.unique(np.linspace(1, width, ROWS).astype(np.int64))
    # Any id may stand in a pad: what it holds must change nothing.
    rows = np.resize(_draw(config, width * len(lengths)), (len(lengths), width))
    # Each from another place: positions that repeat each other would flip their tokens together.
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        row[:length] = np.resize(np.roll(ids, -number * width), length)
    listed = ", ".join(str(length) for length in lengths)
    return DataSet(
        "rows of different lengths",
        f"one batch with rows of {listed} tokens, padded on the right with random ids",
        False,
        (Batch(rows, lengths),),
    )

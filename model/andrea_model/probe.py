"""Which layout a `.bin` was written in, and how its token ids are ordered: judged by real text.

Neither is recorded in the file, and a wrong one loads silently. Only the right one predicts text
better than chance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from andrea_model.checkpoint import Checkpoint, Layout, open_checkpoint
from andrea_model.checkpoint.bin_file import tensors_of_bin
from andrea_model.checkpoint.checkpoint import Array
from andrea_model.checkpoint.loading import empty_model, fill_model
from andrea_model.config import AndreaConfig
from andrea_model.errors import InputError, TokenizerError
from andrea_model.tokenizer import ID_LAYOUTS, HarrisTokenizer, Tokenizer

if TYPE_CHECKING:
    from andrea_model.modules import Andrea

__all__ = ["ProbeResult", "probe_layouts"]

TEXT_LIMIT = 200_000  # characters; more would not change the ranking
# Windows of the text × tokens in each. One short window sorts out the layouts that read noise, and
# keeps 192 layouts of a 120M model under a minute on two cores; the finalists get a longer look.
SCREENING = (1, 32)
FINAL = (4, 128)
FINALISTS = 8

Pair = tuple[Layout | None, str | None]
Batch = Array  # (windows, tokens) int64


@dataclass(frozen=True)
class ProbeResult:
    """How well the weights predict the text when read in one way.

    layout: None where the format names its tensors. id_layout: a name of `ID_LAYOUTS`; None for a
    tokenizer that fixes its ids. loss: mean over `tokens` predictions, nats per token.
    uniform_loss: of a model that knows nothing, ln(vocab_size).
    """

    layout: Layout | None
    id_layout: str | None
    loss: float
    tokens: int
    uniform_loss: float

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))  # e^709 is the largest float

    @property
    def beats_uniform(self) -> bool:
        return self.loss < self.uniform_loss


def probe_layouts(
    path: str | Path,
    text: str,
    tokenizer: Tokenizer,
    *,
    config: AndreaConfig | None = None,
    settings: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[ProbeResult]:
    """Every layout and id layout that fits, the finalists first, each group by rising loss.

    All are screened on a short piece of the text, the best few then judged on a longer one: so only
    results with the same number of `tokens` compare.

    Args:
        path: a checkpoint; a format other than `.bin` has only its id layouts tried.
        text: real text in the model's language, a few hundred words or more.
        config, settings: as for `open_checkpoint`.
        progress: called with the steps done and their total.

    Raises:
        InputError: a text of fewer than two tokens.
        TokenizerError: a tokenizer with more tokens than the model.
        CheckpointError, ConfigError: as `open_checkpoint`.
    """
    checkpoint = open_checkpoint(path, config=config, settings=settings)
    if tokenizer.vocab_size > checkpoint.config.vocab_size:
        raise TokenizerError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model only {checkpoint.config.vocab_size}: they do not belong together"
        )
    is_bin = checkpoint.layout is not None
    layouts = Layout.all_for(checkpoint.config) if is_bin else [None]
    texts = _encoded(text, tokenizer)
    model = empty_model(checkpoint.config)
    total = len(layouts) + min(FINALISTS, len(layouts) * len(texts))
    done = 0

    def judge(
        layout: Layout | None, id_layouts: Sequence[str | None], size: tuple[int, int]
    ) -> None:
        nonlocal done
        fill_model(model, _tensors(checkpoint, layout))
        batches = [_windows(texts[name], *size, checkpoint.config) for name in id_layouts]
        losses = _losses(model, batches)
        uniform, predictions = math.log(checkpoint.config.vocab_size), _predictions(batches[0])
        for name, loss in zip(id_layouts, losses, strict=True):
            results[layout, name] = ProbeResult(layout, name, loss, predictions, uniform)
        done += 1
        if progress is not None:
            progress(done, total)

    results: dict[Pair, ProbeResult] = {}
    for layout in layouts:
        judge(layout, list(texts), SCREENING)
    screened = sorted(results, key=lambda pair: results[pair].loss)
    finalists: dict[Layout | None, list[str | None]] = defaultdict(list)
    for layout, name in screened[:FINALISTS]:
        finalists[layout].append(name)
    total = len(layouts) + len(finalists)
    for layout, names in finalists.items():
        judge(layout, names, FINAL)
    best = sorted(screened[:FINALISTS], key=lambda pair: results[pair].loss)
    return [results[pair] for pair in best + screened[FINALISTS:]]

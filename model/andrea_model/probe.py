"""Which layout a `.bin` was written in, and how its token ids are ordered: judged by real text.

Neither is recorded in the file, and a wrong one loads silently. Only the right one predicts text
better than chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from andrea_model.checkpoint import Checkpoint, Layout
from andrea_model.checkpoint.bin_file import arrange, map_weights
from andrea_model.checkpoint.checkpoint import Array, Tensors
from andrea_model.checkpoint.loading import empty_model, fill_model
from andrea_model.config import AndreaConfig
from andrea_model.errors import InputError, TokenizerError
from andrea_model.parameters import count_parameters
from andrea_model.tokenizer import ID_LAYOUTS, HarrisTokenizer, Tokenizer

if TYPE_CHECKING:
    from andrea_model.modules import Andrea

__all__ = ["ProbeResult", "probe_layouts"]

TEXT_LIMIT = 200_000  # characters; more would not change the ranking
# One short window sorts out the layouts that read noise. Right and wrong are some three nats apart,
# a token's loss varies by about as much: 16 tokens are enough, and small models can afford more.
SCREENING_WORK = 1_600_000_000  # tokens × parameters
SCREENING_TOKENS = (16, 64)  # at least, at most
FINAL = (4, 128)  # windows × tokens
FINALISTS = 24  # layouts that are right but for the order of q, k, v, o read almost as well
MOST_WORKERS = 8

Size = tuple[int, int]
Texts = Mapping[str | None, tuple[int | None, Sequence[int]]]
Job = tuple[Layout | None, Texts, Size]
Judge = Callable[[Sequence[Job]], Iterator[list["ProbeResult"]]]


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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no infinity: a loss that overflowed is None."""
        finite = math.isfinite(self.loss)
        return {
            "layout": None if self.layout is None else str(self.layout),
            "id_layout": self.id_layout,
            "loss": self.loss if finite else None,
            "perplexity": self.perplexity if finite else None,
            "tokens": self.tokens,
            "uniform_loss": self.uniform_loss,
        }


def probe_layouts(
    checkpoint: Checkpoint,
    text: str,
    tokenizer: Tokenizer | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[ProbeResult]:
    """Every layout and id layout that fits, the finalists first, each group by rising loss.

    All are screened on a short piece of the text, the best few then judged on a longer one: so only
    results with the same number of `tokens` compare.

    Args:
        checkpoint: its own layout is one of those tried; a format that names its tensors has only
            its id layouts tried.
        text: real text in the model's language, a few hundred words or more.
        tokenizer: the checkpoint's own if not given.
        progress: called with the steps done and their total.

    Raises:
        InputError: a text of fewer than two tokens.
        TokenizerError: no tokenizer, or one with more tokens than the model.
    """
    tokenizer = tokenizer or checkpoint.open_tokenizer()
    if tokenizer is None:
        raise TokenizerError(
            f"{checkpoint.path}: a probe needs a tokenizer, and none lies beside the weights: "
            "name one with --tokenizer FILE"
        )
    if tokenizer.vocab_size > checkpoint.config.vocab_size:
        raise TokenizerError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model only {checkpoint.config.vocab_size}: they do not belong together"
        )
    config, texts, readings = checkpoint.config, _encoded(text, tokenizer), _readings(checkpoint)
    least, most = SCREENING_TOKENS
    screening = (1, min(max(SCREENING_WORK // count_parameters(config), least), most))
    steps = len(readings) + min(FINALISTS, len(readings) * len(texts))
    done = 0

    def finished(batches: Iterable[list[ProbeResult]]) -> list[ProbeResult]:
        nonlocal done
        results: list[ProbeResult] = []
        for batch in batches:
            results += batch
            done += 1
            if progress is not None:
                progress(done, steps)
        return sorted(results, key=lambda result: result.loss)

    with _judges(config, readings) as judge:
        screened = finished(judge([(layout, texts, screening) for layout in readings]))
        best = [(found.layout, found.id_layout) for found in screened[:FINALISTS]]
        finals = finished(judge([(layout, {ids: texts[ids]}, FINAL) for layout, ids in best]))
    return finals + screened[FINALISTS:]


@contextmanager
def _judges(config: AndreaConfig, readings: Mapping[Layout | None, Tensors]) -> Iterator[Judge]:
    """Judges jobs side by side, in order.

    Each layout has one thread, instead of several within a matrix product: the products are so
    small that threads wait for each other (on two busy cores, 320 s against 59 s with one thread).
    """
    import torch

    threads = torch.get_num_threads()
    workers = min(threads, MOST_WORKERS)
    models: SimpleQueue[Andrea] = SimpleQueue()
    for _ in range(workers):
        models.put(empty_model(config))

    def judge_one(job: Job) -> list[ProbeResult]:
        layout, texts, size = job
        model = models.get()
        try:
            fill_model(model, readings[layout])
            return _judge(model, layout, texts, size)
        finally:
            models.put(model)

    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield lambda jobs: pool.map(judge_one, jobs)
    finally:
        torch.set_num_threads(threads)


def _encoded(text: str, tokenizer: Tokenizer) -> Texts:
    """Id layout → (id that starts a document, ids of the text)."""
    tokenizers: dict[str | None, Tokenizer] = {None: tokenizer}
    if isinstance(tokenizer, HarrisTokenizer):
        tokenizers = {name: tokenizer.with_id_layout(name) for name in ID_LAYOUTS}
    piece = text[:TEXT_LIMIT]
    texts = {name: (each.bos_id, each.encode(piece)) for name, each in tokenizers.items()}
    for _, ids in texts.values():
        if len(ids) < 2:
            raise InputError(f"the text has {len(ids)} tokens: a probe needs at least two")
    return texts


def _readings(checkpoint: Checkpoint) -> dict[Layout | None, Tensors]:
    """The tensors under every layout, all of them views of one memory map."""
    if checkpoint.layout is None or checkpoint.path is None:
        return {None: checkpoint.tensors}
    config = checkpoint.config
    flat = map_weights(checkpoint.path, count_parameters(config))
    return {layout: arrange(flat, config, layout) for layout in Layout.all_for(config)}


def _judge(model: Andrea, layout: Layout | None, texts: Texts, size: Size) -> list[ProbeResult]:
    """One forward pass over the windows of all id layouts together."""
    import torch
    from torch.nn import functional as F

    config = model.config
    batches = [_windows(bos, ids, size, config.context_length) for bos, ids in texts.values()]
    windows, length = batches[0].shape
    with torch.inference_mode():
        tokens = torch.from_numpy(np.concatenate(batches))
        logits = model(tokens[:, :-1])  # (id layouts · windows, length - 1, V)
        each = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        losses = each.view(len(texts), -1).double().mean(dim=1).tolist()
    return [
        ProbeResult(
            layout=layout,
            id_layout=id_layout,
            loss=loss if math.isfinite(loss) else math.inf,  # wrong weights may overflow
            tokens=windows * (length - 1),
            uniform_loss=math.log(config.vocab_size),
        )
        for id_layout, loss in zip(texts, losses, strict=True)
    ]


def _windows(bos: int | None, ids: Sequence[int], size: Size, context: int) -> Array:
    """Pieces spread evenly over the text, each after a BOS if there is one: (windows, tokens)."""
    count, length = size
    start = [] if bos is None else [bos]
    length = min(length, len(ids), context + 1 - len(start))
    starts = np.linspace(0, len(ids) - length, count + 2)[1:-1].astype(int)
    return np.array([[*start, *ids[at : at + length]] for at in starts], np.int64)

"""Every model on every data set, one forward pass after the other: no set's logits are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from andrea_export.errors import BackendError, InputError
from andrea_export.report.candidates import Way
from andrea_export.report.comparison import require_finite
from andrea_export.report.datasets import GREEDY, Batch, DataSet, Prompts
from andrea_export.report.detail import PlacedWindow
from andrea_export.report.layers import TapErrors
from andrea_export.report.taps import Taps
from andrea_export.session import Session
from andrea_export.session.protocol import Array

__all__ = ["Clock", "GreedyTexts", "Lane", "run_greedy", "run_layers", "run_set"]


# Positions compared at a time: their logits exist in float64 a few times over.
CHUNK_POSITIONS = 128


@dataclass
class Lane:
    """A baseline and those that are held against it: all of one dtype."""

    baseline: Way
    ways: list[Way]

    @property
    def all(self) -> list[Way]:
        return [self.baseline, *self.ways]


@dataclass
class Clock:
    """Counts forward passes. `tell` is called with (done, all)."""

    total: int
    tell: Callable[[int, int], None] | None = None
    done: int = field(default=0)

    def tick(self) -> None:
        self.done += 1
        if self.tell is not None:
            self.tell(min(self.done, self.total), self.total)

    def tick_more(self, left: int) -> None:
        """One more pass, of work whose size was not known before; about `left` are to come."""
        self.total = self.done + 1 + left
        self.tick()


def run_set(data: DataSet, reference: Session, lanes: Sequence[Lane], clock: Clock) -> None:
    """Gather the figures of one data set.

    Raises:
        InputError: the reference itself gives NaN or Inf.
    """
    vocab_size = reference.config.vocab_size
    for number, batch in enumerate(data.batches):
        truth = require_finite(reference.forward(batch.ids))
        clock.tick()
        logits = {}
        for way in _everyone(lanes):
            logits[id(way)] = _logits(way, data.name, batch, vocab_size)
            clock.tick()
        _compare(data.name, number, truth, batch.is_real, batch.targets, lanes, logits)


def _logits(way: Way, name: str, batch: Batch, vocab_size: int) -> Array | None:
    if name in way.skipped:
        return None
    try:
        return way.contender.forward(batch.ids, vocab_size)
    except InputError as error:  # an engine that is not built for this shape
        way.skipped[name] = str(error)
        return None


def _compare(
    name: str,
    number: int,
    truth: Array,
    is_real: Array,
    targets: Array | None,
    lanes: Sequence[Lane],
    logits: Mapping[int, Array | None],
) -> None:
    for window, at in _windows(number, truth, is_real, targets):
        for lane in lanes:
            own = _at(logits[id(lane.baseline)], at)
            for way in lane.all:
                values = _at(logits[id(way)], at)
                if values is not None:
                    way.gathered(name).add(window, values, own)


def _windows(
    number: int, truth: Array, is_real: Array, targets: Array | None
) -> Iterator[tuple[PlacedWindow, tuple[Array, Array]]]:
    rows, indexes = np.nonzero(is_real)
    for start in range(0, len(rows), CHUNK_POSITIONS):
        at = rows[start : start + CHUNK_POSITIONS], indexes[start : start + CHUNK_POSITIONS]
        wanted = None if targets is None else targets[at]
        yield PlacedWindow(truth[at], wanted, number, *at), at


def _at(logits: Array | None, at: tuple[Array, Array]) -> Array | None:
    return None if logits is None else logits[at]


def _everyone(lanes: Sequence[Lane]) -> list[Way]:
    return [way for lane in lanes for way in lane.all]


@dataclass(frozen=True)
class GreedyTexts:
    """What the reference goes on with after each prompt: ids int64 [B, P + S], S new ones each.

    Row b's new tokens stand at lengths[b], lengths[b] + 1, ...
    """

    ids: Array
    lengths: Array
    new_tokens: int


def run_greedy(
    prompts: Prompts, reference: Session, lanes: Sequence[Lane], clock: Clock
) -> GreedyTexts:
    """Let the reference go on greedily, and look at where the others would have parted from it.

    The others are fed the reference's own text: up to the first token that differs, that is what
    they would have fed themselves. A candidate with a cache does it step by step over that cache,
    the only place where a wrong slot shows.

    Raises:
        InputError: the reference itself gives NaN or Inf.
    """
    truth, texts = _continue(prompts, reference)
    clock.tick()
    vocab_size = reference.config.vocab_size
    logits = {}
    for way in _everyone(lanes):
        logits[id(way)] = _greedy_logits(way, prompts, texts, vocab_size)
        clock.tick()
        own = logits[id(way)]
        if own is not None:
            way.partings = _partings(own, texts)
    everywhere = np.ones(truth.shape[:2], bool)
    _compare(GREEDY, 0, truth, everywhere, None, lanes, logits)
    return texts


def _continue(prompts: Prompts, reference: Session) -> tuple[Array, GreedyTexts]:
    """Logits [B, S + 1, V] after the prompt and after each new token, and the texts."""
    rows, width = prompts.ids.shape
    ids = np.zeros((rows, width + prompts.new_tokens), np.int64)
    ids[:, :width] = prompts.ids
    reference.prefill(prompts.ids, prompts.lengths)
    all_logits = [require_finite(reference.logits).copy()]
    for step in range(prompts.new_tokens):
        token = all_logits[-1].argmax(-1)
        ids[np.arange(rows), prompts.lengths + step] = token
        reference.step(token)
        all_logits.append(require_finite(reference.logits).copy())
    return np.stack(all_logits, axis=1), GreedyTexts(ids, prompts.lengths, prompts.new_tokens)


def _greedy_logits(way: Way, prompts: Prompts, texts: GreedyTexts, vocab_size: int) -> Array | None:
    rows, steps = np.arange(len(texts.ids)), texts.new_tokens

    def stepping(session: Session) -> Array:
        session.prefill(prompts.ids, prompts.lengths)
        found = [session.logits.copy()]
        for step in range(steps):
            session.step(texts.ids[rows, texts.lengths + step])
            found.append(session.logits.copy())
        return np.stack(found, axis=1)

    def at_once(session: Session) -> Array:
        logits = session.forward(texts.ids)
        return logits[rows[:, None], texts.lengths[:, None] - 1 + np.arange(steps + 1)]

    try:
        return way.contender.run(
            stepping if way.steps else at_once, (len(rows), steps + 1, vocab_size)
        )
    except InputError as error:
        way.skipped[GREEDY] = str(error)
        return None


def _partings(logits: Array, texts: GreedyTexts) -> tuple[int | None, ...]:
    """Of each row the number of equal new tokens before the first other one."""
    rows = np.arange(len(texts.ids))[:, None]
    steps = np.arange(texts.new_tokens)
    theirs = texts.ids[rows, texts.lengths[:, None] + steps]
    before = logits[:, :-1]
    differs = (before.argmax(-1) != theirs) | ~np.isfinite(before).all(-1)
    return tuple(int(row.argmax()) if row.any() else None for row in differs)


def run_layers(
    windows: Sequence[Array],
    reference: Taps,
    others: Mapping[int, Callable[[Array], dict[str, Array]]],
    clock: Clock,
) -> tuple[dict[int, TapErrors], dict[int, str]]:
    """The errors of every tap over `windows` (ids [B, T]), by key.

    Args:
        windows: all models see all of them.
        reference: in float64.
        others: by a key of the caller's.
        clock: ticks once per model and window.

    Returns:
        What was gathered, and of each that has failed, why.
    """
    errors = {key: TapErrors() for key in others}
    failed: dict[int, str] = {}
    for ids in windows:
        truth = reference(ids)
        clock.tick()
        for key, taps in others.items():
            clock.tick()
            if key in failed:
                continue
            try:
                errors[key].add(truth, taps(ids))
            # Its figures have been taken: this must not end them. InputError: an engine that is
            # not built for this shape.
            except (BackendError, InputError) as error:
                failed[key] = str(error)
    return {key: each for key, each in errors.items() if key not in failed}, failed

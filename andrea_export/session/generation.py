"""Text from a session: prompts in, tokens out as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from andrea_export.errors import InputError, NonFiniteLogitsError
from andrea_export.session.protocol import Array, Session
from andrea_export.session.sampling import Sampler, Sampling
from andrea_export.session.text_stream import TextStream
from andrea_model.tokenizer import check_vocabulary

if TYPE_CHECKING:
    from andrea_model.tokenizer import Tokenizer

__all__ = ["Generation", "GenerationOptions", "generate", "generate_batch", "generate_file"]

OnText = Callable[[int, str], None]


@dataclass(frozen=True)
class GenerationOptions:
    """What to generate.

    Attributes:
        max_new_tokens: at most so many tokens for each prompt.
        sampling: how each token is chosen; greedy by default.
        stop: texts that end a row where they appear; they are not part of it.
        bos: begin with the vocabulary's BOS, where it has one.
        on_full: at the end of the context "stop", or "slide": forget the older half and go on.

    Raises:
        InputError: a value out of range.
    """

    max_new_tokens: int = 100
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    bos: bool = True
    on_full: Literal["stop", "slide"] = "stop"

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(
                f"the number of new tokens must be at least 1, not {self.max_new_tokens}"
            )
        if isinstance(self.stop, str):
            raise InputError(f"stop is a tuple of texts, as in stop=({self.stop!r},), not one text")
        if "" in self.stop:
            raise InputError("a stop string is empty: it would stop at once")
        if self.on_full not in ("stop", "slide"):
            raise InputError(f"on-full must be stop or slide, not {self.on_full!r}")


@dataclass(frozen=True)
class Generation:
    """What came out for one prompt.

    Attributes:
        prompt_ids: tokens of the prompt, with BOS where one was put before it.
        ids: the new tokens.
        text: the new tokens as text, up to a stop string; bytes that are not UTF-8 are U+FFFD.
        ended_by: "length" (as many as asked for), "bos" (the model began a new document), "stop"
            (a stop string) or "context" (no position is left).
        first_token_seconds: from the prompts to the first new token; 0 where there is none.
        seconds: from the prompts to this row's last new token.
    """

    prompt_ids: list[int]
    ids: list[int]
    text: str
    ended_by: str
    first_token_seconds: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return len(self.ids) / self.seconds if self.seconds else 0.0


def generate(
    session: Session,
    tokenizer: Tokenizer,
    prompt: str,
    options: GenerationOptions | None = None,
    *,
    on_text: Callable[[str], None] | None = None,
) -> Generation:
    """Continue one prompt; `on_text` gets each piece of new text, in whole characters.

    Raises:
        InputError, TokenizerError: see `generate_batch`.
    """

    def give(_: int, piece: str) -> None:
        if on_text is not None:
            on_text(piece)

    return generate_batch(session, tokenizer, [prompt], options, on_text=give)[0]


def generate_batch(
    session: Session,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    options: GenerationOptions | None = None,
    *,
    on_text: OnText | None = None,
    first_row: int = 0,
) -> list[Generation]:
    """Continue prompts of any lengths side by side, until every row has ended.

    Args:
        session: what runs the model.
        tokenizer: of the same vocabulary.
        prompts: texts to go on from.
        options: what to generate.
        on_text: called with (row, piece of new text).
        first_row: number of the first prompt, where these are part of a longer list. The random
            numbers of a row depend on the seed and its number, not on the rows beside it.

    Raises:
        InputError: an empty prompt, or one longer than the context (or an engine's cache).
        NonFiniteLogitsError: logits that are NaN or Inf; names the first module that gives them.
        TokenizerError: a tokenizer of another vocabulary.
    """
    options = options or GenerationOptions()
    check_vocabulary(tokenizer, session.config)
    if not prompts:
        return []
    rows = [
        _Row(prompt, tokenizer, options, session, first_row + number)
        for number, prompt in enumerate(prompts)
    ]
    started = time.perf_counter()
    _prefill(session, rows)
    while True:
        for number, token in _next_tokens(session, rows, options, tokenizer.vocab_size):
            piece = rows[number].take(token, time.perf_counter() - started)
            if piece and on_text is not None:
                on_text(number, piece)
        active = np.array([row.ended_by is None for row in rows])
        if not active.any():
            return [row.result() for row in rows]
        if any(row.is_full for row in rows):
            for row in rows:
                row.slide()
            _prefill(session, rows)
        else:
            session.step(np.array([row.window[-1] for row in rows]), active)


def generate_file(
    session: Session,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    options: GenerationOptions,
    *,
    batch_size: int = 8,
) -> Iterator[list[Generation]]:
    """Continue many prompts, `batch_size` at a time; each batch is given as it ends.

    Raises:
        InputError, TokenizerError: see `generate_batch`; all prompts are looked at first, and the
            message names the number of the one that is refused.
    """
    if batch_size < 1:
        raise InputError(f"batch-size must be at least 1, not {batch_size}")
    check_vocabulary(tokenizer, session.config)
    for number, prompt in enumerate(prompts, 1):
        try:
            _Row(prompt, tokenizer, options, session, number)
        except InputError as error:
            raise InputError(f"prompt {number}: {error}") from error
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        yield generate_batch(session, tokenizer, batch, options, first_row=first)


def _next_tokens(
    session: Session, rows: list[_Row], options: GenerationOptions, vocab_size: int
) -> Iterator[tuple[int, int]]:
    """(Number of a row, its next token) for the rows that have not ended."""
    # A model may have more rows than the tokenizer has tokens (nanoGPT pads its vocabulary).
    by_logits = options.sampling.needs_logits
    chosen = np.full(len(rows), -1) if by_logits else session.likeliest(vocab_size)
    logits = session.logits[:, :vocab_size] if (chosen < 0).any() else None
    for number, row in enumerate(rows):
        if row.ended_by is not None:
            continue
        try:
            token = chosen[number] if logits is None else row.choose(logits[number])
        except NonFiniteLogitsError as error:
            raise _located(error, session, row) from error
        yield number, int(token)


def _located(error: NonFiniteLogitsError, session: Session, row: _Row) -> NonFiniteLogitsError:
    window = np.array([row.window[-session.limit :]], np.int64)
    place = session.first_nonfinite(window)
    where = (
        f"the first is in the output of {place}"
        if place
        else f"{session.label} does not show which module gives them: run the checkpoint in torch"
    )
    return NonFiniteLogitsError(f"{error} after {len(row.window)} tokens: {where}")


def _prefill(session: Session, rows: list[_Row]) -> None:
    lengths = np.array([len(row.window) for row in rows])
    ids = np.zeros((len(rows), lengths.max()), np.int64)
    for row, target in zip(rows, ids, strict=True):
        target[: len(row.window)] = row.window
    session.prefill(ids, lengths)


class _Row:
    """One prompt and what follows it.

    Attributes:
        window: the tokens that the model sees: the prompt and what came after, or after a slide
            the newest of them.
    """

    def __init__(
        self,
        prompt: str,
        tokenizer: Tokenizer,
        options: GenerationOptions,
        session: Session,
        number: int,
    ) -> None:
        if not prompt:
            raise InputError("the prompt is empty: give at least one character")
        start = [tokenizer.bos_id] if options.bos and tokenizer.bos_id is not None else []
        self._prompt_ids = start + tokenizer.encode(prompt)
        self._limit = session.limit
        if len(self._prompt_ids) > self._limit:
            is_context = self._limit == session.config.context_length
            what = "the model's context length is" if is_context else f"{session.label} holds"
            raise InputError(f"the prompt has {len(self._prompt_ids)} tokens, {what} {self._limit}")
        self._tokenizer, self._options = tokenizer, options
        self._sampler = Sampler(options.sampling, number)
        self._stream = TextStream(tokenizer, options.stop)
        self._ids: list[int] = []
        self._first_seconds = self._seconds = 0.0
        self.window = list(self._prompt_ids)
        self.ended_by: str | None = None

    @property
    def is_full(self) -> bool:
        return self.ended_by is None and len(self.window) > self._limit

    def choose(self, logits: Array) -> int:
        """The next token, from logits [V] of those that the tokenizer knows."""
        return self._sampler.choose(logits, self._prompt_ids + self._ids)

    def take(self, token: int, seconds: float) -> str:
        """Go on by a token; the text that it brings to light."""
        if token == self._tokenizer.bos_id:
            return self._end("bos")
        if not self._ids:
            self._first_seconds = seconds
        self._seconds = seconds
        self._ids.append(token)
        self.window.append(token)
        piece = self._stream.push(token)
        if self._stream.stopped_by is not None:
            return piece + self._end("stop")
        if len(self._ids) == self._options.max_new_tokens:
            return piece + self._end("length")
        if self.is_full and self._options.on_full == "stop":
            return piece + self._end("context")
        return piece

    def slide(self) -> None:
        """Forget the older half of a full context; an ended row keeps what fits, unread."""
        keep = self._limit // 2 if self.is_full else self._limit
        self.window = self.window[-max(keep, 1) :]

    def _end(self, reason: str) -> str:
        self.ended_by = reason
        return self._stream.finish()

    def result(self) -> Generation:
        assert self.ended_by is not None
        return Generation(
            self._prompt_ids,
            self._ids,
            self._stream.text,
            self.ended_by,
            self._first_seconds,
            self._seconds,
        )

"""Text from a session: prompt in, tokens out as they come."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from andrea_export.errors import InputError, TokenizerError
from andrea_export.session.protocol import Session
from andrea_export.session.sampling import Sampler, Sampling

if TYPE_CHECKING:
    from andrea_model.tokenizer import Tokenizer

__all__ = ["Generation", "encode_prompt", "generate", "generate_ids"]

GREEDY = Sampling()


@dataclass(frozen=True)
class Generation:
    """What came out.

    Attributes:
        prompt_ids: tokens of the prompt, with BOS where one was put before it.
        ids: the new tokens.
        text: the new tokens as text; bytes that are not UTF-8 appear as U+FFFD.
        ended_by: "length" (as many as asked for), "bos" (the model began a new document) or
            "context" (no position is left).
        first_token_seconds: from the prompt to the first new token.
        seconds: from the prompt to the last new token.
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


def encode_prompt(prompt: str, tokenizer: Tokenizer, *, bos: bool = True) -> list[int]:
    """Token ids of a prompt, after BOS where the vocabulary has one and `bos` asks for it.

    Raises:
        InputError: an empty prompt, or text that cannot be UTF-8.
    """
    if not prompt:
        raise InputError("the prompt is empty: give at least one character")
    start = [tokenizer.bos_id] if bos and tokenizer.bos_id is not None else []
    return start + tokenizer.encode(prompt)


def generate(
    session: Session,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_new_tokens: int = 100,
    sampling: Sampling = GREEDY,
    bos: bool = True,
    on_text: Callable[[str], None] | None = None,
) -> Generation:
    """Continue `prompt`.

    Args:
        session: what runs the model.
        tokenizer: of the same vocabulary.
        prompt: text to go on from.
        max_new_tokens: at most so many.
        sampling: how each token is chosen; greedy by default.
        bos: begin with the vocabulary's BOS.
        on_text: called with each piece of new text, always whole characters.

    Raises:
        InputError: an empty prompt, one longer than the context, or a number below 1.
        TokenizerError: a tokenizer of another vocabulary.
    """
    if max_new_tokens < 1:
        raise InputError(f"the number of new tokens must be at least 1, not {max_new_tokens}")
    check_vocabulary(session, tokenizer)
    prompt_ids = encode_prompt(prompt, tokenizer, bos=bos)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ids: list[int] = []
    pieces: list[str] = []

    def give(piece: str) -> None:
        pieces.append(piece)
        if piece and on_text is not None:
            on_text(piece)

    started = time.perf_counter()
    first = last = started
    ended_by = "length"
    for token in generate_ids(session, prompt_ids, sampling):
        last = time.perf_counter()
        if token == tokenizer.bos_id:
            ended_by = "bos"
            break
        if not ids:
            first = last
        ids.append(token)
        give(decoder.decode(tokenizer.token_bytes(token)))
        if len(ids) == max_new_tokens:
            break
    else:
        ended_by = "context"
    give(decoder.decode(b"", final=True))
    return Generation(prompt_ids, ids, "".join(pieces), ended_by, first - started, last - started)


def generate_ids(
    session: Session, prompt_ids: list[int], sampling: Sampling = GREEDY
) -> Iterator[int]:
    """New tokens, one by one, until the context is full.

    Raises:
        InputError: a prompt longer than the context, or an id outside the vocabulary.
    """
    room = session.config.context_length - len(prompt_ids)
    if room < 0:
        raise InputError(
            f"the prompt has {len(prompt_ids)} tokens, the model's context length is "
            f"{session.config.context_length}"
        )
    sampler = Sampler(sampling)
    session.prefill(np.array([prompt_ids], np.int64))
    for remaining in range(room, -1, -1):
        token = sampler.choose(session.logits[0])
        yield token
        if remaining:
            session.step(np.array([token], np.int64))


def check_vocabulary(session: Session, tokenizer: Tokenizer) -> None:
    if tokenizer.vocab_size > session.config.vocab_size:
        raise TokenizerError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model {session.config.vocab_size}: "
            "they do not belong together; give another with --tokenizer"
        )

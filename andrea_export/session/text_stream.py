"""Tokens in, text out as it comes: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andrea_model.tokenizer import Tokenizer

__all__ = ["TextStream"]


class TextStream:
    """Turns tokens into text that may be shown at once.

    A character can be spread over tokens, and so can a stop string: text is held back while it may
    still become either.

    Attributes:
        text: all that was given out.
        stopped_by: the stop string that was met; what stands from it on is dropped.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.text = ""
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """The text that this token brings to light; may be empty."""
        return self._give(self._decoder.decode(self._tokenizer.token_bytes(token)), final=False)

    def finish(self) -> str:
        """What was still held back; half a character becomes U+FFFD."""
        return self._give(self._decoder.decode(b"", final=True), final=True)

    def _give(self, new: str, *, final: bool) -> str:
        if self.stopped_by is not None:
            return ""
        held = self._held + new
        found = [(held.find(stop), stop) for stop in self._stop if stop in held]
        if found:
            end, self.stopped_by = min(found)
            given, self._held = held[:end], ""
        else:
            keep = 0 if final else self._possible_start(held)
            given, self._held = held[: len(held) - keep], held[len(held) - keep :]
        self.text += given
        return given

    def _possible_start(self, held: str) -> int:
        """Length of the longest end of `held` that a stop string may begin with."""
        return max(
            (
                length
                for stop in self._stop
                for length in range(1, min(len(stop), len(held) + 1))
                if held.endswith(stop[:length])
            ),
            default=0,
        )

"""What every tokenizer promises, whatever file it came from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from andrea_model.errors import InputError

__all__ = ["Tokenizer", "checked_id", "text_to_bytes"]


class Tokenizer(Protocol):
    """Text to token ids and back. Ids are 0..vocab_size-1.

    `token_bytes` is the unit of streaming: a character may be spread over several tokens, so text
    that is printed as it comes goes through an incremental UTF-8 decoder, not through `decode`.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None:
        """The id that starts a document, or None where the vocabulary has none."""

    def encode(self, text: str | bytes) -> list[int]:
        """Token ids of the text, without BOS.

        Raises:
            InputError: a str with lone surrogates, or bytes that this tokenizer cannot take.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; b"" for BOS.

        Raises:
            InputError: an id outside the vocabulary.
        """

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The joined bytes of the tokens; raises as `token_bytes`."""

    def decode(self, ids: Iterable[int]) -> str:
        """The joined text; bytes that are not UTF-8 become U+FFFD. Raises as `token_bytes`."""

    def save(self, path: Path) -> None:
        """Write the one file from which `load_tokenizer` makes this tokenizer again.

        The same tokenizer always gives the same bytes; one that was loaded from Hugging Face's
        tokenizer.json gives the bytes of that file.
        """


def text_to_bytes(text: str | bytes) -> bytes:
    """UTF-8 bytes of a text; bytes pass through.

    Raises:
        InputError: a str with lone surrogates, which UTF-8 does not have.
    """
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text has a lone surrogate U+{ord(text[error.start]):04X} "
            f"at character {error.start}: it cannot be written as UTF-8"
        ) from None


def checked_id(token_id: int, vocab_size: int) -> int:
    """The id itself, if the vocabulary has it (a negative index would silently wrap around).

    Raises:
        InputError: an id outside 0..vocab_size-1.
    """
    if not 0 <= token_id < vocab_size:
        raise InputError(
            f"token id {token_id} is outside the vocabulary: ids go from 0 to {vocab_size - 1}"
        )
    return token_id

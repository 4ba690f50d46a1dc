"""Byte-level BPE from a GPT-2 folder, through the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_model.errors import InputError, TokenizerError, shown
from andrea_model.tokenizer.protocol import checked_id, text_to_bytes

if TYPE_CHECKING:
    import tokenizers

__all__ = ["HuggingFaceTokenizer", "byte_symbols"]

BOS_TOKEN = "<|endoftext|>"


def byte_symbols() -> dict[str, int]:
    """The printable character that GPT-2's vocabulary writes for each byte: symbol → byte value.

    Printable Latin-1 stands for itself, the other 68 bytes take U+0100 onwards in their order
    (`bytes_to_unicode` in OpenAI's gpt-2 `src/encoder.py`).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    symbols = {chr(value): value for value in printable}
    return symbols | {chr(256 + k): value for k, value in enumerate(others)}


class HuggingFaceTokenizer:
    """A `tokenizers.Tokenizer` with a byte-level vocabulary, behind the `Tokenizer` protocol.

    Special tokens that stand in a text (`<|endoftext|>`) become their ids, as in `transformers`;
    their bytes are b"" again on the way out.

    Args:
        inner: the library's tokenizer; its padding and truncation are turned off.
        source: the tokenizer.json it was made from, which `save` writes; without one, its own form.

    Raises:
        TokenizerError: the vocabulary is not byte-level, so its tokens have no exact bytes.
    """

    def __init__(self, inner: tokenizers.Tokenizer, source: bytes | None = None) -> None:
        # A file may ask for padding or truncation: the ids would not be those of the text.
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner
        self._source = source
        self._tokens = _token_table(inner)
        self._bos_id: int | None = inner.token_to_id(BOS_TOKEN)
        present = {token[0] for token in self._tokens.values() if len(token) == 1}
        self._missing = bytes(sorted(set(range(256)) - present))

    @property
    def vocab_size(self) -> int:
        return max(self._tokens) + 1

    @property
    def bos_id(self) -> int | None:
        return self._bos_id

    def encode(self, text: str | bytes) -> list[int]:
        """Token ids of the text, without BOS.

        Raises:
            InputError: lone surrogates, bytes that are not UTF-8, or a byte that the vocabulary
                has no token for (the library would drop it without a word).
        """
        data = text_to_bytes(text)
        lost = set(data).intersection(self._missing) if self._missing else None
        if lost:
            raise InputError(f"the tokenizer has no token for byte 0x{min(lost):02X} of the text")
        try:
            decoded = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"the text is not UTF-8: {error}") from None
        ids: list[int] = self._inner.encode(decoded, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        token = self._tokens.get(checked_id(token_id, self.vocab_size))
        if token is None:
            raise InputError(f"token id {token_id} is a gap in the vocabulary: it has no token")
        return token

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def save(self, path: Path) -> None:
        """Write a Hugging Face tokenizer.json."""
        source = self._source or self._inner.to_str(pretty=True).encode()
        Path(path).write_bytes(source)


def _token_table(inner: tokenizers.Tokenizer) -> dict[int, bytes]:
    """Id → bytes of every token; added tokens are written as plain text, not in byte symbols."""
    description: dict[str, Any] = json.loads(inner.to_str())
    if not _is_byte_level(description.get("decoder")):
        kind = (description.get("decoder") or {}).get("type", "none")
        raise TokenizerError(
            f"the tokenizer's decoder is {kind}, not ByteLevel: "
            "only GPT-2's byte-level vocabularies have exact bytes for every token"
        )
    symbols = byte_symbols()
    added = inner.get_added_tokens_decoder()
    table = {}
    for token, token_id in inner.get_vocab(with_added_tokens=True).items():
        if token_id in added:
            table[token_id] = b"" if added[token_id].special else token.encode("utf-8")
            continue
        foreign = next((character for character in token if character not in symbols), None)
        if foreign is not None:
            raise TokenizerError(
                f"token {token_id} ({shown(token)}) has the character {foreign!r}, "
                "which is no byte of a byte-level vocabulary"
            )
        table[token_id] = bytes(symbols[character] for character in token)
    if not table:
        raise TokenizerError("the vocabulary is empty")
    return table


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    return any(part.get("type") == "ByteLevel" for part in parts)

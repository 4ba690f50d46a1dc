"""Token ids as text that people can read; `#id` where there is no text."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from andrea_export.report.datasets import DataSet
from andrea_export.report.detail import WorstToken
from andrea_model.tokenizer import Tokenizer

__all__ = ["Speller"]

CONTEXT_TOKENS = 24


class Speller:
    """Writes a worst token with its context and with what each model would have said."""

    def __init__(self, tokenizer: Tokenizer | None, data: DataSet) -> None:
        self._tokenizer, self._data = tokenizer, data

    def __call__(self, token: WorstToken) -> dict[str, Any]:
        place = token.place
        ids = self._data.batches[place.window].ids[place.row, : place.index + 1].tolist()
        return {
            "kl": token.kl,
            "window": place.window,
            "row": place.row,
            "position": place.index,
            "context": self._spell(ids[-CONTEXT_TOKENS:]),
            "next": None if token.target is None else self._spell([token.target]),
            "reference": self._choices(token.reference),
            "candidate": self._choices(token.candidate),
        }

    def _choices(self, choices: tuple[tuple[int, float], ...]) -> list[dict[str, Any]]:
        return [
            {"id": id_, "text": self._spell([id_]), "probability": probability}
            for id_, probability in choices
        ]

    def _spell(self, ids: list[int]) -> str:
        # A vocabulary may have more ids than its tokenizer: GPT-2's is often padded to 50304.
        known = 0 if self._tokenizer is None else self._tokenizer.vocab_size
        parts = []
        for is_known, run in groupby(ids, lambda each: each < known):
            if is_known and self._tokenizer is not None:
                parts.append(self._tokenizer.decode(list(run)))
            else:
                parts += [f"#{each}" for each in run]
        return " ".join(parts)

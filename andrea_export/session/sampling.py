"""Choosing the next token from logits: once, above every runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from andrea_export.errors import InputError, NonFiniteLogitsError
from andrea_export.session.protocol import Array

__all__ = ["Sampler", "Sampling"]

# 1 to 1.5 are in use; beyond these bounds nothing is left of the logits.
PENALTIES = (0.01, 100.0)
SHORTEST = np.finfo(np.float64).tiny  # a random time of 0 would be no divisor


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: None takes the likeliest token (greedy); else logits are divided by it.
        top_k: only the k likeliest tokens.
        top_p: only the likeliest tokens that together reach this probability (nucleus sampling,
            Holtzman et al. 2020); applied after top_k.
        seed: of the random numbers.
        repetition_penalty: divides the positive logits of tokens that are there already, and
            multiplies their negative ones (Keskar et al. 2019, CTRL); 1 changes nothing.

    Raises:
        InputError: a value out of range.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < float("inf"):
            raise InputError(
                f"temperature must be a number above 0, not {self.temperature}; "
                "leave it out to take the likeliest token"
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top-k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top-p must be above 0 and at most 1, not {self.top_p}")
        if self.seed < 0:
            raise InputError(f"seed must be 0 or more, not {self.seed}")
        low, high = PENALTIES
        if not low <= self.repetition_penalty <= high:
            raise InputError(
                f"repetition-penalty must be from {low} to {high}, not {self.repetition_penalty}"
            )

    @property
    def is_greedy(self) -> bool:
        """Without temperature, top_k and top_p the likeliest token is taken."""
        return self.temperature is None and self.top_k is None and self.top_p is None

    @property
    def needs_logits(self) -> bool:
        """Whether more than the likeliest token of plain logits is asked for."""
        return not self.is_greedy or self.repetition_penalty != 1


class Sampler:
    """Draws tokens; the same seed, row and logits give the same tokens."""

    def __init__(self, sampling: Sampling, row: int = 0) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng([sampling.seed, row])

    def choose(self, logits: Array, present: Sequence[int] = ()) -> int:
        """The next token id, from logits [V]. Ties go to the lower id.

        `present` are the tokens that the repetition penalty counts as there already.

        Raises:
            NonFiniteLogitsError: a logit that is NaN or +Inf, or all are -Inf.
        """
        if not (logits < np.inf).all() or logits.max() == -np.inf:
            raise NonFiniteLogitsError(
                f"{np.count_nonzero(~np.isfinite(logits))} of {logits.size} logits are NaN or Inf"
            )
        if self._sampling.repetition_penalty != 1 and present:
            logits = self._penalized(logits, np.unique(present))
        if self._sampling.is_greedy:
            return int(logits.argmax())
        ids, probs = self._candidates(logits.astype(np.float64))
        # A race: of the times Exp(1)/p each is the shortest with its own probability p. Every
        # token has a random number of its own, so runtimes that round differently part only where
        # two tokens finish together. One number against a cumulative sum parted torch and ONNX
        # Runtime in 15 of 1800 texts of andrea-nano, the race in none.
        times = np.maximum(self._random.standard_exponential(logits.size), SHORTEST)
        return int(ids[(probs / times[ids]).argmax()])

    def _penalized(self, logits: Array, ids: Array) -> Array:
        penalty = self._sampling.repetition_penalty
        changed = logits.copy()
        changed[ids] = np.where(logits[ids] > 0, logits[ids] / penalty, logits[ids] * penalty)
        return changed

    def _candidates(self, logits: Array) -> tuple[Array, Array]:
        """Ids that may be drawn, and their probabilities (which need not sum to 1)."""
        # From the largest down: a tiny temperature then takes the others to -Inf, and not to NaN.
        with np.errstate(over="ignore"):
            scaled = (logits - logits.max()) / (self._sampling.temperature or 1.0)
        ids = np.arange(len(scaled))
        if (k := self._sampling.top_k or 0) and k < len(ids):
            # argpartition would take any of those that tie for the last place.
            least = np.partition(scaled, len(ids) - k)[len(ids) - k]
            above, equal = np.flatnonzero(scaled > least), np.flatnonzero(scaled == least)
            ids = np.concatenate([above, equal[: k - len(above)]])
        probs = np.exp(scaled[ids])
        probs /= probs.sum()
        if self._sampling.top_p is not None:
            order = np.argsort(-probs, kind="stable")
            # The token that crosses the limit is in: at least one always is.
            kept = order[: np.searchsorted(np.cumsum(probs[order]), self._sampling.top_p) + 1]
            ids, probs = ids[kept], probs[kept]
        return ids, probs

"""The cells of the benchmark: prefill and decode, for each batch and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from andrea_export.bench.options import BenchOptions
from andrea_export.errors import InputError

__all__ = ["Phase", "Workload", "plan"]

DEFAULT_CONTEXTS = (64, 512)

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Workload:
    """One cell.

    A prefill reads `context` tokens of each row at once and gives the token after them. Decode
    goes on token by token; its last step attends `context` tokens, its own among them.

    Attributes:
        steps: what is timed in a turn: prefills, or decode steps.
    """

    phase: Phase
    batch: int
    context: int
    steps: int

    @property
    def prompt(self) -> int:
        """Tokens of each row that go in before the timed steps; for a prefill, in each of them."""
        return self.context if self.phase == "prefill" else self.context - self.steps

    @property
    def mean_attended(self) -> float:
        """Tokens that a decode step attends, on average over the steps."""
        return self.context - (self.steps - 1) / 2

    def __str__(self) -> str:
        return f"{self.phase}, batch {self.batch}, context {self.context}"


def plan(options: BenchOptions, limits: Sequence[tuple[str, int]]) -> list[Workload]:
    """All cells, the cheapest first.

    Args:
        options: the lists.
        limits: name of each source, and the most tokens that a row of it can have.

    Raises:
        InputError: a context that one of the sources does not have.
    """
    most = min(limit for _, limit in limits)
    contexts = options.contexts or tuple({min(context, most) for context in DEFAULT_CONTEXTS})
    longest = max(contexts)
    for name, limit in limits:
        if longest > limit:
            raise InputError(f"context {longest} is beyond {name}, which takes {limit} tokens")
    workloads = []
    for batch in sorted(options.batches):
        for context in sorted(contexts):
            workloads.append(Workload("prefill", batch, context, options.prefills))
            # Decode needs a token to go on from.
            if context > 1:
                steps = min(options.tokens, context - 1)
                workloads.append(Workload("decode", batch, context, steps))
    return workloads

"""Running the reference and all that is held against it, one window after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from andrea_export.errors import BackendError, InputError
from andrea_export.progress import Progress
from andrea_export.report.metrics import Accumulator, ReferenceWindow
from andrea_export.report.texts import EvaluationData, Window
from andrea_export.session import Session
from andrea_export.session.protocol import Array

__all__ = ["Contender", "compare", "require_finite"]


@dataclass
class Contender:
    """Something that is compared with the reference, and what has been gathered about it.

    Attributes:
        label: what runs where, for people.
        session: None once `error` says why it cannot run.
        executes_dtype: whether the arithmetic is of the artefact's dtype.
        note: what a reader must know about the way it runs.
        error: why its part ended.
        crashed: whether it ended while running, having been opened well. died: it took its process
            with it, and must not be run again.
        seconds: of its forward passes.
        total: of what was seen until then.
        guard: entered around whatever the session does.
    """

    label: str
    session: Session | None = None
    executes_dtype: bool = True
    note: str | None = None
    error: str | None = None
    crashed: bool = False
    died: bool = False
    seconds: float = 0.0
    total: Accumulator = field(default_factory=Accumulator)
    guard: Callable[[], AbstractContextManager[None]] = nullcontext

    def open(self, opener: Callable[[], Session]) -> Contender:
        """Itself, with a session or with the reason why there is none."""
        try:
            with self.guard():
                self.session = opener()
        except BackendError as error:
            self.error = str(error)
        return self

    def logits(self, ids: Array, vocab_size: int) -> Array | None:
        """[T, V] of one window [T]; None if it fails, or failed before."""
        logits = self.forward(ids[np.newaxis], vocab_size)
        return None if logits is None else logits[0]

    def forward(self, ids: Array, vocab_size: int) -> Array | None:
        """[B, T, V] of ids [B, T]; None if it fails, or failed before."""
        return self.run(lambda session: session.forward(ids), (*ids.shape, vocab_size))

    def run(self, call: Callable[[Session], Array], expected: tuple[int, ...]) -> Array | None:
        """What `call` gives, timed; None if it fails, failed before, or is not as expected.

        Raises:
            InputError: it cannot take these ids, and may take others.
        """
        if self.session is None:
            return None
        started = time.perf_counter()
        try:
            with self.guard():
                logits = call(self.session)
        except InputError:
            raise
        # Whatever a candidate's graph makes a library raise is that candidate's failure.
        except Exception as error:
            said = str(error) if isinstance(error, BackendError) else repr(error)
            self._give_up(said)
            return None
        self.seconds += time.perf_counter() - started
        if logits.shape != expected:
            self._give_up(f"{self.label}: logits of shape {logits.shape}, not {expected}")
            return None
        return logits

    def _give_up(self, reason: str) -> None:
        self.error, self.crashed = reason, True
        self.close()

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None


def compare(
    data: EvaluationData,
    reference: Session,
    baseline: Contender,
    others: Sequence[Contender],
    progress: Progress | None = None,
) -> float | None:
    """Run all on every window, and gather each one's figures in its `total`.

    Args:
        data: the windows.
        reference: the truth, in float64.
        baseline: torch in the candidate's dtype; its NaN and Inf are held against nobody else.
        others: candidates.
        progress: called with (forward passes done, all of them).

    Returns:
        The reference's perplexity; None where the data is no text.

    Raises:
        InputError: the reference itself gives NaN or Inf.
    """
    vocab_size = reference.config.vocab_size
    passes = (2 + len(others)) * len(data.windows)
    done, loss, tokens = 0, 0.0, 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, passes)

    for window in data.windows:
        truth = _reference_window(reference, window)
        step()
        loss += truth.loss
        tokens += 0 if window.targets is None else len(window.targets)
        torch_logits = baseline.logits(window.ids, vocab_size)
        if torch_logits is not None:
            baseline.total.add(truth, torch_logits, torch_logits)
        step()
        for other in others:
            logits = other.logits(window.ids, vocab_size)
            if logits is not None:
                other.total.add(truth, logits, torch_logits)
            step()
    return math.exp(min(loss / tokens, 700.0)) if tokens else None  # e^709 is the largest float


def _reference_window(reference: Session, window: Window) -> ReferenceWindow:
    logits = require_finite(reference.forward(window.ids[np.newaxis]))
    return ReferenceWindow(logits[0], window.targets)


def require_finite(logits: Array) -> Array:
    """The reference's logits themselves.

    Raises:
        InputError: they have NaN or Inf, with which nothing can be compared.
    """
    finite = np.isfinite(logits)
    if not finite.all():
        raise InputError(
            f"the checkpoint itself gives NaN or Inf in float64 "
            f"({np.count_nonzero(~finite)} of {logits.size} logits): "
            "there is nothing to compare with"
        )
    return logits

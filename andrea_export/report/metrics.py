"""How far a candidate's logits are from the reference's: figures gathered window by window.

Nothing is kept but sums and extremes, so the size of a data set costs no memory (what `detail` adds
is a few numbers per position). Everything is computed in float64, whatever dtype the candidate has.

Shapes: N positions (batch and sequence together), V vocab_size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from andrea_export.session.protocol import Array

__all__ = ["Accumulator", "Figures", "ReferenceWindow"]


@dataclass(frozen=True)
class Figures:
    """A candidate against the reference, over all positions where its logits are finite.

    A position where a single logit is NaN or Inf is counted in `broken_positions` and left out of
    every other figure, which then speak of the remaining positions alone (NaN where none remains).

    Attributes:
        positions: positions seen, broken ones included.
        broken_positions: positions with at least one NaN or Inf.
        nan_count: logits that are NaN.
        inf_count: logits that are +Inf or -Inf.
        new_nonfinite: NaN and Inf where the baseline's logit is finite.
        max_abs_error: largest |candidate - reference| of any logit.
        rms_abs_error: root of the mean of (candidate - reference)².
        reference_rms: root of the mean of reference², to which the next two are relative.
        max_error: max_abs_error / reference_rms.
        rms_error: rms_abs_error / reference_rms.
        kl_mean: mean over positions of KL(reference‖candidate), in nats.
        kl_max: the largest of them.
        top1_disagreement: share of positions whose likeliest token differs. Ties go to the lowest
            id on both sides, as greedy decoding breaks them.
        perplexity: exp of the mean next-token cross-entropy; None without real text.
        reference_perplexity: the reference's own, over the same positions.
        loss_change: |log(perplexity / reference_perplexity)|, in nats per token.
    """

    positions: int
    broken_positions: int
    nan_count: int
    inf_count: int
    new_nonfinite: int
    max_abs_error: float
    rms_abs_error: float
    reference_rms: float
    max_error: float
    rms_error: float
    kl_mean: float
    kl_max: float
    top1_disagreement: float
    perplexity: float | None
    reference_perplexity: float | None
    loss_change: float | None

    @property
    def is_empty(self) -> bool:
        """Whether no position is left to speak of."""
        return self.positions == self.broken_positions

    def to_dict(self) -> dict[str, int | float | None]:
        """For JSON, which knows neither NaN nor Inf: both become null."""
        return {
            name: value if value is None or math.isfinite(value) else None
            for name, value in asdict(self).items()
        }


class ReferenceWindow:
    """The reference's logits of one window, and what every candidate's comparison needs of them.

    Args:
        logits: float64 [N, V].
        targets: int64 [N], the token that really came next; None where the ids are no text.
    """

    def __init__(self, logits: Array, targets: Array | None = None) -> None:
        self.logits = torch.from_numpy(logits)
        self.targets = None if targets is None else torch.from_numpy(targets)
        self.log_probs = torch.log_softmax(self.logits, dim=-1)
        self.probs = self.log_probs.exp()
        self.top1 = _lowest_argmax(self.logits)

    @property
    def loss(self) -> float:
        """Summed next-token cross-entropy in nats; 0 without targets."""
        if self.targets is None:
            return 0.0
        return -float(self.log_probs.gather(-1, self.targets.unsqueeze(-1)).sum())


class Accumulator:
    """Sums up one candidate over many windows."""

    def __init__(self) -> None:
        self._positions = self._broken = self._nan = self._inf = self._new_nonfinite = 0
        self._values = 0
        self._max_error = self._max_kl = 0.0
        self._squared_error = self._squared_reference = 0.0
        self._kl = self._loss = self._reference_loss = 0.0
        self._disagreements = self._with_target = 0

    def add(self, window: ReferenceWindow, logits: Array, baseline: Array | None = None) -> None:
        """Compare one window.

        Args:
            window: the reference.
            logits: the candidate's, [N, V] of any float dtype.
            baseline: the baseline's, [N, V]: what is NaN or Inf there is not held against the
                candidate. None: all of it is.
        """
        raw = torch.from_numpy(logits)
        self._positions += len(raw)
        finite = torch.isfinite(raw)
        keep = finite.all(dim=-1)
        if not keep.all():
            self._count_nonfinite(raw, finite, baseline)
            self._broken += int((~keep).sum())
            if not keep.any():
                return
            pick: Callable[[Tensor], Tensor] = lambda tensor: tensor[keep]  # noqa: E731
        else:
            pick = lambda tensor: tensor  # noqa: E731
        # A copy even of float64: the comparison subtracts in place.
        self._compare(window, pick(raw).to(torch.float64, copy=True), pick)

    def _count_nonfinite(self, raw: Tensor, finite: Tensor, baseline: Array | None) -> None:
        self._nan += int(torch.isnan(raw).sum())
        self._inf += int(torch.isinf(raw).sum())
        excused = ~torch.isfinite(torch.from_numpy(baseline)) if baseline is not None else False
        self._new_nonfinite += int((~finite & ~torch.as_tensor(excused)).sum())

    def _compare(
        self, window: ReferenceWindow, candidate: Tensor, pick: Callable[[Tensor], Tensor]
    ) -> None:
        reference, reference_log_probs = pick(window.logits), pick(window.log_probs)
        log_probs = torch.log_softmax(candidate, dim=-1)
        # Sum of p·(log p − log q): the differences are small, so what rounds off is ~1e-16 of
        # them. KL is never negative (Gibbs); a sum below 0 is that rounding.
        kl = (pick(window.probs) * (reference_log_probs - log_probs)).sum(dim=-1).clamp(min=0.0)
        self._kl += float(kl.sum())
        self._max_kl = max(self._max_kl, float(kl.max()))
        top1 = _lowest_argmax(candidate)
        self._disagreements += int((top1 != pick(window.top1)).sum())
        if window.targets is not None:
            targets = pick(window.targets).unsqueeze(-1)
            self._with_target += len(targets)
            self._loss -= float(log_probs.gather(-1, targets).sum())
            self._reference_loss -= float(reference_log_probs.gather(-1, targets).sum())
        self._observe(window, pick, candidate, log_probs, kl, top1)
        error = candidate.sub_(reference).view(-1)
        self._values += error.numel()
        self._max_error = max(self._max_error, float(error.abs().max()))
        self._squared_error += float(error.dot(error))
        flat = reference.reshape(-1)
        self._squared_reference += float(flat.dot(flat))

    def _observe(
        self,
        window: ReferenceWindow,
        pick: Callable[[Tensor], Tensor],
        candidate: Tensor,
        log_probs: Tensor,
        kl: Tensor,
        top1: Tensor,
    ) -> None:
        """For those who want more of the same positions than sums."""

    def figures(self) -> Figures:
        """The figures of all windows so far."""
        judged = self._positions - self._broken
        rms_error, reference_rms, kl, disagreement = (
            _divide(math.sqrt(self._squared_error), math.sqrt(self._values)),
            _divide(math.sqrt(self._squared_reference), math.sqrt(self._values)),
            _divide(self._kl, judged),
            _divide(self._disagreements, judged),
        )
        max_error = self._max_error if judged else math.nan
        loss = reference_loss = None
        if self._with_target:
            loss = self._loss / self._with_target
            reference_loss = self._reference_loss / self._with_target
        return Figures(
            positions=self._positions,
            broken_positions=self._broken,
            nan_count=self._nan,
            inf_count=self._inf,
            new_nonfinite=self._new_nonfinite,
            max_abs_error=max_error,
            rms_abs_error=rms_error,
            reference_rms=reference_rms,
            max_error=_divide(max_error, reference_rms),
            rms_error=_divide(rms_error, reference_rms),
            kl_mean=kl,
            kl_max=self._max_kl if judged else math.nan,
            top1_disagreement=disagreement,
            perplexity=_exp(loss),
            reference_perplexity=_exp(reference_loss),
            loss_change=(
                None if loss is None or reference_loss is None else abs(loss - reference_loss)
            ),
        )


def _lowest_argmax(logits: Tensor) -> Tensor:
    # torch leaves open which of several equal maxima it returns; numpy promises the first.
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def _divide(value: float, by: float) -> float:
    """0/0 of nothing at all is NaN; an error beside a reference of zeros is infinite."""
    if by == 0.0:
        return math.nan if value == 0.0 or math.isnan(value) else math.inf
    return value / by


def _exp(loss: float | None) -> float | None:
    if loss is None:
        return None
    return math.exp(loss) if loss < math.log(1e300) else math.inf

"""How much error is too much: the table, and the rule that reads it.

A figure fails if it is over its absolute limit, or if it is over `ratio` times the figure of torch
in the candidate's own dtype and over the floor too. A NaN or Inf where torch has none fails always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from andrea_export.report.metrics import Figures

__all__ = [
    "BUILT_IN",
    "LAYER_TOLERANCE",
    "TOLERANCE",
    "Failure",
    "Limit",
    "Tolerance",
    "allowed",
    "judge",
    "ratios",
]

Table = Mapping[str, Mapping[str, "Limit"]]


@dataclass(frozen=True)
class Limit:
    """absolute: never above this. ratio: nor above this times the baseline's, unless the figure
    stays below `floor`, where the two differ by chance alone."""

    absolute: float
    ratio: float
    floor: float


# The ratio is the sharp test: at one precision two correct implementations differ in the order of
# their sums alone. Measured over 240 honest exports (five shapes of 3 to 12 layers, weights of 1 to
# 10 times GPT-2's first size, attention in plain ops and as one op) and at the 120M shape,
# candidate / torch was: rms_error 0.84 to 1.19, max_error 0.61 to 1.54, kl_mean 0.71 to 1.55,
# kl_max 0.41 to 2.4. Hence
#   rms_error 1.5 in half precision, where rounding to the type is all of the noise; 3 in fp32,
#     where it is the order of the sums, which every library and processor chooses for itself;
#   max_error 3: the extreme of millions of values scatters more than their mean;
#   kl_mean 4, kl_max 9: a divergence grows as the square of the error;
#   top1_disagreement, loss_change 3: in long texts; `allowed` knows what chance does in short ones.
# The absolute limits stand where the result would be of no use whatever torch does: three times and
# more above the largest honest figure of those 240, some of which hardly hold still in bf16.
TOLERANCE: dict[str, dict[str, Limit]] = {
    "fp32": {
        # 1e-4 relative is what an fp32 export promises.
        "max_error": Limit(1e-4, 3.0, 1.5e-5),
        # Measured 3e-7 to 2e-6: the rounding of sums of a few hundred products, layer upon layer.
        "rms_error": Limit(1e-5, 3.0, 1.5e-6),
        # About (rms_error · logit RMS)² / 2, at a logit RMS of up to 10; torch's 1e-14 is noise.
        "kl_mean": Limit(1e-8, 4.0, 1e-10),
        "kl_max": Limit(1e-6, 9.0, 1e-9),
        # Two logits this close are equal for every purpose, but a long text may hold such pairs.
        "top1_disagreement": Limit(0.005, 3.0, 0.001),
        "loss_change": Limit(1e-5, 3.0, 1e-6),
    },
    "fp16": {
        # 11 bits: one rounding is 5e-4 relative, and logits of 10 times their RMS exist.
        # Measured up to 0.06.
        "max_error": Limit(0.2, 3.0, 5e-3),
        # Measured 9e-4 to 5e-3; 1.5e-3 at 120M with random weights.
        "rms_error": Limit(0.02, 1.5, 5e-4),
        "kl_mean": Limit(1e-3, 4.0, 1e-6),
        "kl_max": Limit(0.1, 9.0, 1e-4),
        # Measured up to 3 % on random weights, whose likeliest tokens nearly tie.
        "top1_disagreement": Limit(0.05, 3.0, 0.01),
        # A thousandth of a nat is a tenth of a percent of perplexity.
        "loss_change": Limit(0.01, 3.0, 1e-3),
    },
    "bf16": {
        # 8 bits: all of fp16's errors times 8, divergences times 64. Measured up to 0.42.
        "max_error": Limit(1.6, 3.0, 0.04),
        # Measured 7e-3 to 4e-2; 1.2e-2 at 120M with random weights.
        "rms_error": Limit(0.16, 1.5, 4e-3),
        "kl_mean": Limit(0.05, 4.0, 1e-4),
        "kl_max": Limit(1.0, 9.0, 5e-3),
        # Measured up to 9 %; 3 % at 120M with random weights.
        "top1_disagreement": Limit(0.2, 3.0, 0.03),
        "loss_change": Limit(0.05, 3.0, 5e-3),
    },
}

# The same for the inside of a model: the relative RMS error of each tap (`taps`). Measured over 567
# honest exports (seven shapes of 2 to 12 layers, three forms, weights of 1, 4 and 10 times GPT-2's
# first size), candidate / torch was above the floors at most 1.2 in fp32 and 1.3 in half precision;
# 1.5 with andrea-nano, where torch keeps the weights of attention in float32 and a plain graph
# rounds them. The largest errors were 3e-6, 8e-3 and 6e-2: the absolute limits leave room for
# deeper models.
LAYER_TOLERANCE: dict[str, Limit] = {
    # 1e-6 is the rounding of a sum of a few hundred products; below it the order of a sum decides.
    "fp32": Limit(1e-3, 3.0, 1e-6),
    # One rounding is 3e-4 RMS; a tap is some roundings away from its inputs.
    "fp16": Limit(0.05, 2.0, 6e-4),
    "bf16": Limit(0.4, 2.0, 5e-3),
}


@dataclass(frozen=True)
class Tolerance:
    """The tables that a verdict reads.

    Attributes:
        source: "built in", or the file that changed them.
        figures: dtype → figure → limit.
        layers: dtype → limit of every tap.
    """

    source: str
    figures: Table
    layers: Mapping[str, Limit]

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "limits": {
                dtype: {name: asdict(limit) for name, limit in limits.items()}
                | {"layer_rms_error": asdict(self.layers[dtype])}
                for dtype, limits in self.figures.items()
            },
        }


BUILT_IN = Tolerance("built in", TOLERANCE, LAYER_TOLERANCE)

# Two logits nearly tie here and there in any text. How many of them flip is a count, whose standard
# deviation is its root (Poisson); four deviations are not met by chance.
CHANCE_DEVIATIONS = 4
# A token's loss errs by the errors of its logit and of the normalizer, each about the RMS error;
# the mean over N tokens by that / sqrt(N).
LOSS_DEVIATIONS = CHANCE_DEVIATIONS * math.sqrt(2)
# The errors of one position's logits come from one hidden state and share its luck: below 16
# positions the ratio of two error figures scatters as 1/sqrt(N), that of two divergences as 1/N.
FEW_POSITIONS = 16
SCATTER = {"max_error": 0.5, "rms_error": 0.5, "kl_mean": 1.0, "kl_max": 1.0}


def allowed(name: str, baseline: Figures, dtype: str, table: Table = TOLERANCE) -> float:
    """The most that a figure may be beside the baseline's on the same data.

    Both kinds of limit speak of long texts: what chance does in a short one is allowed on top.
    """
    limit = table[dtype][name]
    own: float | None = getattr(baseline, name)
    if own is None or math.isnan(own):
        return limit.absolute
    judged = baseline.positions - baseline.broken_positions
    chance = unavoidable = 0.0
    if name == "top1_disagreement":
        flips = own * judged
        chance = (flips + CHANCE_DEVIATIONS * math.sqrt(flips + 1)) / judged
        unavoidable = CHANCE_DEVIATIONS / judged
    elif name == "loss_change":
        chance = unavoidable = LOSS_DEVIATIONS * baseline.rms_abs_error / math.sqrt(judged)
    few = max(1.0, FEW_POSITIONS / max(judged, 1))
    scatter = math.pow(few, SCATTER.get(name, 0.0))
    by_ratio = max(limit.ratio * scatter * own, limit.floor, chance)
    return min(by_ratio, max(limit.absolute, unavoidable))


@dataclass(frozen=True)
class Failure:
    """One figure that is out of tolerance.

    Attributes:
        figure: its name in `Figures`.
        kind: "absolute", "ratio" or "nonfinite".
        value: what was seen.
        limit: what it may be at most (for a ratio: ratio limit · baseline, in the figure's unit).
        baseline: torch's own figure in the same dtype.
    """

    figure: str
    kind: str
    value: float
    limit: float
    baseline: float | None

    def __str__(self) -> str:
        if self.kind == "nonfinite":
            return f"{self.value:.0f} logits are NaN or Inf where torch's are finite"
        if self.kind == "absolute":
            by = f"{self.value / self.limit:,.1f} times the limit {self.limit:.3g}"
            return f"{self.figure} {self.value:.3g} is {by}"
        return (
            f"{self.figure} {self.value:.3g} is over {self.limit:.3g}: "
            f"torch's own in this dtype is {self.baseline:.3g}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"message": str(self)}


def judge(
    figures: Figures, baseline: Figures, dtype: str, table: Table = TOLERANCE
) -> tuple[Failure, ...]:
    """What is out of tolerance, the non-finite first. Nothing: the candidate is as good as torch.

    Args:
        figures: the candidate's.
        baseline: torch's in the same dtype, on the same data.
        dtype: a row of the table.
        table: limits by dtype and figure.
    """
    failures = []
    if figures.new_nonfinite:
        count = float(figures.new_nonfinite)
        failures.append(Failure("new_nonfinite", "nonfinite", count, 0.0, None))
    for name, limit in table[dtype].items():
        value, own = getattr(figures, name), getattr(baseline, name)
        # NaN: no position was left to measure, which is for the caller to notice.
        if value is None or math.isnan(value):
            continue
        most = allowed(name, baseline, dtype, table)
        if value > most:
            useless = value > limit.absolute
            most = max(most, limit.absolute) if useless else most
            failures.append(Failure(name, "absolute" if useless else "ratio", value, most, own))
    return tuple(failures)


def ratios(figures: Figures, baseline: Figures) -> dict[str, float | None]:
    """Candidate / baseline of every figure that has limits; None where the baseline is 0."""
    result: dict[str, float | None] = {}
    for name in TOLERANCE["fp32"]:
        value, own = getattr(figures, name), getattr(baseline, name)
        known = value is not None and not math.isnan(value)
        result[name] = value / own if own and known else None
    return result

"""The least that a workload must move and multiply, counted from the model's config.

No runtime can be faster than the machine moves those bytes or multiplies those numbers. What an
implementation does beyond that (activations, masks, a cache read past its filled part) is not
counted: it is what the distance from the floor shows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from andrea_export.bench.workloads import Workload
from andrea_model.config import AndreaConfig
from andrea_model.parameters import parameter_shapes

__all__ = ["FORMULAS", "ITEM_BYTES", "SYMBOLS", "Work", "work_of"]

ITEM_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}

# For people; `work_of` computes just this.
FORMULAS = {
    "floor": "max(bytes / read rate, operations / matmul rate)",
    "weight bytes": "s · (P + V·d + rows of wte and wpe that are looked up · d)",
    "cache bytes": "s · 2·L·B·d · (tokens read + T written)",
    "logit bytes": "4 · B·V",
    "operations": "2·B·T · M + 4·L·B·d · (sum over the T tokens of what each attends) + 2·B·V·d",
}
SYMBOLS = (
    "B rows, T new tokens a row, L layers, d d_model, V vocabulary, s bytes of a number, "
    "P parameters of blocks and final norm, M those of P that are in matrices. A tied head is "
    "wte itself: no row of it is read twice."
)


@dataclass(frozen=True)
class Work:
    """What one timed step must do at least.

    Attributes:
        weight_bytes: each weight once; of the embedding tables only the rows that are looked up.
        cache_bytes: keys and values, read and written once.
        logit_bytes: float32 logits of each row's last token.
        operations: multiplications and additions in matrix products, counted apart.
    """

    weight_bytes: float
    cache_bytes: float
    logit_bytes: float
    operations: float

    @property
    def nbytes(self) -> float:
        return self.weight_bytes + self.cache_bytes + self.logit_bytes

    def seconds(self, read_rate: float, matmul_rate: float) -> float:
        """The floor, from bytes/s and operations/s."""
        return max(self.nbytes / read_rate, self.operations / matmul_rate)

    def bound(self, read_rate: float, matmul_rate: float) -> str:
        by_memory = self.nbytes / read_rate >= self.operations / matmul_rate
        return "memory" if by_memory else "matmul"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "bytes": self.nbytes}


def work_of(config: AndreaConfig, dtype: str, workload: Workload) -> Work:
    """The work of one timed step of `workload`, in a model of `dtype`."""
    item, rows, d = ITEM_BYTES[dtype], workload.batch, config.d_model
    new = workload.context if workload.phase == "prefill" else 1
    if workload.phase == "prefill":
        cached, attended = 0.0, new * (new + 1) / 2
    else:
        attended = workload.mean_attended
        cached = attended - 1
    # The tied head is wte itself, read whole: the rows that are looked up come with it.
    # A token that comes twice is read once: no more rows of wte than there are.
    looked_up = new if config.tied_head else new + min(rows * new, config.vocab_size)
    weights = _block_parameters(config) + config.vocab_size * d + looked_up * d
    return Work(
        weight_bytes=float(item * weights),
        cache_bytes=item * 2 * config.n_layer * rows * d * (cached + new),
        logit_bytes=4.0 * rows * config.vocab_size,
        operations=(
            2.0 * rows * new * _block_parameters(config, matrices_only=True)
            + 4.0 * config.n_layer * d * rows * attended
            + 2.0 * rows * config.vocab_size * d
        ),
    )


def _block_parameters(config: AndreaConfig, *, matrices_only: bool = False) -> int:
    """Parameters of blocks and final norm."""
    return sum(
        math.prod(shape)
        for name, shape in parameter_shapes(config).items()
        if name not in ("wte.weight", "wpe.weight", "head.weight")
        and (len(shape) == 2 or not matrices_only)
    )

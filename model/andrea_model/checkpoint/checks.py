"""Whether the tensors of a checkpoint are those of its config, and hold numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from andrea_model.checkpoint.checkpoint import Array, Tensors
from andrea_model.checkpoint.mapped_file import release_pages
from andrea_model.errors import CheckpointError, NonFiniteWeightsError
from andrea_model.parameters import Shape

__all__ = ["check_finite", "check_shapes", "find_nonfinite"]

FLOAT_TYPES = ("float64", "float32", "float16", "bfloat16")
CHUNK = 1 << 18  # values looked at in one go: they and their flags stay in a core's cache


def check_shapes(tensors: Tensors, wanted: Mapping[str, Shape], source: str) -> None:
    """Refuse tensors that are missing, unexpected, of another shape, or not floating-point.

    Raises:
        CheckpointError: names the first such tensor, what was seen and what was wanted.
    """
    missing = [name for name in wanted if name not in tensors]
    unexpected = [name for name in tensors if name not in wanted]
    if missing:
        shape = wanted[missing[0]]
        hint = f"; instead there is {unexpected[0]!r}" if unexpected else ""
        raise CheckpointError(
            f"{source}: tensor {missing[0]!r} of shape {shape} is missing "
            f"({len(missing)} of {len(wanted)} tensors are){hint}"
        )
    if unexpected:
        shape = tensors[unexpected[0]].shape
        raise CheckpointError(
            f"{source}: tensor {unexpected[0]!r} of shape {shape} is not part of the model that "
            f"the config describes ({len(unexpected)} such tensors)"
        )
    for name, shape in wanted.items():
        array = tensors[name]
        if array.shape != shape:
            raise CheckpointError(
                f"{source}: tensor {name!r} has shape {array.shape}, the config wants {shape}"
            )
        if array.dtype.name not in FLOAT_TYPES:
            raise CheckpointError(
                f"{source}: tensor {name!r} is {array.dtype.name}, "
                f"wanted one of {', '.join(FLOAT_TYPES)}"
            )


def find_nonfinite(tensors: Tensors) -> dict[str, int]:
    """How many values of each tensor are NaN or Inf, for the tensors that hold any."""
    counts = {name: _count_nonfinite(array) for name, array in tensors.items()}
    release_pages(tensors.values())
    return {name: count for name, count in counts.items() if count}


def check_finite(tensors: Tensors, source: str, *, allow: bool) -> tuple[str, ...]:
    """Refuse weights with NaN or Inf; if they are allowed, say so in a note.

    Raises:
        NonFiniteWeightsError: names the first tensor, and counts values and tensors.
    """
    bad = find_nonfinite(tensors)
    if not bad:
        return ()
    first = next(iter(bad))
    what = (
        f"tensor {first!r} holds {bad[first]:,} NaN or Inf values of {tensors[first].size:,}; "
        f"in all {sum(bad.values()):,} values in {len(bad)} of {len(tensors)} tensors"
    )
    if allow:
        return (f"weights are not finite: {what}",)
    raise NonFiniteWeightsError(f"{source}: {what} (--allow-nonfinite goes on all the same)")


def _count_nonfinite(array: Array) -> int:
    return sum(_count_in_chunk(chunk) for chunk in _chunks(array))


def _chunks(array: Array) -> Iterator[Array]:
    """Views of about CHUNK values each, in the order of memory; none of them is a copy."""
    if array.flags.forc:
        rows, per_chunk = array.ravel(order="K"), CHUNK
    else:  # a slice of GPT-2's c_attn: rows with gaps between them
        rows = array if abs(array.strides[0]) >= abs(array.strides[-1]) else array.T
        per_chunk = max(CHUNK * len(rows) // array.size, 1)
    return (rows[start : start + per_chunk] for start in range(0, len(rows), per_chunk))


def _count_in_chunk(chunk: Array) -> int:
    finite = np.isfinite(chunk)
    return 0 if finite.all() else int(finite.size - np.count_nonzero(finite))

"""What is bound to an engine for a call: profile, shapes and buffers. No driver is needed here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from andrea_export.errors import BackendError, InputError

__all__ = [
    "BindingPlan",
    "ProfileShapes",
    "TensorSpec",
    "buffers_for",
    "cache_pairs",
    "choose_profile",
    "plan",
]

PAST, PRESENT = "past_key_values.", "present."
Shape = tuple[int, ...]
Buffer = TypeVar("Buffer")
# Of one input: smallest, tuned for, largest.
ProfileShapes = Mapping[str, tuple[Shape, Shape, Shape]]


@dataclass(frozen=True)
class TensorSpec:
    """An input or output as the engine declares it; -1 is a dynamic axis."""

    name: str
    dtype: str
    shape: Shape
    is_input: bool


@dataclass(frozen=True)
class BindingPlan:
    """One way to call the engine.

    Attributes:
        profile: index of the optimization profile.
        shapes: of every input and output.
    """

    profile: int
    shapes: dict[str, Shape]


def plan(
    specs: Sequence[TensorSpec], profiles: Sequence[ProfileShapes], rows: int, width: int
) -> BindingPlan:
    """Shapes of all tensors for `rows` texts of `width` new tokens, and the profile for them.

    Args:
        specs: of the engine.
        profiles: of the engine, in its order.
        rows, width: of input_ids.

    Raises:
        InputError: no profile takes these shapes.
        BackendError: an input that this toolkit does not know.
    """
    shapes: dict[str, Shape] = {}
    for spec in specs:
        if spec.name == "input_ids":
            shapes[spec.name] = (rows, width)
        elif spec.name in ("past_length", "new_length"):
            shapes[spec.name] = (rows,)
        elif spec.name.startswith((PAST, PRESENT)):
            shapes[spec.name] = (rows, *spec.shape[1:])
        elif spec.name == "logits":
            # With --logits last the engine declares one token a row.
            tokens = spec.shape[1] if spec.shape[1] >= 0 else width
            shapes[spec.name] = (rows, tokens, spec.shape[2])
        elif not spec.is_input and len(spec.shape) == 3:
            # A layer's tensor that was made an output: TensorRT wants to write it all the same.
            shapes[spec.name] = (rows, width, spec.shape[2])
        else:
            raise BackendError(f"the engine has a tensor {spec.name}, which no session can give")
        if any(size < 0 for size in shapes[spec.name]):
            raise BackendError(f"{spec.name} has a dynamic axis that should be fixed: {spec.shape}")
    inputs = {spec.name: shapes[spec.name] for spec in specs if spec.is_input}
    return BindingPlan(choose_profile(profiles, inputs), shapes)


def choose_profile(profiles: Sequence[ProfileShapes], shapes: Mapping[str, Shape]) -> int:
    """The profile that takes these shapes and was tuned for the nearest ones.

    Nearness is measured in factors, so that 1 token is as far from 8 as 128 is from 1024.

    Raises:
        InputError: none takes them; names the input, and what each profile would take.
    """
    fitting = [
        (_distance(profile, shapes), index)
        for index, profile in enumerate(profiles)
        if all(_fits(profile[name], shape) for name, shape in shapes.items())
    ]
    if fitting:
        return min(fitting)[1]
    name = next(
        (n for n, s in shapes.items() if not any(_fits(p[n], s) for p in profiles)), "input_ids"
    )
    taken = " or ".join(f"{_text(p[name][0])} to {_text(p[name][2])}" for p in profiles)
    raise InputError(
        f"{name} of shape {_text(shapes[name])} fits no optimization profile of the engine, which "
        f"takes {taken}: build it with --batch and --sequence that reach further"
    )


def cache_pairs(specs: Sequence[TensorSpec]) -> dict[str, str]:
    """Each cache input with the output that updates it: both must be one buffer.

    Raises:
        BackendError: an input without its output, or a pair of different types or shapes.
    """
    by_name = {spec.name: spec for spec in specs}
    pairs = {}
    for name, past in by_name.items():
        if not name.startswith(PAST):
            continue
        present = by_name.get(name.replace(PAST, PRESENT))
        if present is None or (present.dtype, present.shape) != (past.dtype, past.shape):
            raise BackendError(
                f"{name} is {past.dtype} {list(past.shape)}, its updated form is "
                + ("missing" if present is None else f"{present.dtype} {list(present.shape)}")
                + ": the cache cannot be updated in place"
            )
        pairs[name] = present.name
    return pairs


def buffers_for(
    plan: BindingPlan,
    caches: Mapping[str, Buffer],
    pairs: Mapping[str, str],
    new: Callable[[str, Shape], Buffer],
) -> dict[str, Buffer]:
    """A buffer for every tensor of a plan.

    Args:
        plan: the shapes.
        caches: buffers by input, which are there already.
        pairs: see `cache_pairs`: a cache's updated form gets the buffer of its input.
        new: makes a buffer for all others, from name and shape.
    """
    buffers = dict(caches)
    for past, present in pairs.items():
        buffers[present] = caches[past]
    for name, shape in plan.shapes.items():
        if name not in buffers:
            buffers[name] = new(name, shape)
    return buffers


def _fits(bounds: tuple[Shape, Shape, Shape], shape: Shape) -> bool:
    low, _, high = bounds
    return len(low) == len(shape) and all(
        a <= size <= b for a, size, b in zip(low, shape, high, strict=True)
    )


def _distance(profile: ProfileShapes, shapes: Mapping[str, Shape]) -> float:
    return sum(
        abs(math.log(size / tuned))
        for name, shape in shapes.items()
        for size, tuned in zip(shape, profile[name][1], strict=True)
    )


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))

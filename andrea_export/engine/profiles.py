"""Optimization profiles: read from text, filled for every input, and checked before the build.

TensorRT itself reports a wrong profile late and without saying which axis is meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from andrea_export.errors import EngineError

__all__ = [
    "Bounds",
    "NetworkInput",
    "Profile",
    "Range",
    "check_profile",
    "default_profiles",
    "fill_profile",
    "parse_profile",
]

Shape = tuple[int, ...]
CORNERS = ("min", "opt", "max")
BATCH, SEQUENCE = "batch", "sequence"
# Enough for a prompt, and no more than a fixed cost of building.
USUAL_BATCH, USUAL_SEQUENCE = 8, 128
# TensorRT counts in 32 bits here and there, and takes nothing longer as the end of a range.
LARGEST_AXIS = 2**31 - 1


@dataclass(frozen=True)
class Range:
    """Sizes of one axis: the smallest, the one to tune for, the largest."""

    min: int
    opt: int
    max: int

    @classmethod
    def parse(cls, text: str, option: str) -> Range:
        """`1:128:1024`, or one number for all three.

        Raises:
            EngineError: not of that form, zero, or not in ascending order.
        """
        parts = text.split(":")
        if len(parts) == 1:
            parts *= 3
        if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
            raise EngineError(f"{option} takes MIN:OPT:MAX or one number, not {text!r}")
        sizes = cls(*(int(part) for part in parts))
        sizes.check(option)
        return sizes

    def check(self, what: str) -> None:
        if self.min < 1:
            raise EngineError(f"{what}: min is {self.min}, an axis has at least 1")
        for low, high in (("min", "opt"), ("opt", "max")):
            if getattr(self, low) > getattr(self, high):
                raise EngineError(
                    f"{what}: {low} {getattr(self, low)} is above {high} {getattr(self, high)}"
                )
        if self.max > LARGEST_AXIS:
            raise EngineError(f"{what}: max {self.max} is above {LARGEST_AXIS}, the longest axis")

    def __str__(self) -> str:
        return f"{self.min}:{self.opt}:{self.max}"


@dataclass(frozen=True)
class Bounds:
    """Shapes of one input: smallest, the one to tune for, largest."""

    min: Shape
    opt: Shape
    max: Shape

    def axis(self, index: int) -> Range:
        return Range(self.min[index], self.opt[index], self.max[index])


@dataclass(frozen=True)
class NetworkInput:
    """An input of the graph: a size, or the name of an axis that is dynamic, per dimension."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} [{', '.join(map(str, self.shape))}]"


Profile = dict[str, Bounds]


def parse_profile(text: str) -> Profile:
    """`input_ids=1x1:1x128:8x1024,other=...`: shapes of some inputs, the smallest first.

    Raises:
        EngineError: not of that form.
    """
    profile: Profile = {}
    for part in text.split(","):
        name, equals, shapes = (piece.strip() for piece in part.partition("="))
        corners = shapes.split(":")
        if not (name and equals) or len(corners) not in (1, 3):
            raise EngineError(
                f"a profile is NAME=MIN:OPT:MAX with shapes like 8x1024, not {part.strip()!r}"
            )
        if name in profile:
            raise EngineError(f"the profile names {name} twice")
        parsed = [_parse_shape(corner, name) for corner in corners]
        profile[name] = Bounds(*(parsed if len(parsed) == 3 else parsed * 3))
    return profile


def _parse_shape(text: str, name: str) -> Shape:
    parts = text.strip().lower().split("x")
    if not all(part.isdecimal() for part in parts):
        raise EngineError(f"profile of {name}: a shape is sizes joined by x, as 8x1024, not {text}")
    return tuple(int(part) for part in parts)


def default_profiles(
    inputs: Sequence[NetworkInput],
    *,
    sequence_limit: int | None,
    batch: Range | None = None,
    sequence: Range | None = None,
) -> list[dict[str, Range]]:
    """Ranges of the axes `batch` and `sequence` for a model's usual work, one dict per profile.

    A graph with a cache gets two: single tokens, which are most of the work, and prompts.

    Args:
        inputs: of the graph.
        sequence_limit: the longest sequence that the model can take; None where it is not known.
        batch, sequence: what was asked for; a sequence that was asked for is the only profile.

    Raises:
        EngineError: one was asked for, and the graph has no such axis.
    """
    for axis, asked in ((BATCH, batch), (SEQUENCE, sequence)):
        if asked is not None and not any(axis in wanted.shape for wanted in inputs):
            shapes = ", ".join(map(str, inputs)) or "none"
            raise EngineError(f"--{axis}: the graph has no axis called {axis} (inputs: {shapes})")
    longest = sequence_limit or USUAL_SEQUENCE
    prompts = sequence or Range(1, min(USUAL_SEQUENCE, longest), longest)
    batch = batch or Range(1, 1, USUAL_BATCH)
    has_cache = any(len(i.shape) == 4 and i.name.startswith("past_key_values.") for i in inputs)
    lengths = [Range(1, 1, 1), prompts] if has_cache and sequence is None else [prompts]
    return [{BATCH: batch, SEQUENCE: length} for length in lengths]


def fill_profile(
    inputs: Sequence[NetworkInput],
    axes: Mapping[str, Range],
    given: Profile | None = None,
    asked: Collection[str] = (),
) -> Profile:
    """Shapes for every input, from the ranges of its axes.

    What is given for one input says the ranges of its axes for all others too.

    Args:
        inputs: of the graph.
        axes: range of each dynamic axis by name; what is given wins over it.
        given: shapes of some inputs.
        asked: axes whose range was asked for by its own option: what is given must agree.

    Raises:
        EngineError: an unknown input, a shape of another rank, two that disagree about an axis, or
            an axis of which nothing is known.
    """
    given = given or {}
    by_name = {wanted.name: wanted for wanted in inputs}
    ranges = dict(axes)
    told = {axis: f"--{axis}" for axis in asked}
    for name, bounds in given.items():
        if name not in by_name:
            raise EngineError(f"the profile names {name}, the graph has {', '.join(by_name)}")
        shape = by_name[name].shape
        for corner in CORNERS:
            if len(getattr(bounds, corner)) != len(shape):
                raise EngineError(
                    f"profile of {by_name[name]}: {corner} has {len(getattr(bounds, corner))} "
                    f"sizes, the input has {len(shape)} axes"
                )
        for index, axis in enumerate(shape):
            if isinstance(axis, int):
                continue
            seen = bounds.axis(index)
            if axis in told and ranges[axis] != seen:
                raise EngineError(
                    f"axis {axis} is {ranges[axis]} in {told[axis]} and {seen} in {name}: "
                    "one axis has one range"
                )
            ranges[axis], told[axis] = seen, name
    return {wanted.name: given.get(wanted.name) or _bounds(wanted, ranges) for wanted in inputs}


def _bounds(wanted: NetworkInput, ranges: Mapping[str, Range]) -> Bounds:
    for axis in wanted.shape:
        if isinstance(axis, str) and axis not in ranges:
            raise EngineError(
                f"nothing is known about axis {axis} of {wanted}: "
                f'give its shapes with --profile "{wanted.name}=MIN:OPT:MAX"'
            )
    return Bounds(
        *(
            tuple(
                axis if isinstance(axis, int) else int(getattr(ranges[axis], corner))
                for axis in wanted.shape
            )
            for corner in CORNERS
        )
    )


def check_profile(
    profile: Profile, inputs: Iterable[NetworkInput], limits: Mapping[str, tuple[int, str]]
) -> None:
    """Refuse shapes that the graph cannot take, naming input and axis.

    Args:
        profile: shapes of every input.
        inputs: of the graph.
        limits: by axis name, the largest size and what sets it.

    Raises:
        EngineError: min above opt or opt above max, a size of zero, a size that differs from a
            static axis, or one above its limit.
    """
    for wanted in inputs:
        bounds = profile[wanted.name]
        for index, axis in enumerate(wanted.shape):
            sizes = bounds.axis(index)
            what = f"profile of {wanted}, axis {axis if isinstance(axis, str) else index}"
            sizes.check(what)
            if isinstance(axis, int) and sizes != Range(axis, axis, axis):
                raise EngineError(f"{what}: {sizes} was asked for, the graph has {axis} there")
            limit, reason = limits.get(str(axis), (sizes.max, ""))
            if sizes.max > limit:
                raise EngineError(f"{what}: max {sizes.max} is above {limit}, {reason}")

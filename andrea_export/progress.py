"""How every stage tells how far it is."""

from collections.abc import Callable

__all__ = ["Progress"]

# Called with (done, total), in whatever unit the stage counts.
Progress = Callable[[int, int], None]

"""What commands print with: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["note", "print_json", "progress_bar", "stdout"]

# A bar for work that is over at once would only flicker.
SHOW_AFTER_SECONDS = 2.0


def stdout(width: int = 100) -> Console:
    """A console for tables. Into a pipe it keeps its width, so that no column is lost."""
    from rich.console import Console as RichConsole

    class Console(RichConsole):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1: a model out of tolerance

    # No markup: what is printed holds paths and texts of other people, brackets and all.
    return Console(width=None if sys.stdout.isatty() else width, highlight=False, markup=False)


def note(text: str) -> None:
    """One line for the person at the terminal."""
    print(text, file=sys.stderr)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """JSON on stdout. Where stdout cannot write every letter they go as escapes, never as "?"."""
    everything = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    print(json.dumps(value, indent=indent, ensure_ascii=not everything), flush=True)


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function of (done, total). Draws on stderr, on a terminal, after two seconds."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    import time

    from rich.console import Console
    from rich.progress import Progress

    started = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, visible=False)

        def advance(done: int, total: int) -> None:
            late = time.monotonic() - started > SHOW_AFTER_SECONDS
            bar.update(task, completed=done, total=total, visible=late)

        yield advance

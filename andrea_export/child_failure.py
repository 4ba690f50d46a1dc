"""How a child process fails: the errors that it sends, and the death that it dies."""

from __future__ import annotations

import signal
from typing import IO, Any

import andrea_export.errors as errors
from andrea_export.errors import AndreaExportError

__all__ = ["as_event", "as_exception", "how_it_ended", "last_words"]

LAST_LINES = 3


def as_event(error: AndreaExportError | OSError) -> dict[str, Any]:
    if isinstance(error, OSError):
        return {"kind": "OSError", "message": error.strerror, "errno": error.errno}
    return {"kind": type(error).__name__, "message": str(error)}


def as_exception(
    otherwise: type[AndreaExportError], kind: str, message: str, errno: int | None = None
) -> Exception:
    """Of the same class, or of `otherwise` where that is none of the toolkit's.

    An OSError has its number, by which the disk's troubles are explained.
    """
    if kind == "OSError":
        return OSError(errno, message)
    found = getattr(errors, kind, None)
    if not (isinstance(found, type) and issubclass(found, AndreaExportError)):
        found = otherwise
    return found(message)


def how_it_ended(code: int) -> tuple[str, str]:
    """A process's return code in words, and what may be behind it ("" where nothing is known)."""
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return how, "; the system may be out of memory" * (code == -signal.SIGKILL)


def last_words(output: IO[bytes]) -> str:
    """The last lines that it printed, as the end of a message."""
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
    return f": {' / '.join(lines)}" if lines else ""

"""An error on its way from a child process: how it is sent, and what it is at the other end."""

from __future__ import annotations

from typing import Any

import andrea_export.errors as errors
from andrea_export.errors import AndreaExportError, EngineError

__all__ = ["as_event", "as_exception"]


def as_event(error: AndreaExportError | OSError) -> dict[str, Any]:
    if isinstance(error, OSError):
        return {"kind": "OSError", "message": error.strerror, "errno": error.errno}
    return {"kind": type(error).__name__, "message": str(error)}


def as_exception(kind: str, message: str, errno: int | None = None) -> Exception:
    """Of the same class. An OSError has its number, by which the disk's troubles are explained."""
    if kind == "OSError":
        return OSError(errno, message)
    found = getattr(errors, kind, EngineError)
    if not (isinstance(found, type) and issubclass(found, AndreaExportError)):
        found = EngineError
    return found(message)

"""Which candidate is in the hands of a runtime, written down where it outlives this process.

A runtime that meets a damaged artefact may take the whole process with it. Whoever started the
process reads here where it died, and begins again without that (`survival.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["BOX", "DEATHS", "NO_BOX", "BlackBox"]

# In the environment of a process that is watched: the file, and what its forerunners died of.
BOX, DEATHS = "ANDREA_EXPORT_BLACK_BOX", "ANDREA_EXPORT_DEATHS"


@dataclass(frozen=True)
class BlackBox:
    """Notes the place that is being entered, and knows those that are deadly.

    Attributes:
        path: the file; None notes nothing.
        deaths: place → how an earlier process died there.
    """

    path: Path | None = None
    deaths: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls) -> BlackBox:
        if BOX not in os.environ:
            return cls()
        return cls(Path(os.environ[BOX]), json.loads(os.environ[DEATHS]))

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """While the block runs the file names `place`; a dead process leaves it there."""
        if self.path is None:
            yield
            return
        self.path.write_text(place, "utf-8")
        try:
            yield
        finally:
            self.path.write_text("", "utf-8")


NO_BOX = BlackBox()

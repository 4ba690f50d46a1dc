"""Running a model, whatever runs it."""

from andrea_export.session.generation import Generation, generate
from andrea_export.session.opening import open_session
from andrea_export.session.protocol import Session
from andrea_export.session.sampling import Sampling

__all__ = ["Generation", "Sampling", "Session", "generate", "open_session"]

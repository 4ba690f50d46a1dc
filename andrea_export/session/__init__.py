"""Running a model, whatever runs it."""

from andrea_export.session.generation import (
    Generation,
    GenerationOptions,
    generate,
    generate_batch,
    generate_file,
)
from andrea_export.session.opening import open_session
from andrea_export.session.prompts import read_prompts
from andrea_export.session.protocol import Session
from andrea_export.session.sampling import Sampling

__all__ = [
    "Generation",
    "GenerationOptions",
    "Sampling",
    "Session",
    "generate",
    "generate_batch",
    "generate_file",
    "open_session",
    "read_prompts",
]

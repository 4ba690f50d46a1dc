"""What every reader gives: a configuration, and its tensors under their canonical names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from andrea_model.checkpoint.layout import Layout
from andrea_model.config import AndreaConfig
from andrea_model.file_hash import file_sha256
from andrea_model.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Array", "Checkpoint", "Tensors"]

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Trained (or random) weights, opened but not read.

    path: what was opened; None for random weights.
    format: "bin", "andrea", "gpt2", "nanogpt" or "random".
    tensors: the names, order and shapes of `parameter_shapes(config)`, in the stored dtype. Where
        the format allows they are read-only views of a memory map, so they cost no memory; matrices
        stored [out, in] are transposed views.
    tokenizer_path: given, or found beside the weights.
    step: training step, where the format records one.
    layout: of a `.bin`. seed: of random weights.
    notes: what the user should know, such as which variant was chosen and why.
    files: the files that hold the weights. hashed_bytes: how much of them, where it is not all.
    """

    path: Path | None
    format: str
    config: AndreaConfig
    tensors: Tensors
    tokenizer_path: Path | None = None
    step: int | None = None
    layout: Layout | None = None
    seed: int | None = None
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    hashed_bytes: int | None = None

    def sha256(self) -> str:
        """Hex digest of the weights file, as `sha256sum` prints it (computed once, streamed).

        A `.bin`: of header and weights only, so dropping the optimizer's state changes nothing.
        Several files: of the lines that `sha256sum` prints for them. Random weights: of their
        configuration and seed.
        """
        return self._digest

    def open_tokenizer(self) -> Tokenizer | None:
        """The tokenizer at `tokenizer_path`, or None where there is none.

        Raises:
            TokenizerError: a file that cannot be read as one.
        """
        return None if self.tokenizer_path is None else load_tokenizer(self.tokenizer_path)

    @cached_property
    def _digest(self) -> str:
        if not self.files:
            description = {
                "config": self.config.to_dict(),
                "format": self.format,
                "seed": self.seed,
            }
            return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
        digests = [(file_sha256(path, self.hashed_bytes), path.name) for path in self.files]
        if len(digests) == 1:
            return digests[0][0]
        listing = "".join(f"{digest}  {name}\n" for digest, name in digests)
        return hashlib.sha256(listing.encode()).hexdigest()

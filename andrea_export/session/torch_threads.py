"""How many threads torch takes for a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from andrea_model.config import AndreaConfig
from andrea_model.parameters import count_parameters

__all__ = ["torch_threads"]

# The matrices of smaller models are over before the threads have met, and on a busy machine they
# wait for each other (measured with andrea-nano beside five other programs: 25 s instead of 2.7 s).
SINGLE_THREAD_PARAMETERS = 10_000_000


@contextmanager
def torch_threads(config: AndreaConfig) -> Iterator[None]:
    """One thread for a small model, as many as torch likes for others."""
    threads = torch.get_num_threads()
    if count_parameters(config) < SINGLE_THREAD_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

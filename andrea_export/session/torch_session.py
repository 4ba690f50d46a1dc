"""The reference model itself, run by PyTorch, over a cache of the same design as the graphs'."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from andrea_export.errors import BackendError
from andrea_export.session.cached import CachedSession
from andrea_export.session.nonfinite import first_nonfinite_in_torch
from andrea_export.session.protocol import Array
from andrea_export.session.torch_threads import torch_threads
from andrea_model.checkpoint import load_model
from andrea_model.kv_cache import KVCache

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint
    from andrea_model.modules import Andrea

__all__ = ["TORCH_DTYPES", "TorchSession"]

TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


class TorchSession(CachedSession):
    """A checkpoint in `dtype` on the CPU.

    Raises:
        BackendError: a dtype that torch does not run here.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str = "fp32") -> None:
        super().__init__()
        if dtype not in TORCH_DTYPES:
            raise BackendError(f"dtype {dtype!r} is not one of {', '.join(TORCH_DTYPES)}")
        self.config, self.dtype = checkpoint.config, dtype
        self.label = f"torch (CPU, {dtype})"
        self._model: Andrea = load_model(checkpoint, TORCH_DTYPES[dtype])
        self._cache: KVCache | None = None

    def _forward(self, input_ids: Array) -> Array:
        with torch.inference_mode(), torch_threads(self.config):
            return self._to_numpy(self._model(torch.from_numpy(input_ids)))

    def first_nonfinite(self, input_ids: Array) -> str | None:
        return first_nonfinite_in_torch(self._model, input_ids)

    def _allocate(self, rows: int, capacity: int) -> None:
        self._cache = KVCache.zeros(self.config, rows, capacity, TORCH_DTYPES[self.dtype])

    def _grow(self, capacity: int) -> None:
        assert self._cache is not None
        self._cache = self._cache.grown(capacity)

    def _run(self, input_ids: Array, past_length: Array, new_length: Array) -> Array:
        assert self._cache is not None
        with torch.inference_mode(), torch_threads(self.config):
            logits = self._model(
                torch.from_numpy(input_ids), self._cache, torch.from_numpy(past_length)
            )
            last = torch.from_numpy(new_length - 1)
            return self._to_numpy(logits[torch.arange(len(logits)), last])

    def _to_numpy(self, logits: torch.Tensor) -> Array:
        wide = logits if self.dtype == "fp64" else logits.float()
        return wide.numpy()

    def close(self) -> None:
        if not self._closed:
            del self._model
        super().close()
        self._cache = None

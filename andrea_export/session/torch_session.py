"""The reference model itself, run by PyTorch."""

from __future__ import annotations

import torch

from andrea_export.errors import BackendError
from andrea_export.session.protocol import Array, Session
from andrea_model.checkpoint import Checkpoint, load_model

__all__ = ["TORCH_DTYPES", "TorchSession"]

TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


class TorchSession(Session):
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
        self._model: torch.nn.Module | None = load_model(checkpoint, TORCH_DTYPES[dtype])

    def _run(self, input_ids: Array) -> Array:
        assert self._model is not None, "the session is closed"
        with torch.inference_mode():
            logits = self._model(torch.from_numpy(input_ids))
        wide = logits if self.dtype == "fp64" else logits.float()
        return wide.numpy()  # type: ignore[no-any-return]

    def close(self) -> None:
        super().close()
        self._model = None

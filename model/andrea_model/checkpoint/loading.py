"""A checkpoint as a torch model. Only these functions import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from andrea_model.checkpoint.checkpoint import Array, Checkpoint, Tensors
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    import torch

    from andrea_model.modules import Andrea

__all__ = ["as_torch", "empty_model", "fill_model", "load_model"]


def load_model(checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> Andrea:
    """The reference model, for inference: in eval mode, without gradients.

    dtype: float32 if not given. Weights already stored in it stay where they are, in the memory
    map; others are converted one by one.
    """
    model = empty_model(checkpoint.config)
    fill_model(model, checkpoint.tensors, dtype)
    return model.eval().requires_grad_(False)


def empty_model(config: AndreaConfig) -> Andrea:
    """The model with shapes but no memory behind them."""
    import torch

    from andrea_model.modules import Andrea

    with torch.device("meta"):
        return Andrea(config)


def fill_model(model: Andrea, tensors: Tensors, dtype: torch.dtype | None = None) -> None:
    """Replace every parameter; tensors already in `dtype` (float32 if not given) are not copied."""
    import torch

    dtype = dtype or torch.float32
    model.load_state_dict(
        {name: as_torch(tensors[name]).to(dtype) for name in tensors}, assign=True
    )


def as_torch(array: Array) -> torch.Tensor:
    """The same memory as a tensor where torch can have it, otherwise a copy.

    Map-backed arrays are marked read-only, but their pages are private to the process: torch, which
    knows no read-only tensors, may have them.
    """
    import numpy as np
    import torch

    is_bfloat16 = array.dtype.name == "bfloat16"
    view = array.view(np.int16) if is_bfloat16 else array.view()
    try:
        view.flags.writeable = True
    except ValueError:
        view = view.copy()
    if not view.flags.aligned:
        view = view.copy()
    tensor = torch.from_numpy(view)
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor

"""A static key/value cache: slots that are written in place, and a mask of those a token may see.

Shapes: B batch, T new tokens, C capacity in tokens, h n_head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from andrea_model.config import AndreaConfig

__all__ = ["KVCache", "LayerCache"]


@dataclass(frozen=True)
class LayerCache:
    """One layer's share of a call.

    Attributes:
        key, value: [B, h, C, head_dim], written in place.
        slots: int64 [B, 1, T, 1], where each new token goes.
        mask: bool [B, 1, T, C], which slots a new token sees: those up to its own.
    """

    key: Tensor
    value: Tensor
    slots: Tensor
    mask: Tensor

    def write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put k and v [B, h, T, head_dim] into their slots; returns the whole key and value."""
        index = self.slots.expand_as(k)
        self.key.scatter_(2, index, k)
        self.value.scatter_(2, index, v)
        return self.key, self.value


@dataclass(frozen=True)
class KVCache:
    """Keys and values of all layers, each [n_layer, B, h, C, head_dim]."""

    keys: Tensor
    values: Tensor

    @classmethod
    def zeros(cls, config: AndreaConfig, rows: int, capacity: int, dtype: torch.dtype) -> KVCache:
        """An empty cache. Zeros, because a masked slot is multiplied by 0 and must be finite."""
        shape = (config.n_layer, rows, config.n_head, capacity, config.head_dim)
        return cls(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))

    def grown(self, capacity: int) -> KVCache:
        """A copy with more slots, the new ones zero."""
        more = (0, 0, 0, capacity - self.keys.shape[3])
        return KVCache(F.pad(self.keys, more), F.pad(self.values, more))

    def layers(self, slots: Tensor) -> list[LayerCache]:
        """What each layer needs for new tokens that go to `slots` [B, T]."""
        by_token = slots[:, None, :, None]  # (B, 1, T, 1)
        mask = torch.arange(self.keys.shape[3], device=slots.device) <= by_token  # (B, 1, T, C)
        return [
            LayerCache(key, value, by_token, mask)
            for key, value in zip(self.keys, self.values, strict=True)
        ]

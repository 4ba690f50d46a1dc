"""Attention over a cache as ONNX Runtime's own op: for running there, never for a file.

It does what `CachedAttention` says in standard ops, and reads of the cache only what is filled:
with 896 of 1024 slots filled a step of the 120M shape took 0.9 of the time, with eight rows 0.86.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from andrea_export.graph.attention import CACHE_PARTS, CachedAttention

__all__ = ["HEAD_DIM_MULTIPLE", "RUNTIME_DOMAIN", "RUNTIME_DOMAIN_VERSION", "RuntimeAttention"]

RUNTIME_DOMAIN, RUNTIME_DOMAIN_VERSION = "com.microsoft", 1
# The op refuses other sizes.
HEAD_DIM_MULTIPLE = 8
INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64


class RuntimeAttention(CachedAttention):
    """GroupQueryAttention with as many key heads as query heads. It writes the cache in place.

    Rows may have different lengths in a prompt (from an empty cache) and in a step of one token.
    """

    def prepare(self, input_ids: ir.Value) -> None:
        """Also the last slot of each row [B], and the longest row's length, both int32."""
        self._slots(input_ids)
        emit = self.emit
        one = emit.constant("constants.one", np.array(1, np.int64))
        ends = emit("Add", self.past_length, self.length, name="ends", shape=["batch"], dtype=INT64)
        last = emit("Sub", ends, one, name="last_slots", shape=["batch"], dtype=INT64)
        most = emit("ReduceMax", ends, name="longest", shape=[], dtype=INT64, keepdims=0)
        self.last_slots = emit(
            "Cast", last, name="last_slots/int32", shape=["batch"], dtype=INT32, to=INT32
        )
        self.longest = emit("Cast", most, name="longest/int32", shape=[], dtype=INT32, to=INT32)

    def __call__(self, block: int, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """[B, T, d_model] from the same: the op splits and merges the heads itself."""
        y, *present = self.emit.multi(
            "GroupQueryAttention",
            *(q, k, v, *self._past(block), self.last_slots, self.longest),
            names=[
                f"blocks.{block}.attn.context/merged",
                *(f"present.{block}.{part}" for part in CACHE_PARTS),
            ],
            domain=RUNTIME_DOMAIN,
            num_heads=self.config.n_head,
            kv_num_heads=self.config.n_head,
        )
        y.shape = ir.Shape(self.hidden)
        for cache in present:
            cache.shape = ir.Shape(self.cache_shape)
        self.outputs += present
        return y

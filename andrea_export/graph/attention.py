"""Three ways to write attention: in plain ops, as the Attention op, and over a key/value cache.

Which one a graph takes follows from its options alone (`attention_for`). Shapes: B batch,
T sequence, C capacity of the cache, h n_head.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import onnx_ir as ir

from andrea_export.graph.emitter import Dims, Emitter, graph_input
from andrea_export.graph.options import GraphOptions
from andrea_model.config import AndreaConfig

__all__ = ["CACHE_PARTS", "Attention", "CachedAttention", "attention_for"]

INT64, BOOL = ir.DataType.INT64, ir.DataType.BOOL
ATTENTION_OPSET = 23
CACHE_PARTS = ("key", "value")
BY_HEAD, BY_HEAD_TRANSPOSED = [0, 2, 1, 3], [0, 2, 3, 1]


def attention_for(options: GraphOptions) -> type[Attention]:
    if options.kv_cache:
        return CachedAttention
    return OpAttention if options.opset >= ATTENTION_OPSET else PlainAttention


class Attention(ABC):
    """Writes what all blocks share once (`prepare`), and one core of attention per block.

    Attributes:
        inputs, outputs: what the graph gains beyond input_ids and logits.
        positions: set by `prepare`: int64 [T] or [B, T], where in the context each token stands.
    """

    positions: ir.Value
    key_order = BY_HEAD

    def __init__(self, config: AndreaConfig, options: GraphOptions, emit: Emitter) -> None:
        self.config, self.emit = config, emit
        self.numpy_dtype = options.numpy_dtype
        self.inputs: list[ir.Value] = []
        self.outputs: list[ir.Value] = []
        self.hidden: Dims = ["batch", "sequence", config.d_model]
        self.by_token: Dims = ["batch", "sequence", config.n_head, config.head_dim]
        self.by_head: Dims = ["batch", config.n_head, "sequence", config.head_dim]

    def prepare(self, input_ids: ir.Value) -> None:
        self.positions = self._range(self._length(input_ids), "positions", "sequence")

    def __call__(self, block: int, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """[B, T, d_model] from the same: heads apart, attention, heads together."""
        name = f"blocks.{block}.attn"
        q = self._heads(q, BY_HEAD)
        k = self._heads(k, self.key_order)
        y = self.write(block, q, k, self._heads(v, BY_HEAD))
        y = self._turned(y, f"{name}.context/by_token", self.by_token, BY_HEAD)
        merge = np.array([0, 0, self.config.d_model], np.int64)
        return self._reshaped(y, "merge_heads", merge, f"{name}.context/merged", self.hidden)

    def _heads(self, x: ir.Value, order: list[int]) -> ir.Value:
        split = np.array([0, 0, self.config.n_head, self.config.head_dim], np.int64)
        y = self._reshaped(x, "split_heads", split, f"{x.name}/heads", self.by_token)
        return self._turned(y, f"{x.name}/by_head", [self.by_token[axis] for axis in order], order)

    def _turned(self, x: ir.Value, name: str, shape: Dims, order: list[int]) -> ir.Value:
        return self.emit("Transpose", x, name=name, shape=shape, perm=order)

    def _reshaped(
        self, x: ir.Value, constant: str, sizes: np.ndarray, name: str, shape: Dims
    ) -> ir.Value:
        target = self.emit.constant(f"constants.{constant}", sizes)
        return self.emit("Reshape", x, target, name=name, shape=shape)

    @abstractmethod
    def write(self, block: int, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """softmax(q kᵀ / sqrt(head_dim)) v, causal: [B, h, T, head_dim] from the same.

        k comes in `key_order`.
        """

    def _length(self, input_ids: ir.Value) -> ir.Value:
        return self._dimension(input_ids, 1, "sequence")

    def _dimension(self, value: ir.Value, axis: int, name: str) -> ir.Value:
        emit = self.emit
        shape = emit(
            "Shape", value, name=f"{name}/shape", shape=[1], dtype=INT64, start=axis, end=axis + 1
        )
        return emit("Squeeze", shape, name=name, shape=[], dtype=INT64)

    def _range(self, length: ir.Value, name: str, dim: str) -> ir.Value:
        zero = self.emit.constant("constants.zero", np.array(0, np.int64))
        one = self.emit.constant("constants.one", np.array(1, np.int64))
        return self.emit("Range", zero, length, one, name=name, shape=[dim], dtype=INT64)

    def _unsqueeze(self, value: ir.Value, axes: list[int], name: str, shape: Dims) -> ir.Value:
        at = "_".join(map(str, axes))
        constant = self.emit.constant(f"constants.axes_{at}", np.array(axes, np.int64))
        return self.emit("Unsqueeze", value, constant, name=name, shape=shape, dtype=INT64)


class PlainAttention(Attention):
    """MatMul, Softmax, MatMul with an additive mask: what every opset and runtime has."""

    key_order = BY_HEAD_TRANSPOSED

    def prepare(self, input_ids: ir.Value) -> None:
        """Also the mask [T, T]: 0 where a token may look, the lowest finite number elsewhere.

        Finite, because Inf in a mask would hide the Inf that a fault makes.
        """
        super().prepare(input_ids)
        emit, square = self.emit, ["sequence", "sequence"]
        query = self._unsqueeze(self.positions, [1], "mask/query", ["sequence", 1])
        key = self._unsqueeze(self.positions, [0], "mask/key", [1, "sequence"])
        seen = emit("LessOrEqual", key, query, name="mask/seen", shape=square, dtype=BOOL)
        lowest = ir.DataType.from_numpy(self.numpy_dtype).min
        zero = emit.constant("constants.no_penalty", np.array(0, self.numpy_dtype))
        low = emit.constant("constants.masked", np.array(lowest, self.numpy_dtype))
        self.mask = emit("Where", seen, zero, low, name="mask", shape=square)

    def write(self, block: int, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        emit, by_head, name = self.emit, self.by_head, f"blocks.{block}.attn"
        square: Dims = ["batch", self.config.n_head, "sequence", "sequence"]
        # Scaling q, not the scores: the product of unscaled halves could overflow.
        scale = emit.constant(
            "constants.attention_scale",
            np.array(1 / math.sqrt(self.config.head_dim), self.numpy_dtype),
        )
        q = emit("Mul", q, scale, name=f"{name}.q/scaled", shape=by_head)
        scores = emit("MatMul", q, k, name=f"{name}.scores", shape=square)
        scores = emit("Add", scores, self.mask, name=f"{name}.scores/masked", shape=square)
        probs = emit("Softmax", scores, name=f"{name}.probs", shape=square, axis=-1)
        return emit("MatMul", probs, v, name=f"{name}.context", shape=by_head)


class OpAttention(Attention):
    """The Attention op (opset 23), causal by its attribute: TensorRT's fused attention."""

    def write(self, block: int, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        return self.emit(
            "Attention",
            q,
            k,
            v,
            name=f"blocks.{block}.attn.context",
            shape=self.by_head,
            is_causal=1,
        )


class CachedAttention(Attention):
    """The Attention op over a static cache that TensorScatter (opset 24) writes in place.

    Row b's new tokens stand at past_length[b], past_length[b] + 1, ...: they are written to those
    slots, and a token sees the slots up to its own. What lies beyond is never seen, so a pad's
    entry is overwritten by the next real token first.
    """

    def prepare(self, input_ids: ir.Value) -> None:
        slots = self._slots(input_ids)
        capacity = self._dimension(self.inputs[1], 2, "capacity")
        keys = self._range(capacity, "mask/key", "capacity")
        query = self._unsqueeze(slots, [1, 3], "mask/query", ["batch", 1, "sequence", 1])
        shape: Dims = ["batch", 1, "sequence", "capacity"]
        self.mask = self.emit("LessOrEqual", keys, query, name="mask", shape=shape, dtype=BOOL)

    def _slots(self, input_ids: ir.Value) -> ir.Value:
        """Where in the cache each new token goes [B, T]; sets inputs and positions on the way."""
        emit, config = self.emit, self.config
        self.cache_shape: Dims = ["batch", config.n_head, "capacity", config.head_dim]
        self.past_length = graph_input("past_length", INT64, ["batch"])
        self.inputs = [self.past_length, *self._cache("past_key_values")]
        start = self._unsqueeze(self.past_length, [1], "past_length/column", ["batch", 1])
        self.length = self._length(input_ids)
        steps = self._range(self.length, "steps", "sequence")
        slots = emit("Add", start, steps, name="slots", shape=["batch", "sequence"], dtype=INT64)
        # A pad may stand beyond the context; its position must still be one.
        last = emit.constant("constants.last_position", np.array(config.context_length - 1))
        self.positions = emit(
            "Min", slots, last, name="positions", shape=["batch", "sequence"], dtype=INT64
        )
        return slots

    def write(self, block: int, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        past = self._past(block)
        present = [
            self.emit(
                "TensorScatter",
                cache,
                update,
                self.past_length,
                name=f"present.{block}.{part}",
                shape=self.cache_shape,
                axis=2,
            )
            for cache, update, part in zip(past, (k, v), CACHE_PARTS, strict=True)
        ]
        self.outputs += present
        return self.emit(
            "Attention",
            q,
            *present,
            self.mask,
            name=f"blocks.{block}.attn.context",
            shape=self.by_head,
        )

    def _past(self, block: int) -> list[ir.Value]:
        """Keys and values of a block as they come in."""
        return self.inputs[1 + 2 * block : 3 + 2 * block]

    def _cache(self, name: str) -> list[ir.Value]:
        return [
            graph_input(f"{name}.{i}.{part}", self.emit.dtype, self.cache_shape)
            for i in range(self.config.n_layer)
            for part in CACHE_PARTS
        ]

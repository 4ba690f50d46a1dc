"""Runs a half-precision graph as it is written, on a CPU that has no such arithmetic.

ONNX Runtime's CPU provider computes an fp16 graph in float32 and rounds here and there, so an
overflow inside goes unnoticed; bf16 it does not run at all. Here every node computes in float32
from its inputs and its result is rounded once to the type the graph declares for it, to nearest
even, overflow becoming Inf: what a GPU with float32 accumulation does, one op at a time.

Meaning of graphs, functions, attributes and rare ops: `onnx.reference`. Speed: torch computes the
ops that carry the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx.external_data_helper import ExternalDataInfo
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import Tensor
from torch.nn import functional as F

from andrea_export.errors import BackendError
from andrea_export.graph.folder import GraphFolder
from andrea_export.session.full_sequence import FullSequenceSession
from andrea_export.session.protocol import Array

__all__ = ["RoundingEvaluator", "RoundingSession", "give_all_logits"]

# numpy has no bfloat16 of its own and torch does not know ml_dtypes: bits go across as int16.
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALF = {np.dtype(np.float16): torch.float16, BFLOAT16: torch.bfloat16}
TORCH_FLOATS: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
}

# Ops that move values or change their type on purpose: their results need no rounding, and
# widening a whole embedding table to pick a few rows would be waste.
EXACT = frozenset({
    "Cast", "Concat", "Constant", "Expand", "Gather", "GatherElements", "Identity", "Reshape",
    "ScatterElements", "Shape", "Slice", "Split", "Squeeze", "TensorScatter", "Transpose",
    "Unsqueeze", "Where",
})  # fmt: skip


def to_torch(array: Array) -> Tensor:
    """The same memory as a tensor; constants and broadcast views, which torch must not write to,
    are copied."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: Tensor) -> Array:
    """The inverse of `to_torch`."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return tensor.numpy()


def _op(name: str, compute: Callable[..., Tensor]) -> type[OpRun]:
    """An op of the standard domain whose tensors torch computes; attributes become keywords."""

    def run(self: OpRun, *inputs: Array, **attributes: Any) -> tuple[Array]:  # noqa: ARG001
        return (to_numpy(compute(*map(to_torch, inputs), **attributes)),)

    return type(name, (OpRun,), {"op_domain": "", "_run": run})


def _layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int,
    epsilon: float,
    **_: object,
) -> Tensor:
    return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


class Cast(OpRun):
    """Between float types by torch, which knows both halves; any other by `onnx.reference`."""

    op_domain = ""

    def _run(self, x: Array, to: int, **attributes: Any) -> tuple[Array]:
        if to in TORCH_FLOATS and (x.dtype in HALF or x.dtype == np.float32):
            return (to_numpy(to_torch(x).to(TORCH_FLOATS[to])),)
        del attributes  # `saturate` and `round_mode` speak of 8-bit types alone
        return (x.astype(onnx.helper.tensor_dtype_to_np_dtype(to)),)


TORCH_OPS: list[type[OpRun]] = [
    Cast,
    _op("Add", torch.add),
    _op("Mul", torch.mul),
    _op("MatMul", torch.matmul),
    _op("Softmax", lambda x, axis: torch.softmax(x, axis)),
    _op("LayerNormalization", _layer_norm),
    _op("Gelu", lambda x, approximate: F.gelu(x, approximate=approximate)),
]


class RoundingEvaluator(ReferenceEvaluator):
    """onnx's evaluator with float32 arithmetic inside a node and one rounding at its end.

    Weights in external files are mapped, not read. A result is dropped after its last use.

    Args:
        proto: a model (loaded without its external data), or a function in it.
        folder: where the model's external data lies.
    """

    def __init__(self, proto: Any, *, folder: Path | None = None, **options: Any) -> None:
        self._folder = folder
        options["new_ops"] = TORCH_OPS  # the base class does not hand these on to its functions
        super().__init__(proto, **options)
        self._last_uses = self._find_last_uses()

    def retrieve_external_data(self, initializer: onnx.TensorProto) -> Array:
        info = ExternalDataInfo(initializer)
        if self._folder is None:
            raise BackendError(f"{initializer.name} is stored in {info.location}: no folder given")
        return np.memmap(
            self._folder / info.location,
            dtype=onnx.helper.tensor_dtype_to_np_dtype(initializer.data_type),
            mode="c",
            offset=info.offset or 0,
            shape=tuple(initializer.dims),
        ).view(np.ndarray)

    def _find_last_uses(self) -> list[list[str]]:
        """For each node, the results that no later node and no output needs."""
        needed = {*self.output_names, *self.rt_inits_, ""}
        last_uses: list[list[str]] = []
        for node in reversed(self.rt_nodes_):
            names = {*node.input, *node.output} - needed
            needed |= names
            last_uses.append(sorted(names))
        return last_uses[::-1]

    def run(  # type: ignore[override]  # the base has private parameters that change by version
        self,
        output_names: Sequence[str] | None,
        feed_inputs: dict[str, Any],
        attributes: dict[str, Any] | None = None,
        intermediate: bool = False,
        **_: Any,
    ) -> Any:
        """Results by name (all of them with `intermediate`), as the base class returns them."""
        results: dict[str, Any] = {"": None, **self.rt_inits_, **feed_inputs}
        for node, last_uses in zip(self.rt_nodes_, self._last_uses, strict=True):
            linked = (
                {"linked_attributes": attributes}
                if node.has_linked_attribute and attributes
                else {}
            )
            with np.errstate(all="ignore"):  # what becomes Inf or NaN is counted, not warned of
                outputs = _run_rounded(node, [results[name] for name in node.input], linked)
            results.update(zip(node.output, outputs, strict=False))
            if not intermediate:
                for name in last_uses:
                    del results[name]
        if intermediate:
            return results
        return [results[name] for name in output_names or self.output_names]


def _run_rounded(node: Any, inputs: list[Any], linked: dict[str, Any]) -> Sequence[Any]:
    half = next((x.dtype for x in inputs if x is not None and x.dtype in HALF), None)
    # A function is no op: its own nodes round.
    if half is None or node.domain != "" or node.op_type in EXACT:
        outputs: Sequence[Any] = node.run(*inputs, **linked)
        return outputs
    outputs = node.run(*map(_widen, inputs), **linked)
    return [_round(y, half) if y.dtype == np.float32 else y for y in outputs]


def _widen(x: Array | None) -> Array | None:
    if x is None or x.dtype not in HALF:
        return x
    return to_numpy(to_torch(x).float())


def _round(x: Array, dtype: np.dtype[Any]) -> Array:
    return to_numpy(to_torch(x).to(HALF[dtype]))


def give_all_logits(model: onnx.ModelProto) -> None:
    """Let a graph of `--logits last` tell of every token: its head reads what the choice reads."""
    chosen = {node.name: node for node in model.graph.node if node.name.startswith("last_")}
    if not chosen:
        return
    hidden = chosen["last_hidden/flat"].input[0]
    for node in model.graph.node:
        node.input[:] = [hidden if name == "last_hidden" else name for name in node.input]
    for node in chosen.values():
        model.graph.node.remove(node)
    kept = [value for value in model.graph.input if value.name != "new_length"]
    del model.graph.input[:]
    model.graph.input.extend(kept)


class RoundingSession(FullSequenceSession):
    """An exported folder on the rounding executor: slow and honest.

    Raises:
        BackendError: a graph that onnx cannot load, or an op that it has no meaning for.
    """

    def __init__(self, graph: GraphFolder) -> None:
        super().__init__()
        self.config, self.dtype = graph.config, graph.options.dtype
        self.label = f"rounding executor (CPU, {self.dtype}, simulated)"
        self._cache_dtype = graph.options.numpy_dtype
        try:
            proto = onnx.load(graph.model_path, load_external_data=False)
            give_all_logits(proto)
            self._evaluator: RoundingEvaluator | None = RoundingEvaluator(proto, folder=graph.path)
        except Exception as error:  # onnx raises what it happens to meet
            raise BackendError(f"{graph.path}: onnx cannot load it: {error}") from error

    def _forward(self, input_ids: Array) -> Array:
        assert self._evaluator is not None, "the session is closed"
        feeds = {"input_ids": input_ids} | {
            name: self._nothing_past(name, *input_ids.shape)
            for name in self._evaluator.input_names
            if name != "input_ids"
        }
        try:
            (logits,) = self._evaluator.run(["logits"], feeds)
        except Exception as error:
            raise BackendError(f"the rounding executor failed while running: {error}") from error
        return logits  # type: ignore[no-any-return]

    def _nothing_past(self, name: str, rows: int, capacity: int) -> Array:
        """What a graph with a cache takes at the beginning of a text."""
        if name == "past_length":
            return np.zeros(rows, np.int64)
        shape = (rows, self.config.n_head, capacity, self.config.head_dim)
        return np.zeros(shape, self._cache_dtype)

    def close(self) -> None:
        super().close()
        self._evaluator = None

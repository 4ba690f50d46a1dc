"""Graphs of which a part is replaced by what `onnx` would write for the checkpoint today.

Names make it possible: the values of an exported graph are named after modules, so a part is cut
out at named values and its exact form is put in between the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import NodeProto, TensorProto, helper

from andrea_export.errors import BackendError
from andrea_export.graph.build import build_model
from andrea_export.graph.folder import GraphFolder
from andrea_export.graph.options import GraphOptions
from andrea_export.graph.weights import weight_initializers
from andrea_export.report.rounding_executor import RoundingEvaluator, give_all_logits
from andrea_export.report.taps import first_feeds
from andrea_export.session.in_memory import over_weights
from andrea_export.session.protocol import Array
from andrea_export.session.runtime import running
from andrea_model.checkpoint import Checkpoint

__all__ = ["KINDS", "Part", "Swapper", "part_of"]

KINDS = ("embedding", "norm", "attention", "projection", "activation", "residual", "head")
ATTENTION_STEPS = ("heads", "by_head", "scaled", "masked", "by_token", "merged")
PREFIX = "exact/"
ELEMENT_TYPES = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
}


@dataclass(frozen=True)
class Part:
    """Op kinds, in some blocks or wherever they occur.

    blocks: numbers of blocks; None stands for all, and for what lies outside of them.
    """

    kinds: frozenset[str]
    blocks: frozenset[int] | None = None

    def holds(self, value: str) -> bool:
        """Whether the node that gives this value belongs to the part."""
        kind, block = part_of(value)
        return kind in self.kinds and (self.blocks is None or block in self.blocks)

    def __str__(self) -> str:
        kinds = " + ".join(kind for kind in KINDS if kind in self.kinds)
        if self.blocks is None:
            return kinds
        where = ", ".join(f"blocks.{block}" for block in sorted(self.blocks))
        return where if len(self.kinds) == len(KINDS) else f"{kinds} of {where}"


def part_of(value: str) -> tuple[str | None, int | None]:
    """Kind and block of the node that gives a value; (None, None) for shapes and constants."""
    name, _, step = value.partition("/")
    pieces = name.split(".")
    if name in ("wte", "wpe", "embedding"):
        return "embedding", None
    if name == "norm_f":
        return "norm", None
    if name in ("head", "logits"):
        return "head", None
    if name == "mask":
        return "attention", None
    if pieces[0] == "present":
        return "attention", int(pieces[1])
    if pieces[0] != "blocks":
        return None, None
    block, leaf = int(pieces[1]), pieces[-1]
    if leaf in ("attn_sum", "mlp_sum"):
        return "residual", block
    if leaf.startswith("norm"):
        return "norm", block
    if leaf in ("activation", "gate", "value"):
        return "activation", block
    if leaf in ("scores", "probs", "context") or step in ATTENTION_STEPS:
        return "attention", block
    return "projection", block


class Swapper:
    """Runs a graph with parts of it replaced.

    Args:
        checkpoint: whose weights the exact parts have.
        graph: the candidate.
    """

    def __init__(self, checkpoint: Checkpoint, graph: GraphFolder) -> None:
        self._checkpoint, self._graph = checkpoint, graph
        self._proto = onnx.load(graph.model_path, load_external_data=False)
        give_all_logits(self._proto)
        self._exact: dict[str, onnx.ModelProto] = {}
        self._total = sum(math.prod(shape) for shape in self._matrices().values())

    def run(self, ids: Array, part: Part | None = None, dtype: str = "fp32") -> Array:
        """Logits [B, T, V] for ids [B, T], with `part` in its exact form in `dtype`.

        Raises:
            BackendError: the graph cannot be cut at its names, or does not run.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self._proto)
        if part is not None:
            try:
                self._swap(model, part, dtype)
            except (KeyError, ValueError) as error:
                raise BackendError(f"{self._graph.path} cannot be cut at {error}") from error
        return self._logits(model, ids)

    def cost(self, part: Part) -> tuple[int, float]:
        """What keeping a part in float32 costs: bytes of weights more than in half precision, and
        the share of all multiplications by weights that run in float32."""
        inside = {
            name: shape for name, shape in self._shapes().items() if part.holds(_module(name))
        }
        elements = sum(math.prod(shape) for shape in inside.values())
        products = sum(
            math.prod(shape) for name, shape in inside.items() if name in self._matrices()
        )
        return 2 * elements, products / self._total

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {name: tuple(array.shape) for name, array in self._checkpoint.tensors.items()}
        if self._graph.config.tied_head:
            shapes["head.weight"] = shapes["wte.weight"]
        return shapes

    def _matrices(self) -> dict[str, tuple[int, ...]]:
        """What a token is multiplied by: an embedding is only looked up."""
        return {
            name: shape
            for name, shape in self._shapes().items()
            if len(shape) == 2 and name not in ("wte.weight", "wpe.weight")
        }

    def _exact_proto(self, dtype: str) -> onnx.ModelProto:
        if dtype not in self._exact:
            own = self._graph.options
            options = GraphOptions(
                dtype=dtype,  # type: ignore[arg-type]
                ops="standard",
                opset=own.opset,
                kv_cache=own.kv_cache,
            )
            weights = weight_initializers(self._checkpoint, options.numpy_dtype)
            model = build_model(self._graph.config, options, weights)
            self._exact[dtype] = ir.to_proto(model)
        return self._exact[dtype]

    def _swap(self, model: onnx.ModelProto, part: Part, dtype: str) -> None:
        exact = self._exact_proto(dtype)
        inside = [node for node in exact.graph.node if part.holds(node.output[0])]
        replaced = {output for node in inside for output in node.output if output}
        surgeon = _Surgeon(model, exact, self._graph.options.dtype, dtype, replaced)
        for node in inside:
            surgeon.insert(node)
        surgeon.finish()

    def _logits(self, model: onnx.ModelProto, ids: Array) -> Array:
        if self._graph.options.dtype == "fp32":
            import onnxruntime as ort

            options = ort.SessionOptions()
            options.log_severity_level = 3
            try:
                given = over_weights(model, self._graph, options)
                runtime = ort.InferenceSession(given, options)
            except Exception as error:  # onnxruntime's exceptions share no base class
                raise BackendError(
                    f"ONNX Runtime cannot load the changed graph: {error}"
                ) from error
            names = [argument.name for argument in runtime.get_inputs()]
            with running():
                (logits,) = runtime.run(["logits"], first_feeds(self._graph, names, ids))
            return np.asarray(logits)
        try:
            evaluator = RoundingEvaluator(model, folder=self._graph.path)
            feeds = first_feeds(self._graph, evaluator.input_names, ids)
            (logits,) = evaluator.run(["logits"], feeds)
        except Exception as error:  # onnx raises what it happens to meet
            raise BackendError(f"the changed graph does not run: {error}") from error
        return np.asarray(logits)


class _Surgeon:
    """Puts nodes of an exact graph into a candidate's, between values of the same names."""

    def __init__(
        self,
        model: onnx.ModelProto,
        exact: onnx.ModelProto,
        own_dtype: str,
        dtype: str,
        replaced: set[str],
    ) -> None:
        self._graph = model.graph
        self._own, self._new = ELEMENT_TYPES[own_dtype], ELEMENT_TYPES[dtype]
        self._replaced = replaced
        self._makers = {out: node for node in exact.graph.node for out in node.output if out}
        self._weights = {each.name: each for each in exact.graph.initializer}
        self._added: list[NodeProto] = []
        self._have: set[str] = set()
        self._types = _value_types(exact)

    def insert(self, node: NodeProto) -> None:
        new = NodeProto()
        new.CopyFrom(node)
        new.name = PREFIX + (node.name or node.output[0])
        del new.input[:], new.output[:]
        new.input.extend(self._source(name) if name else "" for name in node.input)
        new.output.extend(PREFIX + name if name else "" for name in node.output)
        self._added.append(new)

    def _source(self, name: str) -> str:
        """Where an exact node takes a value from: its own kind, or the candidate."""
        inner = PREFIX + name
        if name in self._replaced or inner in self._have:
            return inner
        if name in self._weights:
            weight = TensorProto()
            weight.CopyFrom(self._weights[name])
            weight.name = inner
            self._graph.initializer.append(weight)
        elif name in self._makers and self._makers[name].op_type == "Constant":
            self._have.add(inner)
            self.insert(self._makers[name])
            return inner
        elif self._own == self._new or not self._is_float(name):
            return name
        else:
            self._added.append(helper.make_node("Cast", [name], [inner], inner, to=self._new))
        self._have.add(inner)
        return inner

    def _is_float(self, name: str) -> bool:
        return self._types.get(name) == self._new

    def finish(self) -> None:
        """Take the candidate's own nodes out, and give the new values the old names."""
        kept = []
        for node in self._graph.node:
            outputs = [name for name in node.output if name]
            if outputs and all(name in self._replaced for name in outputs):
                continue
            for index, name in enumerate(node.output):
                if name in self._replaced:
                    node.output[index] = f"unused/{name}"
            kept.append(node)
        needed = {name for node in kept for name in node.input}
        needed |= {value.name for value in self._graph.output}
        for name in sorted(needed & self._replaced):
            same = name == "logits" or self._own == self._new or not self._is_float(name)
            ends = [PREFIX + name], [name], f"{PREFIX}{name}/out"
            if same:
                self._added.append(helper.make_node("Identity", *ends))
            else:
                self._added.append(helper.make_node("Cast", *ends, to=self._own))
        ordered = _in_order([*kept, *self._added])
        del self._graph.node[:]
        self._graph.node.extend(ordered)


def _value_types(model: onnx.ModelProto) -> dict[str, int]:
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    return {value.name: value.type.tensor_type.elem_type for value in values}


def _in_order(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Every node after those that it needs. What nobody makes is an input or a weight."""
    waiting = list(nodes)
    made = {name for node in waiting for name in node.output}
    ordered: list[NodeProto] = []
    while waiting:
        ready = [node for node in waiting if not (set(node.input) & made)]
        if not ready:
            raise ValueError(f"a circle through {waiting[0].name}")
        ordered += ready
        done = {id(node) for node in ready}
        made -= {name for node in ready for name in node.output}
        waiting = [node for node in waiting if id(node) not in done]
    return ordered


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0]

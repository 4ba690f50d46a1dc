"""Looking inside: what a model has computed at named places on the way to its logits.

The names are the graph's: `embedding`, `blocks.0.norm1`, `blocks.0.attn.q`, ..., `norm_f`,
`logits`. Each tap gives an array [B, T, width].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from andrea_export.errors import BackendError
from andrea_export.layer_names import LOGITS, tap_names, value_name
from andrea_export.session.in_memory import over_weights
from andrea_export.session.protocol import Array
from andrea_export.session.providers import provider_arguments
from andrea_export.session.runtime import running
from andrea_export.session.torch_session import TorchSession
from andrea_export.session.torch_threads import SINGLE_THREAD_PARAMETERS
from andrea_model.config import AndreaConfig
from andrea_model.parameters import count_parameters

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from andrea_export.graph.folder import GraphFolder

__all__ = ["OnnxTaps", "RoundingTaps", "Taps", "TorchTaps", "onnx_threads"]

NO_OTHERS = "the graph has no others"


class Taps(Protocol):
    """Runs ids [B, T] and gives every tap that it has: name → [B, T, width].

    `unseen` says, after a run, why the taps that were not given were not.
    """

    @property
    def unseen(self) -> str: ...

    def __call__(self, ids: Array) -> dict[str, Array]: ...


class TorchTaps:
    """The taps of a torch session, taken by hooks: its arithmetic is untouched."""

    unseen = NO_OTHERS

    def __init__(self, session: TorchSession) -> None:
        self._session = session

    def __call__(self, ids: Array) -> dict[str, Array]:
        taken: dict[str, torch.Tensor] = {}
        with _hooks(self._session._model, taken):
            logits = self._session.forward(ids)
        wide = torch.float64 if self._session.dtype == "fp64" else torch.float32
        return {name: value.to(wide).numpy() for name, value in taken.items()} | {LOGITS: logits}


@contextmanager
def _hooks(model: Any, taken: dict[str, torch.Tensor]) -> Iterator[None]:
    handles = []

    def output_of(module: torch.nn.Module, name: str) -> None:
        def hook(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
            taken[name] = output

        handles.append(module.register_forward_hook(hook))

    def input_of(module: torch.nn.Module, name: str) -> None:
        def hook(_module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            taken[name] = inputs[0]

        handles.append(module.register_forward_pre_hook(hook))

    config: AndreaConfig = model.config
    input_of(model.blocks[0], "embedding")
    for i, block in enumerate(model.blocks):
        name = f"blocks.{i}"
        pre = config.norm_position == "pre"
        # A sum is what the next norm is given.
        following = model.blocks[i + 1].norm1 if i + 1 < config.n_layer else model.norm_f
        sums = (block.norm2, following) if pre else (block.norm1, block.norm2)
        for part, module in zip(("attn_sum", "mlp_sum"), sums, strict=True):
            input_of(module, f"{name}.{part}")
        for part in ("norm1", "norm2"):
            output_of(getattr(block, part), f"{name}.{part}")
        for part in ("q", "k", "v", "o"):
            output_of(getattr(block.attn, part), f"{name}.attn.{part}")
        input_of(block.attn.o, f"{name}.attn.context")
        input_of(block.mlp.fc2, f"{name}.mlp.activation")
        output_of(block.mlp.fc2, f"{name}.mlp.fc2")
    output_of(model.norm_f, "norm_f")
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def expose(model: ir.Model, config: AndreaConfig) -> list[str]:
    """Make all taps that a graph has outputs of it, and return their names."""
    present = {value.name for value in model.graph.outputs}
    values = {output.name: output for node in model.graph for output in node.outputs if output.name}
    found = [tap for tap in tap_names(config) if value_name(tap) in values]
    for tap in found:
        if value_name(tap) not in present:
            model.graph.outputs.append(values[value_name(tap)])
    return found


def _with_taps(graph: GraphFolder) -> tuple[ir.Model, list[str]]:
    """A graph that gives all taps of every token, and their names. Its weights stay on disk."""
    import onnx
    import onnx_ir as ir

    from andrea_export.report.rounding_executor import give_all_logits

    proto = onnx.load(graph.model_path, load_external_data=False)
    give_all_logits(proto)
    model = ir.from_proto(proto)
    return model, expose(model, graph.config)


def first_feeds(graph: GraphFolder, names: Sequence[str], ids: Array) -> dict[str, Array]:
    """Inputs for ids [B, T] at the beginning of a text, whatever form the graph has."""
    rows, width = ids.shape
    shape = (rows, graph.config.n_head, width, graph.config.head_dim)
    feeds: dict[str, Array] = {"input_ids": ids}
    for name in names:
        if name == "past_length":
            feeds[name] = np.zeros(rows, np.int64)
        elif name.startswith("past_key_values."):
            feeds[name] = np.zeros(shape, graph.options.numpy_dtype)
    return feeds


def onnx_threads(graph: GraphFolder) -> int | None:
    """One thread for a small model, whose threads would only wait for each other; else None."""
    return 1 if count_parameters(graph.config) < SINGLE_THREAD_PARAMETERS else None


class OnnxTaps:
    """A graph with its taps as outputs, run by ONNX Runtime. On a GPU that may undo fusions.

    Raises:
        BackendError: ONNX Runtime cannot load it, or has no such provider.
    """

    unseen = NO_OTHERS

    def __init__(self, graph: GraphFolder, provider: str = "cpu") -> None:
        import onnx_ir as ir
        import onnxruntime as ort

        self._graph = graph
        providers = provider_arguments(provider, ort.get_available_providers())
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = onnx_threads(graph) or 0  # 0: as many as it likes
        try:
            model, self._names = _with_taps(graph)
            given = over_weights(ir.to_proto(model), graph, options)
            self._runtime = ort.InferenceSession(given, options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise BackendError(f"{graph.path}: ONNX Runtime cannot load it: {error}") from error

    def __call__(self, ids: Array) -> dict[str, Array]:
        inputs = [argument.name for argument in self._runtime.get_inputs()]
        wanted = [value_name(name) for name in self._names]
        with running():
            values = self._runtime.run(wanted, first_feeds(self._graph, inputs, ids))
        return dict(zip(self._names, values, strict=True))


class RoundingTaps:
    """The same by the rounding executor, for graphs in half precision.

    Raises:
        BackendError: onnx cannot load it.
    """

    unseen = NO_OTHERS

    def __init__(self, graph: GraphFolder) -> None:
        import onnx_ir as ir

        from andrea_export.report.rounding_executor import RoundingEvaluator

        self._graph = graph
        try:
            model, self._names = _with_taps(graph)
            proto: onnx.ModelProto = ir.to_proto(model)
            self._evaluator = RoundingEvaluator(proto, folder=graph.path)
        except Exception as error:  # onnx raises what it happens to meet
            raise BackendError(f"{graph.path}: onnx cannot load it: {error}") from error

    def __call__(self, ids: Array) -> dict[str, Array]:
        feeds = first_feeds(self._graph, self._evaluator.input_names, ids)
        try:
            values = self._evaluator.run([value_name(name) for name in self._names], feeds)
        except Exception as error:
            raise BackendError(f"the rounding executor failed while running: {error}") from error
        return {
            name: np.asarray(value).astype(np.float32)
            for name, value in zip(self._names, values, strict=True)
        }

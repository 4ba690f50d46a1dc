"""An engine on the GPU: loaded once, called with buffers that stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from andrea_export.engine.admission import admit
from andrea_export.engine.binding import load_plugins, logger, trt, use_flavor
from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import BackendError
from andrea_export.session.trt_bindings import (
    BindingPlan,
    ProfileShapes,
    TensorSpec,
    buffers_for,
    cache_pairs,
)

if TYPE_CHECKING:
    import tensorrt

__all__ = ["TORCH_TYPES", "BoundCall", "EngineRunner"]

TORCH_TYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "BOOL": torch.bool,
}


class EngineRunner:
    """A deserialized engine. All facts about its tensors are read from it.

    Raises:
        BackendError: this machine cannot run it (see `admit`), or TensorRT cannot open it.
        EngineError: the file is not the one that the sidecar describes.
    """

    def __init__(self, folder: EngineFolder, *, plugin_library: Path | None = None) -> None:
        library = plugin_library if folder.is_trusted else admit(folder, plugin_library)
        _check_torch()
        self._errors: list[str] = []
        flavor = use_flavor(folder.flavor)
        log = logger(self._log)
        runtime = trt.Runtime(log)
        if library is not None:
            if not flavor.takes_plugins:
                raise BackendError(f"{flavor.title} takes no plugin library")
            load_plugins(str(library), self._errors)
        engine: Any = runtime.deserialize_cuda_engine(folder.engine_path.read_bytes())
        if engine is None:
            raise BackendError(f"{folder.path}: TensorRT cannot open it: {self.reason()}")
        self._runtime: Any = runtime
        self._engine = engine
        self.specs = _specs(engine)
        self.profiles = _profiles(engine, self.specs)
        self.cache_pairs = cache_pairs(self.specs)
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # RTX compiles kernels for a shape when it first sees it, and captures by itself.
        self._strategies: Any = getattr(trt, "CudaGraphStrategy", None)
        self.captures_itself = self._strategies is not None

    def buffer(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A new buffer of zeros on the GPU, of the type that the engine declares."""
        (spec,) = (spec for spec in self.specs if spec.name == name)
        return torch.zeros(shape, dtype=TORCH_TYPES[spec.dtype], device="cuda")

    def _context(self, profile: int, *, captures: bool) -> Any:
        """A context for one shape: a recorded CUDA graph holds on to its context's memory."""
        if self.captures_itself:
            config = self._engine.create_runtime_config()
            kinds = self._strategies
            config.cuda_graph_strategy = kinds.WHOLE_GRAPH_CAPTURE if captures else kinds.DISABLED
            context = self._engine.create_execution_context(config)
        else:
            context = self._engine.create_execution_context()
        if context is None:
            raise BackendError(f"the engine does not fit the GPU's memory: {self.reason()}")
        if not context.set_optimization_profile_async(profile, self.stream.cuda_stream):
            raise BackendError(f"TensorRT does not take profile {profile}: {self.reason()}")
        return context

    def bind(
        self,
        plan: BindingPlan,
        caches: dict[str, torch.Tensor],
        prepare: Callable[[Any], None] | None = None,
    ) -> BoundCall:
        """Buffers for one plan, the caches being those given. Done once per shape.

        Args:
            plan: profile and shapes.
            caches: buffers by input.
            prepare: gets the context first, to watch it; then no run is captured.

        Raises:
            BackendError: TensorRT does not take a shape.
        """
        buffers = buffers_for(plan, caches, self.cache_pairs, self.buffer)
        context = self._context(plan.profile, captures=prepare is None)
        if prepare is not None:
            prepare(context)
        for spec in self.specs:
            shape = plan.shapes[spec.name]
            if spec.is_input and not context.set_input_shape(spec.name, shape):
                raise BackendError(f"TensorRT does not take {spec.name} of shape {shape}")
            context.set_tensor_address(spec.name, buffers[spec.name].data_ptr())
        return BoundCall(self, context, buffers, captures=prepare is None)

    def close(self) -> None:
        self._engine = self._runtime = None

    def _log(self, severity: str, text: str) -> None:
        if severity == "error":
            self._errors.append(" ".join(text.split()))

    def reason(self) -> str:
        """TensorRT's last words."""
        return " / ".join(self._errors[-2:]) or "it gives no reason"


class BoundCall:
    """An engine with its buffers in place: a call copies the inputs in and allocates nothing.

    The second call of a shape is recorded as a CUDA graph, and later ones replay it, unless nothing
    is to be captured.
    """

    def __init__(
        self,
        runner: EngineRunner,
        context: Any,
        buffers: dict[str, torch.Tensor],
        *,
        captures: bool = True,
    ) -> None:
        self._runner, self._context, self.buffers = runner, context, buffers
        self._captures = captures and not runner.captures_itself
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Logits on the GPU; the next call writes over them.

        Args:
            inputs: host tensors by name, for all inputs but the caches.

        Raises:
            BackendError: TensorRT fails.
        """
        stream = self._runner.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for name, value in inputs.items():
                self.buffers[name].copy_(value, non_blocking=True)
            if self._graph is not None:
                self._graph.replay()
            else:
                self._enqueue()
        torch.cuda.current_stream().wait_stream(stream)
        return self.buffers["logits"]

    def _enqueue(self) -> None:
        if self._calls == 1 and self._captures:
            # The first call has settled what TensorRT defers until it knows the shapes.
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._runner.stream):
                self._execute()
            self._graph = graph
            graph.replay()
        else:
            self._execute()
        self._calls += 1

    def _execute(self) -> None:
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise BackendError(f"TensorRT failed while running: {self._runner.reason()}")


def _check_torch() -> None:
    """Refuse a torch that has no CUDA: an engine's buffers are its tensors."""
    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        raise BackendError(
            f"torch {torch.__version__}, {build}, cannot use the GPU, and an engine's tensors are "
            "torch's: `andrea-export doctor` says what to install"
        )


def _specs(engine: tensorrt.ICudaEngine) -> list[TensorSpec]:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return [
        TensorSpec(
            name,
            engine.get_tensor_dtype(name).name,
            _sizes(engine.get_tensor_shape(name)),
            engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
        )
        for name in names
    ]


def _profiles(engine: tensorrt.ICudaEngine, specs: list[TensorSpec]) -> list[ProfileShapes]:
    def shapes(name: str, index: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        low, tuned, high = engine.get_tensor_profile_shape(name, index)
        return _sizes(low), _sizes(tuned), _sizes(high)

    return [
        {spec.name: shapes(spec.name, index) for spec in specs if spec.is_input}
        for index in range(engine.num_optimization_profiles)
    ]


def _sizes(dims: Any) -> tuple[int, ...]:
    return tuple(dims)

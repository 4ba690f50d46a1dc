"""Exported folders, run by ONNX Runtime: with and without a cache.

Its CPU provider computes fp16 graphs in float32, and has no bf16 kernels at all. Which provider
really runs each node is in `placement`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.graph.folder import GraphFolder
from andrea_export.session.cached import CachedSession
from andrea_export.session.full_sequence import FullSequenceSession
from andrea_export.session.nonfinite import first_nonfinite_in_graph
from andrea_export.session.protocol import Array, Session
from andrea_export.session.providers import placement_of
from andrea_export.session.runtime import load_graph, running
from andrea_export.session.runtime_form import runtime_form

__all__ = ["CachedOnnxSession", "OnnxSession"]

TITLES = {"cpu": "CPU", "cuda": "CUDA", "tensorrt": "TensorRT provider"}


class _GraphSession(Session):
    """What sessions over a graph share: it is loaded, and says where its nodes run.

    `as_exported`: just the nodes of the file, also where `runtime_form` has faster ones.

    Raises:
        MissingDependencyError, BackendError: see `load_graph`.
    """

    def __init__(
        self,
        graph: GraphFolder,
        *,
        threads: int | None = None,
        provider: str = "cpu",
        plugin_library: Path | None = None,
        as_exported: bool = False,
    ) -> None:
        super().__init__()
        model = runtime_form(graph) if provider == "cpu" and not as_exported else None
        self._runtime = load_graph(
            graph, threads, provider=provider, plugin_library=plugin_library, model=model
        )
        self.config, self.dtype = graph.config, graph.options.dtype
        cache = ", cache" if graph.options.kv_cache else ""
        form = "" if model is None else ", fused"
        self.label = f"onnx ({TITLES[provider]}, {self.dtype}{cache}{form})"
        self._graph, self._provider = graph, provider
        self.placement = placement_of(self._runtime)

    def first_nonfinite(self, input_ids: Array) -> str | None:
        return first_nonfinite_in_graph(self._graph, input_ids)

    def close(self) -> None:
        super().close()
        self._runtime = None


class OnnxSession(_GraphSession, FullSequenceSession):
    """A graph without a cache."""

    def _forward(self, input_ids: Array) -> Array:
        with running():
            (logits,) = self._runtime.run(["logits"], {"input_ids": input_ids})
        return logits  # type: ignore[no-any-return]


class CachedOnnxSession(_GraphSession, CachedSession):
    """A graph with a cache. Past and present are one buffer: TensorScatter writes in place."""

    def __init__(self, graph: GraphFolder, **options: Any) -> None:
        super().__init__(graph, **options)
        self._device = "cpu" if self._provider == "cpu" else "cuda"
        self._last_only = graph.options.logits == "last"
        self._numpy_dtype = graph.options.numpy_dtype
        self._cache_names = [
            argument.name
            for argument in self._runtime.get_inputs()
            if argument.name.startswith("past_key_values.")
        ]
        self._caches: list[Any] = []
        self._decode: _Binding | None = None

    def _forward(self, input_ids: Array) -> Array:
        rows, width = input_ids.shape
        caches = self._zeros(rows, width)
        if not self._last_only:
            binding = _Binding(
                self._runtime, rows, width, self._cache_names, caches, last_only=False
            )
            return binding.run(input_ids, np.zeros(rows, np.int64))
        # This graph tells of one token a call: so token by token, over a cache of their own.
        binding = _Binding(self._runtime, rows, 1, self._cache_names, caches, last_only=True)
        each = [binding.run(input_ids[:, t : t + 1], np.full(rows, t)).copy() for t in range(width)]
        return np.concatenate(each, axis=1)

    def _allocate(self, rows: int, capacity: int) -> None:
        self._decode = None
        self._caches = self._zeros(rows, capacity)

    def _grow(self, capacity: int) -> None:
        if self._device == "cpu":
            grown = self._zeros(len(self._past), capacity)
            for new, old in zip(grown, self._caches, strict=True):
                new.numpy()[:, :, : self.capacity] = old.numpy()
        else:
            grown = [self._longer(old, capacity) for old in self._caches]
        self._decode, self._caches = None, grown

    def _longer(self, cache: Any, capacity: int) -> Any:
        """A longer copy of a cache on a GPU, by way of the host: it happens a few times a text."""
        from onnxruntime import OrtValue

        old = cache.numpy()
        new = np.zeros((*old.shape[:2], capacity, old.shape[3]), old.dtype)
        new[:, :, : old.shape[2]] = old
        return OrtValue.ortvalue_from_numpy(new, self._device, 0)

    def _run(self, input_ids: Array, past_length: Array, new_length: Array) -> Array:
        rows, width = input_ids.shape
        if width > 1:
            logits = self._bind(rows, width).run(input_ids, past_length, new_length)
        else:
            if self._decode is None:
                self._decode = self._bind(rows, 1)
            logits = self._decode.run(input_ids, past_length, new_length)
        last: Array = np.zeros(rows, np.int64) if logits.shape[1] == 1 else new_length - 1
        return np.asarray(logits[np.arange(rows), last])

    def _bind(self, rows: int, width: int) -> _Binding:
        return _Binding(
            self._runtime, rows, width, self._cache_names, self._caches, last_only=self._last_only
        )

    def _zeros(self, rows: int, capacity: int) -> list[Any]:
        from onnxruntime import OrtValue

        shape = (rows, self.config.n_head, capacity, self.config.head_dim)
        # On the CPU an OrtValue shares the array's memory.
        return [
            OrtValue.ortvalue_from_numpy(np.zeros(shape, self._numpy_dtype), self._device, 0)
            for _ in self._cache_names
        ]

    def close(self) -> None:
        super().close()
        self._decode, self._caches = None, []


class _Binding:
    """Inputs and outputs of one shape, bound once: a step copies its ids in, and nothing else."""

    def __init__(
        self,
        runtime: Any,
        rows: int,
        width: int,
        cache_names: list[str],
        caches: list[Any],
        *,
        last_only: bool,
    ) -> None:
        from onnxruntime import OrtValue

        self._runtime, self._binding = runtime, runtime.io_binding()
        vocab_size = runtime.get_outputs()[0].shape[-1]
        self._inputs = {
            "input_ids": np.zeros((rows, width), np.int64),
            "past_length": np.zeros(rows, np.int64),
        }
        if last_only:
            self._inputs["new_length"] = np.ones(rows, np.int64)
        self._logits = np.empty((rows, 1 if last_only else width, vocab_size), np.float32)
        # The binding does not keep what it points to alive.
        self._values = [OrtValue.ortvalue_from_numpy(array) for array in self._inputs.values()]
        for name, value in zip(self._inputs, self._values, strict=True):
            self._binding.bind_ortvalue_input(name, value)
        self._values.append(OrtValue.ortvalue_from_numpy(self._logits))
        self._binding.bind_ortvalue_output("logits", self._values[-1])
        for name, cache in zip(cache_names, caches, strict=True):
            self._binding.bind_ortvalue_input(name, cache)
            self._binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
        self._values += caches

    def run(self, input_ids: Array, past_length: Array, new_length: Array | None = None) -> Array:
        """Logits [B, T, V] (or [B, 1, V]); the same array is written by the next run."""
        self._inputs["input_ids"][:] = input_ids
        self._inputs["past_length"][:] = past_length
        if "new_length" in self._inputs and new_length is not None:
            self._inputs["new_length"][:] = new_length
        with running():
            self._runtime.run_with_iobinding(self._binding)
        return self._logits

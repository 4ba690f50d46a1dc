"""Engines of both flavors as sessions, with and without a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import BackendError, InputError
from andrea_export.session.cached import CachedSession
from andrea_export.session.full_sequence import FullSequenceSession
from andrea_export.session.protocol import Array, Session
from andrea_export.session.trt_bindings import plan
from andrea_export.session.trt_runner import BoundCall, EngineRunner
from andrea_model.config import AndreaConfig

__all__ = ["CachedTrtSession", "TrtSession", "open_trt_session"]


def open_trt_session(engine: EngineFolder, *, plugin_library: Path | None = None) -> Session:
    """A session over an engine folder.

    Args:
        engine: the opened folder.
        plugin_library: instead of the newest one that was built here.

    Raises:
        BackendError: this machine cannot run it, or the model is not known.
        EngineError: the file is not the one that the sidecar describes.
    """
    if engine.config is None:
        raise BackendError(
            f"{engine.path} has no config.json: it was not built from a model of this toolkit"
        )
    runner = EngineRunner(engine, plugin_library=plugin_library)
    kind = CachedTrtSession if runner.cache_pairs else TrtSession
    return kind(engine, engine.config, runner)


class TrtSession(FullSequenceSession):
    """An engine without a cache."""

    def __init__(self, engine: EngineFolder, config: AndreaConfig, runner: EngineRunner) -> None:
        super().__init__()
        self.config, self.dtype = config, engine.precision
        self.label = _label(engine)
        self._runner: EngineRunner | None = runner
        self._widest = max(profile["input_ids"][2][1] for profile in runner.profiles)
        self._bound: dict[tuple[int, int], BoundCall] = {}

    @property
    def limit(self) -> int:
        return min(self._widest, self.config.context_length)

    def _forward(self, input_ids: Array) -> Array:
        assert self._runner is not None, "the session is closed"
        shape = input_ids.shape
        if shape not in self._bound:
            # One shape at a time: buffers of logits are large.
            wanted = plan(self._runner.specs, self._runner.profiles, *shape)
            self._bound = {shape: self._runner.bind(wanted, {})}
        ids = torch.from_numpy(np.ascontiguousarray(input_ids))
        return _on_host(self._bound[shape].run({"input_ids": ids}))

    def close(self) -> None:
        super().close()
        self._bound = {}
        if self._runner is not None:
            self._runner.close()
        self._runner = None


class CachedTrtSession(CachedSession):
    """An engine with a cache of fixed capacity, updated in place on the GPU.

    Logits stay there until they are asked for.
    """

    def __init__(self, engine: EngineFolder, config: AndreaConfig, runner: EngineRunner) -> None:
        super().__init__()
        self.config, self.dtype = config, engine.precision
        self.label = _label(engine) + " with cache"
        self._runner: EngineRunner | None = runner
        by_name = {spec.name: spec for spec in runner.specs}
        self._fixed = by_name[next(iter(runner.cache_pairs))].shape[2]
        self._has_new_length = "new_length" in by_name
        self._caches: dict[str, torch.Tensor] = {}
        self._bound: dict[tuple[int, int], BoundCall] = {}
        self._on_device: torch.Tensor | None = None

    @property
    def limit(self) -> int:
        return min(self._fixed, self.config.context_length)

    @property
    def logits(self) -> Array:
        """Logits [B, V] after each row's last token, fetched from the GPU now."""
        return _on_host(self._device_logits)

    def likeliest(self, vocab_size: int) -> Array:
        """Chosen on the GPU: only the ids come to the host, in the one wait of a token."""
        logits = self._device_logits[:, :vocab_size]
        ids = logits.argmax(-1, keepdim=True)
        is_finite = logits.gather(-1, ids).isfinite()
        return torch.where(is_finite, ids, -1)[:, 0].cpu().numpy()

    @property
    def _device_logits(self) -> torch.Tensor:
        if self._on_device is None:
            raise InputError("there are no logits yet: call prefill first")
        return self._on_device

    def _forward(self, input_ids: Array) -> Array:
        if self._has_new_length:
            raise BackendError(
                "this engine gives the logits of last tokens only (its graph was exported with "
                "--logits last): export with --logits all to see every token's"
            )
        rows, width = input_ids.shape
        call = self._bind(rows, width, self._zeros(rows))
        return _on_host(call.run(_inputs(input_ids, np.zeros(rows, np.int64), None)))

    def _allocate(self, rows: int, capacity: int) -> None:  # noqa: ARG002  (it is fixed)
        if self._caches and len(next(iter(self._caches.values()))) == rows:
            for cache in self._caches.values():
                cache.zero_()
        else:
            self._bound = {}
            self._caches = self._zeros(rows)

    def _grow(self, capacity: int) -> None:
        raise AssertionError(f"an engine's cache cannot grow to {capacity}")

    def _bucket(self, slots: int) -> int:
        if slots > self.limit:
            raise InputError(f"{slots} tokens do not fit: the engine's cache ends at {self.limit}")
        return self._fixed

    def _run(self, input_ids: Array, past_length: Array, new_length: Array) -> Array:
        shape = input_ids.shape
        if shape not in self._bound:
            if shape[1] > 1:  # of the prompts only the last shape stays bound
                self._bound = {bound: call for bound, call in self._bound.items() if bound[1] == 1}
            self._bound[shape[0], shape[1]] = self._bind(shape[0], shape[1], self._caches)
        lengths = new_length if self._has_new_length else None
        logits = self._bound[shape].run(_inputs(input_ids, past_length, lengths))
        if logits.shape[1] == 1:
            self._on_device = logits[:, 0]  # a view: a step allocates nothing
        else:
            rows = torch.arange(len(input_ids), device=logits.device)
            self._on_device = logits[rows, torch.from_numpy(new_length - 1).to(logits.device)]
        # The protocol's array is made when it is asked for; what it counts by is the rows.
        return np.empty((len(input_ids), 0), np.float32)

    def _bind(self, rows: int, width: int, caches: dict[str, torch.Tensor]) -> BoundCall:
        assert self._runner is not None, "the session is closed"
        return self._runner.bind(
            plan(self._runner.specs, self._runner.profiles, rows, width), caches
        )

    def _zeros(self, rows: int) -> dict[str, torch.Tensor]:
        assert self._runner is not None, "the session is closed"
        shape = (rows, self.config.n_head, self._fixed, self.config.head_dim)
        return {name: self._runner.buffer(name, shape) for name in self._runner.cache_pairs}

    def close(self) -> None:
        super().close()
        self._bound, self._caches, self._on_device = {}, {}, None
        if self._runner is not None:
            self._runner.close()
        self._runner = None


def _inputs(
    input_ids: Array, past_length: Array, new_length: Array | None
) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": input_ids, "past_length": past_length}
    if new_length is not None:
        inputs["new_length"] = new_length
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}


def _on_host(logits: torch.Tensor) -> Array:
    return logits.float().cpu().numpy()


def _label(engine: EngineFolder) -> str:
    return f"trt ({engine.flavor}, {engine.precision})"

"""What decode_gpu.py compares: engines and torch, each as a step that stays on the GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from andrea_model import AndreaConfig
from andrea_model.checkpoint import Checkpoint, load_model
from andrea_model.kv_cache import KVCache
from andrea_model.parameters import count_parameters

__all__ = ["CONTESTANTS", "WARM_UP_STEPS", "Decoder", "Plan"]

WARM_UP_STEPS = 4


@dataclass(frozen=True)
class Plan:
    """What is run where."""

    device: str
    dtype: torch.dtype
    checkpoint: Checkpoint
    contexts: tuple[int, ...]
    tokens: int
    rounds: int

    @property
    def config(self) -> AndreaConfig:
        return self.checkpoint.config

    @property
    def weight_bytes(self) -> int:
        return count_parameters(self.config) * self.dtype.itemsize


class Decoder(Protocol):
    """A model whose next token is a step away."""

    def start(self, past: int) -> None:
        """Go back to a cache of `past` tokens."""

    def step(self) -> None:
        """One token: read, chosen and written on the device. Waits for nothing."""


class TorchDecoder:
    """The reference model over a static cache; `prepare` makes something faster of its step."""

    def __init__(
        self, plan: Plan, prepare: Callable[[Callable[[], None]], Callable[[], None]] | None = None
    ) -> None:
        self.model = load_model(plan.checkpoint, plan.dtype).to(plan.device)
        empty = KVCache.zeros(plan.config, 1, plan.config.context_length, plan.dtype)
        # What is in the cache changes no time; normal numbers keep all of it finite.
        self.cache = KVCache(*(torch.randn_like(part).to(plan.device) for part in _parts(empty)))
        self.ids = torch.zeros((1, 1), dtype=torch.int64, device=plan.device)
        self.past = torch.zeros(1, dtype=torch.int64, device=plan.device)
        self._step = prepare(self._next) if prepare is not None else self._next

    def _next(self) -> None:
        logits = self.model(self.ids, self.cache, self.past)
        self.ids.copy_(logits.argmax(-1))
        self.past.add_(1)

    def start(self, past: int) -> None:
        self.past.fill_(past)
        self.ids.zero_()

    def step(self) -> None:
        with torch.no_grad():
            self._step()


def _parts(cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
    return cache.keys, cache.values


class EngineDecoder:
    """A bound call of an engine: its buffers hold the ids, the lengths and the cache."""

    def __init__(self, call: Any) -> None:
        self.call = call
        for name, buffer in call.buffers.items():
            if name.startswith("past_key_values."):
                buffer.normal_()
        if "new_length" in call.buffers:
            call.buffers["new_length"].fill_(1)

    def start(self, past: int) -> None:
        self.call.buffers["past_length"].fill_(past)
        self.call.buffers["input_ids"].zero_()

    def step(self) -> None:
        with torch.no_grad():
            logits = self.call.run({})
            self.call.buffers["input_ids"].copy_(logits.argmax(-1))
            self.call.buffers["past_length"].add_(1)


class PlayedCall:
    """What an engine's bound call looks like, played by torch: for the dry run."""

    def __init__(self, plan: Plan) -> None:
        self.decoder = TorchDecoder(plan)
        self.buffers = {
            "input_ids": self.decoder.ids,
            "past_length": self.decoder.past,
            "new_length": torch.ones(1, dtype=torch.int64),
            "past_key_values.0.key": self.decoder.cache.keys,
        }

    def run(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        assert not inputs
        model, cache = self.decoder.model, self.decoder.cache
        logits: torch.Tensor = model(self.buffers["input_ids"], cache, self.buffers["past_length"])
        return logits


def engine(plan: Plan, plugins: Literal["on", "off"]) -> Decoder:
    """Builds an engine for batch 1 and binds its step of one token."""
    if plan.device == "cpu":
        return EngineDecoder(PlayedCall(plan))
    from andrea_export.engine import EngineOptions, build_engine
    from andrea_export.session.trt_bindings import plan as bindings
    from andrea_export.session.trt_runner import EngineRunner

    options = EngineOptions(
        dtype="fp16",
        flavor="tensorrt",
        plugins=plugins,
        kv_cache=True,
        batch="1:1:1",
        capacity=plan.config.context_length,
    )
    folder = Path(tempfile.mkdtemp()) / plugins
    runner = EngineRunner(build_engine(plan.checkpoint, folder, options))
    shape = (1, plan.config.n_head, plan.config.context_length, plan.config.head_dim)
    caches = {name: runner.buffer(name, shape) for name in runner.cache_pairs}
    return EngineDecoder(runner.bind(bindings(runner.specs, runner.profiles, 1, 1), caches))


def compiled(plan: Plan) -> Decoder:
    """torch.compile, and its kernels in one CUDA graph.

    Captured by hand: torch's own graphs ("reduce-overhead") are skipped without an error where a
    step writes into its inputs, as a cache must.
    """
    backend = "inductor" if plan.device == "cuda" else "eager"

    def prepare(step: Callable[[], None]) -> Callable[[], None]:
        faster = torch.compile(step, fullgraph=True, backend=backend)
        return captured(faster) if plan.device == "cuda" else faster

    return TorchDecoder(plan, prepare)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(WARM_UP_STEPS):  # compiles, and settles what must not be in a graph
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        step()
    return graph.replay


CONTESTANTS: dict[str, Callable[[Plan], Decoder]] = {
    "native_engine": lambda plan: engine(plan, "off"),
    "plugin_engine": lambda plan: engine(plan, "on"),
    "torch_eager": TorchDecoder,
    "torch_compile": compiled,
}

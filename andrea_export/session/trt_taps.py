"""An engine whose layers are looked at: every run gives the values of its taps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from andrea_export.engine.layer_tensors import LayerTensors
from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import BackendError
from andrea_export.layer_names import LOGITS, tap_names, value_name, width_of
from andrea_export.session.layer_values import LayerValues
from andrea_export.session.protocol import Array
from andrea_export.session.trt_bindings import BindingPlan, plan
from andrea_export.session.trt_runner import BoundCall, EngineRunner
from andrea_model.config import AndreaConfig

__all__ = ["EngineTaps", "open_engine_taps"]


def open_engine_taps(engine: EngineFolder, *, plugin_library: Path | None = None) -> EngineTaps:
    """The taps of an engine that was built with layer tensors.

    Raises:
        BackendError: this machine cannot run it, it was built without, or gives last logits only.
        EngineError: the file is not the one that the sidecar describes.
    """
    if engine.config is None or engine.layer_tensors is None:
        raise BackendError(f"{engine.path} was built without --layer-tensors")
    runner = EngineRunner(engine, plugin_library=plugin_library)
    return EngineTaps(engine.config, engine.layer_tensors, runner)


class EngineTaps:
    """Ids [B, T] → tap → float32 [B, T, width], for the taps that the engine shows.

    Each run has a context of its own, in which debug tensors are on and nothing is captured into a
    CUDA graph; no other context of the engine has them on.
    """

    def __init__(self, config: AndreaConfig, marked: LayerTensors, runner: EngineRunner) -> None:
        if any(spec.name == "new_length" for spec in runner.specs):
            runner.close()
            raise BackendError(
                "this engine gives the logits of last tokens only (its graph was exported with "
                "--logits last): export with --logits all to see every token's"
            )
        self._config, self._marked, self._runner = config, marked, runner
        self._refused: dict[str, str] = {}
        self._listener: Any = None  # TensorRT calls it, and need not keep it alive

    @property
    def unseen(self) -> str:
        """Why a run did not give the other taps."""
        others = "are fused away" if self._marked.form == "unfused" else "are not in the engine"
        text = f"the others {others}"
        if self._refused:
            tap, reason = next(iter(self._refused.items()))
            text += f"; {len(self._refused)} not used, because unclear: {tap} had {reason}"
        return text

    def __call__(self, ids: Array) -> dict[str, Array]:
        """Run once.

        Raises:
            BackendError: TensorRT fails, or a tensor cannot be read.
            InputError: no optimization profile takes these ids.
        """
        rows, width = ids.shape
        wanted = plan(self._runner.specs, self._runner.profiles, rows, width)
        taken = LayerValues(
            {
                tap: (rows, width, width_of(tap, self._config))
                for tap in tap_names(self._config)
                if tap != LOGITS
            },
            wanted.profile,
        )
        call = self._bind(wanted, taken)
        logits = call.run(self._inputs(ids)).float().cpu().numpy()
        if taken.errors:
            raise BackendError(f"reading the engine's layers failed: {taken.errors[0]}")
        self._refused |= taken.refused
        values = taken.values if self._marked.form != "outputs" else self._outputs(call)
        return {**values, LOGITS: logits}

    def _bind(self, wanted: BindingPlan, taken: LayerValues) -> BoundCall:
        caches = {
            name: self._runner.buffer(name, wanted.shapes[name])
            for name in self._runner.cache_pairs
        }
        return self._runner.bind(wanted, caches, prepare=self._listening(taken))

    def _listening(self, taken: LayerValues) -> Callable[[Any], None]:
        """What a context needs before it runs."""
        if self._marked.form == "outputs":
            return lambda _context: None
        from andrea_export.session.trt_debug import debug_listener, listen

        names = []
        if self._marked.form == "named":
            missing = self._marked.missing
            values = (value_name(tap) for tap in tap_names(self._config) if tap != LOGITS)
            names = [name for name in values if name not in missing]
        self._listener = debug_listener(taken)
        return lambda context: listen(context, self._listener, names)

    def _inputs(self, ids: Array) -> dict[str, torch.Tensor]:
        inputs = {"input_ids": ids}
        if self._runner.cache_pairs:
            inputs["past_length"] = np.zeros(len(ids), np.int64)
        return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in inputs.items()}

    def _outputs(self, call: BoundCall) -> dict[str, Array]:
        taps = {value_name(tap): tap for tap in tap_names(self._config)}
        return {
            tap: call.buffers[name].float().cpu().numpy()
            for name, tap in taps.items()
            if name in call.buffers and tap != LOGITS
        }

"""The process that parses and builds: one request in, events out, nothing else in its memory.

It is a process of its own because a parser can kill the one it runs in, because TensorRT-RTX dies
where our plugin library is loaded, and because a build can then be stopped at any time.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from andrea_export.engine.network_record import LayerRecord, forms_of_ops, tensor_types
from andrea_export.engine.precision import check_precision, precision_of
from andrea_export.engine.profiles import (
    NetworkInput,
    Profile,
    Range,
    check_profile,
    default_profiles,
    fill_profile,
    parse_profile,
)
from andrea_export.engine.request import BuildRequest
from andrea_export.errors import AndreaExportError, EngineError

__all__ = ["main"]

REPORT_EVERY_SECONDS = 0.1
# Said at every build of a right graph; they would bury what matters.
CACHE_SINCE = "10.15"
NO_DRIVER = "cudaError 35"
NOISE = ("has Int64 binding", "already exists, the output tensors of this new instance")


class Worker:
    """Carries out one request; `events` takes its JSON lines."""

    def __init__(self, request: BuildRequest, events: TextIO) -> None:
        self.request, self._events = request, events
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self._reported = 0.0
        self.cancelled = False

    def send(self, event: str, **values: Any) -> None:
        print(json.dumps({"event": event, **values}), file=self._events, flush=True)

    def log(self, severity: str, text: str) -> None:
        text = " ".join(text.split())
        if severity == "error":
            # Without a driver every build logs that one too, failed or not.
            if NO_DRIVER not in text or not self.errors:
                self.errors.append(text)
        elif not any(noise in text for noise in NOISE):
            self.warnings.append(text)

    def report(self, fraction: float, phase: str) -> None:
        now = time.monotonic()
        if now - self._reported > REPORT_EVERY_SECONDS:
            self._reported = now
            self.send("progress", fraction=fraction, phase=phase)

    def is_cancelled(self) -> bool:
        """Our parent closes our standard input when it wants us to stop, or when it is gone."""
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        self.cancelled = self.cancelled or bool(ready)
        return self.cancelled

    def run(self) -> dict[str, Any]:
        """Parse, check, build and write.

        Returns:
            What the sidecar says of network and engine.

        Raises:
            AndreaExportError: the graph, the profiles or the engine are not what they should be.
        """
        from andrea_export.engine import binding, building, parsing

        request, started = self.request, time.monotonic()
        flavor = binding.use_flavor(request.flavor)
        trt, logger = binding.trt, binding.logger(self.log)
        builder = trt.Builder(logger)
        if request.plugin_library is not None:
            assert flavor.takes_plugins, "a plugin library kills TensorRT-RTX's parser"
            binding.load_plugins(request.plugin_library, self.errors)
        config = building.configure(builder, request)

        if request.capacity is not None and not hasattr(trt.LayerType, "KV_CACHE_UPDATE"):
            raise EngineError(
                f"a graph with a cache needs TensorRT {CACHE_SINCE} or newer, which updates it in "
                f"place; installed is {trt.__version__}"
            )
        self.send("stage", name="parsing")
        parsing_started = time.monotonic()
        network = parsing.create_network(builder)
        onnx = Path(request.onnx)
        parsing.parse_onnx(
            network,
            logger,
            onnx,
            capacity=request.capacity,
            error_log=lambda: self.errors,
        )
        attention = parsing.allow_decomposed_attention(network)
        layers = parsing.record_layers(network)
        inputs = parsing.network_inputs(network)
        if request.dtype is not None:
            check_precision(layers, request.dtype)
        forms = forms_of_ops(layers, self._plugin_nodes(onnx), request.custom_ops)
        profiles = self._profiles(inputs)
        for profile in profiles:
            building.add_profile(builder, config, profile)
        parse_seconds = time.monotonic() - parsing_started

        self.send("stage", name="building")
        building_started = time.monotonic()
        config.progress_monitor = building.progress_monitor(self.report, self.is_cancelled)
        sha256 = building.build_to_file(builder, network, config, Path(request.engine))
        if sha256 is None:
            reason = " / ".join(self.errors[-3:]) or "it gives no reason"
            raise EngineError(f"{onnx}: {flavor.title} cannot build the engine: {reason}")
        build_seconds = time.monotonic() - building_started
        if request.timing_cache is not None:
            building.save_timing_cache(config, Path(request.timing_cache))
        self._write_network(layers)
        read_back = None
        if request.read_back:
            from andrea_export.engine.read_back import check_engine, inspect_engine

            read_back = inspect_engine(Path(request.engine), logger)
            check_engine(read_back, request.dtype or precision_of(layers))
        return {
            "version": trt.__version__,
            "sha256": sha256,
            "bytes": os.path.getsize(request.engine),
            "precision": precision_of(layers),
            "tensor_types": tensor_types(layers),
            "layers": len(layers),
            "engine": read_back,
            "attention_layers": attention,
            "custom_ops": forms,
            "inputs": [asdict(i) for i in inputs],
            "outputs": [asdict(o) for o in parsing.network_outputs(network)],
            "profiles": building.profiles_as_json(profiles),
            "capacity": cache_capacity(inputs),
            "warnings": sorted(set(self.warnings)),
            "seconds": {
                "parse": round(parse_seconds, 3),
                "build": round(build_seconds, 3),
                "process": round(time.monotonic() - started, 3),
            },
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def _plugin_nodes(self, onnx: Path) -> dict[str, str]:
        if self.request.plugin_library is None:
            return {}
        from andrea_export.engine.onnx_nodes import custom_nodes

        return custom_nodes(onnx)

    def _profiles(self, inputs: list[NetworkInput]) -> list[Profile]:
        request = self.request
        limits = sequence_limits(inputs, request.context_length)
        axes = default_profiles(
            inputs,
            sequence_limit=limits["sequence"][0] if limits else None,
            batch=Range.parse(request.batch, "--batch") if request.batch else None,
            sequence=Range.parse(request.sequence, "--sequence") if request.sequence else None,
        )
        if request.profiles:
            profiles = [
                fill_profile(inputs, axes[-1], parse_profile(text)) for text in request.profiles
            ]
        else:
            profiles = [fill_profile(inputs, ranges) for ranges in axes]
        for profile in profiles:
            check_profile(profile, inputs, limits)
        return profiles

    def _write_network(self, layers: list[LayerRecord]) -> None:
        record = {"schema": 1, "layers": [layer.to_dict() for layer in layers]}
        Path(self.request.network).write_text(json.dumps(record, separators=(",", ":")), "utf-8")


def cache_capacity(inputs: list[NetworkInput]) -> int | None:
    """Size of the cache's sequence axis, where the graph has a cache."""
    caches = (i.shape[2] for i in inputs if i.name.startswith("past_key_values."))
    return next((size for size in caches if isinstance(size, int)), None)


def sequence_limits(
    inputs: list[NetworkInput], context_length: int | None
) -> dict[str, tuple[int, str]]:
    """The longest sequence, and what sets it: the model's context, or a smaller cache."""
    limits = []
    if context_length is not None:
        limits.append((context_length, "the model's context length"))
    if (capacity := cache_capacity(inputs)) is not None:
        limits.append((capacity, "the capacity of its cache"))
    return {"sequence": min(limits)} if limits else {}


def main() -> int:
    """Read a request from standard input; write events to the file descriptor that is named."""
    events = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    worker = Worker(BuildRequest.from_json(sys.stdin.readline()), events)
    try:
        worker.send("done", **worker.run())
    except AndreaExportError as error:
        worker.send("error", kind=type(error).__name__, message=str(error))
        return 1
    except UnicodeDecodeError as error:  # from TensorRT's bindings, of any name in the graph
        message = f"{worker.request.onnx}: the file is damaged: a name in it is no text ({error})"
        worker.send("error", kind="EngineError", message=message)
        return 1
    return 0


if __name__ == "__main__":
    # All is written. Taking TensorRT's objects apart first would only cost time.
    os._exit(main())

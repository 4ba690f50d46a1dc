"""One build from beginning to end, as the building process goes through it."""

from __future__ import annotations

import json
import os
import resource
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from andrea_export.engine import binding, building, parsing
from andrea_export.engine.binding import trt
from andrea_export.engine.layer_tensors import OFF, LayerTensors
from andrea_export.engine.marking import mark_layer_tensors
from andrea_export.engine.network_record import forms_of_ops, tensor_types
from andrea_export.engine.onnx_nodes import custom_nodes
from andrea_export.engine.precision import check_precision, precision_of
from andrea_export.engine.profiles import (
    BATCH,
    SEQUENCE,
    NetworkInput,
    Profile,
    Range,
    check_profile,
    default_profiles,
    fill_profile,
    parse_profile,
)
from andrea_export.engine.read_back import check_engine, inspect_engine
from andrea_export.engine.request import BuildRequest
from andrea_export.errors import EngineError

__all__ = ["Build", "Reporter"]

CACHE_SINCE = "10.15"
LAST_ERRORS = 3


class Reporter(Protocol):
    """Whom a build tells what it does, and asks whether to stop. `errors`: what TensorRT logged."""

    errors: list[str]
    warnings: list[str]

    def log(self, severity: str, text: str) -> None: ...
    def report(self, fraction: float, phase: str) -> None: ...
    def is_cancelled(self) -> bool: ...


class Build:
    """The builder, network and settings of one request; its steps are called in their order.

    Raises:
        BackendError: TensorRT cannot be loaded.
        EngineError: a setting that it does not have, or a plugin library that it cannot load.
    """

    def __init__(self, request: BuildRequest, reporter: Reporter) -> None:
        self.request, self.reporter = request, reporter
        self.started = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.flavor = binding.use_flavor(request.flavor)
        self.logger = binding.logger(reporter.log)
        self.builder = trt.Builder(self.logger)
        if request.plugin_library is not None:
            assert self.flavor.takes_plugins, "a plugin library kills TensorRT-RTX's parser"
            binding.load_plugins(request.plugin_library, reporter.errors)
        self.config = building.configure(self.builder, request)

    def parse(self) -> None:
        """Read the graph into a network, and record it.

        Raises:
            EngineError: TensorRT cannot use the graph.
        """
        request, started = self.request, time.monotonic()
        if request.capacity is not None and not hasattr(trt.LayerType, "KV_CACHE_UPDATE"):
            raise EngineError(
                f"a graph with a cache needs TensorRT {CACHE_SINCE} or newer, which updates it in "
                f"place; installed is {trt.__version__}"
            )
        self.network = parsing.create_network(self.builder)
        parsing.parse_onnx(
            self.network,
            self.logger,
            Path(request.onnx),
            capacity=request.capacity,
            error_log=lambda: self.reporter.errors,
        )
        self.attention_layers = parsing.allow_decomposed_attention(self.network)
        self.layers = parsing.record_layers(self.network)
        self.inputs = parsing.network_inputs(self.network)
        self.outputs = parsing.network_outputs(self.network)  # the model's, before any is added
        self.layer_tensors: LayerTensors | None = None
        if request.layer_tensors != OFF:
            self.layer_tensors = mark_layer_tensors(
                self.network, request.layer_tensors, request.layer_names
            )
        self.seconds["parse"] = time.monotonic() - started

    def check(self) -> None:
        """Hold the network against what was asked for, before the long part begins.

        Raises:
            EngineError: another precision, or profiles that the graph cannot take.
        """
        request = self.request
        if request.dtype is not None:
            check_precision(self.layers, request.dtype)
        plugins = {} if request.plugin_library is None else custom_nodes(Path(request.onnx))
        self.forms = forms_of_ops(self.layers, plugins, request.custom_ops)
        self.profiles = _profiles(request, self.inputs)
        for profile in self.profiles:
            building.add_profile(self.builder, self.config, profile)

    def build(self) -> None:
        """Build the engine and write it, with the record of its network.

        Raises:
            EngineError: TensorRT gives up (its words are kept), or built another precision.
        """
        request, started = self.request, time.monotonic()
        self.config.progress_monitor = building.progress_monitor(
            self.reporter.report, self.reporter.is_cancelled
        )
        engine = Path(request.engine)
        sha256 = building.build_to_file(self.builder, self.network, self.config, engine)
        if sha256 is None:
            reason = " / ".join(self.reporter.errors[-LAST_ERRORS:]) or "it gives no reason"
            raise EngineError(
                f"{request.onnx}: {self.flavor.title} cannot build the engine: {reason}"
            )
        self.sha256 = sha256
        self.seconds["build"] = time.monotonic() - started
        if request.timing_cache is not None:
            building.save_timing_cache(self.config, Path(request.timing_cache))
        record = {"schema": 1, "layers": [layer.to_dict() for layer in self.layers]}
        Path(request.network).write_text(json.dumps(record, separators=(",", ":")), "utf-8")
        self.read_back: dict[str, Any] | None = None
        if request.read_back:
            self.read_back = inspect_engine(engine, self.logger)
            check_engine(self.read_back, request.dtype or precision_of(self.layers))

    def facts(self) -> dict[str, Any]:
        """What the sidecar says of network and engine."""
        self.seconds["process"] = time.monotonic() - self.started
        return {
            "version": trt.__version__,
            "sha256": self.sha256,
            "bytes": os.path.getsize(self.request.engine),
            "precision": precision_of(self.layers),
            "tensor_types": tensor_types(self.layers),
            "layers": len(self.layers),
            "engine": self.read_back,
            "attention_layers": self.attention_layers,
            "custom_ops": self.forms,
            "layer_tensors": None if self.layer_tensors is None else self.layer_tensors.to_dict(),
            "inputs": [asdict(i) for i in self.inputs],
            "outputs": [asdict(o) for o in self.outputs],
            "profiles": building.profiles_as_json(self.profiles),
            "capacity": _cache_capacity(self.inputs),
            "warnings": sorted(set(self.reporter.warnings)),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }


def _profiles(request: BuildRequest, inputs: list[NetworkInput]) -> list[Profile]:
    limits = _sequence_limits(inputs, request.context_length)
    axes = default_profiles(
        inputs,
        sequence_limit=limits["sequence"][0] if limits else None,
        batch=None if request.batch is None else Range.parse(request.batch, "--batch"),
        sequence=None if request.sequence is None else Range.parse(request.sequence, "--sequence"),
    )
    if request.profiles:
        given = [parse_profile(text) for text in request.profiles]
        options = {BATCH: request.batch, SEQUENCE: request.sequence}
        asked = [axis for axis, text in options.items() if text is not None]
        profiles = [fill_profile(inputs, axes[-1], profile, asked) for profile in given]
    else:
        profiles = [fill_profile(inputs, ranges) for ranges in axes]
    for profile in profiles:
        check_profile(profile, inputs, limits)
    return profiles


def _cache_capacity(inputs: list[NetworkInput]) -> int | None:
    """Size of the cache's sequence axis, where the graph has a cache."""
    caches = (i.shape[2] for i in inputs if i.name.startswith("past_key_values."))
    return next((size for size in caches if isinstance(size, int)), None)


def _sequence_limits(
    inputs: list[NetworkInput], context_length: int | None
) -> dict[str, tuple[int, str]]:
    """The longest sequence, and what sets it: the model's context, or a smaller cache."""
    limits = []
    if context_length is not None:
        limits.append((context_length, "the model's context length"))
    if (capacity := _cache_capacity(inputs)) is not None:
        limits.append((capacity, "the capacity of its cache"))
    return {"sequence": min(limits)} if limits else {}

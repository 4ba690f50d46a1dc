"""Which part of ONNX Runtime runs a graph, and which part really ran each node of it.

A node that a provider cannot take goes to the CPU without a word: the classic trap. So the runtime
is asked where it put every node, and the session says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea_export.errors import BackendError

__all__ = ["PROVIDERS", "RECORD_PLACEMENT", "Placement", "placement_of", "provider_arguments"]

PROVIDERS: dict[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
# These compute shapes, and belong on the CPU whatever the provider is.
SHAPE_OPS = frozenset(
    {"Shape", "Size", "Squeeze", "Unsqueeze", "Range", "Concat", "Slice", "Constant", "Cast",
     "Gather", "Reshape", "Add", "Sub", "Mul", "Min", "Max", "ReduceMax"}
)  # fmt: skip
RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"


@dataclass(frozen=True)
class Placement:
    """Where a graph's nodes run: provider → op type → how many."""

    ops: dict[str, dict[str, int]]

    @property
    def on_cpu(self) -> dict[str, int]:
        """Op types on the CPU that are no arithmetic of shapes: what has silently fallen back."""
        found = self.ops.get(PROVIDERS["cpu"], {})
        return {op: count for op, count in found.items() if op not in SHAPE_OPS}

    def __str__(self) -> str:
        counts = (
            f"{sum(ops.values())} nodes on {provider.removesuffix('ExecutionProvider')}"
            for provider, ops in self.ops.items()
        )
        return ", ".join(counts)


def provider_arguments(
    provider: str, available: list[str], plugin_library: Path | None = None
) -> list[tuple[str, dict[str, str]]]:
    """The providers to give to ONNX Runtime, in the order in which they may take nodes.

    Args:
        provider: "cpu", "cuda" or "tensorrt".
        available: what the installed ONNX Runtime has.
        plugin_library: ours, for the TensorRT provider.

    Raises:
        BackendError: an unknown provider, one that is not available, or a library for another one.
    """
    if provider not in PROVIDERS:
        raise BackendError(f"provider {provider!r} is not one of {', '.join(PROVIDERS)}")
    if plugin_library is not None and provider != "tensorrt":
        raise BackendError(f"the {provider} provider takes no plugin library, only tensorrt does")
    if PROVIDERS[provider] not in available:
        raise BackendError(
            f"the installed ONNX Runtime has no {provider} provider "
            f"(it has {', '.join(available)}): pip install 'andrea-export[gpu]'"
        )
    order = {"cpu": ("cpu",), "cuda": ("cuda", "cpu"), "tensorrt": ("tensorrt", "cuda", "cpu")}
    wanted = [PROVIDERS[name] for name in order[provider] if PROVIDERS[name] in available]
    options: dict[str, str] = {}
    if plugin_library is not None:
        options["trt_extra_plugin_lib_paths"] = str(plugin_library)
    return [(name, options if name == PROVIDERS["tensorrt"] else {}) for name in wanted]


def placement_of(runtime: Any) -> Placement:
    """Where an InferenceSession has put its nodes.

    It must have been made with RECORD_PLACEMENT.
    """
    ops: dict[str, Counter[str]] = {}
    for subgraph in runtime.get_provider_graph_assignment_info():
        counts = ops.setdefault(subgraph.ep_name, Counter())
        counts.update(node.op_type for node in subgraph.get_nodes())
    return Placement({name: dict(counts.most_common()) for name, counts in ops.items()})

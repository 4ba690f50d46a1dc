"""Loading a graph into ONNX Runtime, and its errors in our terms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from andrea_export.errors import BackendError, require
from andrea_export.graph.folder import GraphFolder

__all__ = ["load_graph", "running"]

LOG_ERRORS_ONLY = 3


def load_graph(graph: GraphFolder, threads: int | None = None) -> Any:
    """An `onnxruntime.InferenceSession` on the CPU provider.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
        BackendError: ONNX Runtime cannot load the graph; its own words are kept.
    """
    require("onnxruntime", extra="cpu", purpose="running an ONNX model")
    import onnxruntime as ort

    if graph.options.dtype == "bf16":
        raise BackendError(
            f"{graph.path}: ONNX Runtime's CPU provider has no bf16 kernels; "
            "export with --dtype fp32 or fp16 to run on a CPU"
        )
    options = ort.SessionOptions()
    options.log_severity_level = LOG_ERRORS_ONLY
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return ort.InferenceSession(graph.model_path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise BackendError(f"{graph.path}: ONNX Runtime cannot load it: {error}") from error


@contextmanager
def running() -> Iterator[None]:
    """Gives what ONNX Runtime raises while it runs as a BackendError."""
    try:
        yield
    except Exception as error:
        raise BackendError(f"ONNX Runtime failed while running: {error}") from error

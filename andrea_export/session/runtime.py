"""Loading a graph into ONNX Runtime, and its errors in our terms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_export.errors import BackendError, require
from andrea_export.graph.folder import GraphFolder
from andrea_export.session.huge_pages import on_huge_pages
from andrea_export.session.in_memory import over_weights
from andrea_export.session.providers import PROVIDERS, RECORD_PLACEMENT, provider_arguments

if TYPE_CHECKING:
    import onnx

__all__ = ["load_graph", "running"]

LOG_NOTHING = 4  # what goes wrong is raised, and told once


def load_graph(
    graph: GraphFolder,
    threads: int | None = None,
    *,
    provider: str = "cpu",
    plugin_library: Path | None = None,
    model: onnx.ModelProto | None = None,
) -> Any:
    """An `onnxruntime.InferenceSession` on "cpu", "cuda" or "tensorrt".

    `model` runs in the place of the folder's own, over the weights that lie there.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
        BackendError: the provider is not there, or ONNX Runtime cannot load the graph; its own
            words are kept.
    """
    require("onnxruntime", extra="cpu", purpose="running an ONNX model")
    import onnxruntime as ort

    arguments = provider_arguments(provider, ort.get_available_providers(), plugin_library)
    if graph.options.dtype == "bf16" and provider == "cpu":
        raise BackendError(
            f"{graph.path}: ONNX Runtime's CPU provider has no bf16 kernels; "
            "export with --dtype fp32 or fp16 to run on a CPU"
        )
    options = ort.SessionOptions()
    options.log_severity_level = LOG_NOTHING
    options.add_session_config_entry(RECORD_PLACEMENT, "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        given = graph.model_path if model is None else over_weights(model, graph, options)
        with on_huge_pages(graph.data_path.stat().st_size if provider == "cpu" else 0):
            session = ort.InferenceSession(given, options, providers=arguments)
    except Exception as error:  # onnxruntime's exceptions share no base class
        # It wraps its own messages; the innermost says what is wrong.
        reason = str(error).rsplit("[ONNXRuntimeError]", 1)[-1].strip(" :\n")
        raise BackendError(f"{graph.path}: ONNX Runtime cannot load it: {reason}") from error
    if PROVIDERS[provider] not in session.get_providers():
        raise BackendError(
            f"ONNX Runtime could not start its {provider} provider and would run everything on "
            f"{', '.join(session.get_providers())}: `andrea-export doctor` shows what is missing"
        )
    return session


@contextmanager
def running() -> Iterator[None]:
    """Gives what ONNX Runtime raises while it runs as a BackendError."""
    try:
        yield
    except Exception as error:
        raise BackendError(f"ONNX Runtime failed while running: {error}") from error

"""Which runtime runs which artefact."""

from __future__ import annotations

from pathlib import Path

from andrea_export.engine.sidecar import EngineFolder, open_engine
from andrea_export.engine.source import is_engine_folder
from andrea_export.errors import BackendError
from andrea_export.graph.folder import GraphFolder, is_graph_folder, open_graph
from andrea_export.session.protocol import Session
from andrea_model.checkpoint import Checkpoint, open_checkpoint

__all__ = ["BACKENDS", "open_session", "open_source"]

BACKENDS = ("auto", "torch", "onnx", "trt")
Source = Checkpoint | GraphFolder | EngineFolder


def open_source(path: str | Path) -> Source:
    """The engine folder, the exported folder or the checkpoint at `path`.

    Raises:
        CheckpointError, GraphError, EngineError: none of them, or a damaged one.
    """
    if is_engine_folder(Path(path)):
        return open_engine(Path(path))
    return open_graph(Path(path)) if is_graph_folder(Path(path)) else open_checkpoint(path)


def open_session(
    source: Source,
    backend: str = "auto",
    *,
    dtype: str = "fp32",
    provider: str = "cpu",
    plugin_library: Path | None = None,
    as_exported: bool = False,
) -> Session:
    """A session over a checkpoint (torch), an exported folder (ONNX Runtime) or an engine.

    Args:
        source: what to run.
        backend: "auto" takes the one that runs this kind of source.
        dtype: of a torch session; graphs and engines have their own.
        provider: of ONNX Runtime: "cpu", "cuda" or "tensorrt".
        plugin_library: ours, for engines built with it and for the TensorRT provider.
        as_exported: run a graph by its own nodes alone, as a judge of the file must; otherwise
            ONNX Runtime on a CPU runs a float32 graph with a cache by ops of its own, faster.

    Raises:
        BackendError: a backend that does not exist or cannot run this source.
    """
    if backend not in BACKENDS:
        raise BackendError(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
    if isinstance(source, EngineFolder):
        session = _trt_session(source, backend, plugin_library)
    elif isinstance(source, GraphFolder):
        _check_onnx(source, backend)
        from andrea_export.session.onnx_session import CachedOnnxSession, OnnxSession

        kind = CachedOnnxSession if source.options.kv_cache else OnnxSession
        session = kind(
            source, provider=provider, plugin_library=plugin_library, as_exported=as_exported
        )
    else:
        session = _torch_session(source, backend, dtype)
    session.source = source
    return session


def _trt_session(engine: EngineFolder, backend: str, plugin_library: Path | None) -> Session:
    if backend not in ("auto", "trt"):
        raise BackendError(f"{engine.path} is an engine, which the trt backend runs alone")
    from andrea_export.session.trt_session import open_trt_session

    return open_trt_session(engine, plugin_library=plugin_library)


def _check_onnx(graph: GraphFolder, backend: str) -> None:
    if backend == "torch":
        raise BackendError(
            f"the torch backend runs checkpoints, and {graph.path} is an exported folder"
        )
    if backend == "trt":
        raise BackendError(
            f"the trt backend runs engines, and {graph.path} is an exported folder: "
            "`andrea-export trt DIR -o ENGINE` makes one"
        )


def _torch_session(checkpoint: Checkpoint, backend: str, dtype: str) -> Session:
    if backend == "trt":
        raise BackendError(
            "the trt backend runs engines, and this is a checkpoint: "
            "`andrea-export trt CKPT -o ENGINE` makes one"
        )
    if backend == "onnx":
        raise BackendError(
            "the onnx backend runs exported folders, and this is a checkpoint: "
            "`andrea-export onnx CKPT -o DIR` makes one"
        )
    from andrea_export.session.torch_session import TorchSession

    return TorchSession(checkpoint, dtype)

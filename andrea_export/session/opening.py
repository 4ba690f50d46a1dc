"""Which runtime runs which artefact."""

from __future__ import annotations

from andrea_export.errors import BackendError
from andrea_export.graph.folder import GraphFolder
from andrea_export.session.protocol import Session
from andrea_model.checkpoint import Checkpoint

__all__ = ["BACKENDS", "open_session"]

BACKENDS = ("auto", "torch", "onnx")


def open_session(
    source: Checkpoint | GraphFolder, backend: str = "auto", *, dtype: str = "fp32"
) -> Session:
    """A session over a checkpoint (torch) or an exported folder (ONNX Runtime).

    Args:
        source: what to run.
        backend: "auto" takes the one that runs this kind of source.
        dtype: of a torch session; a graph has its own.

    Raises:
        BackendError: a backend that does not exist or cannot run this source.
    """
    if backend not in BACKENDS:
        raise BackendError(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
    if isinstance(source, GraphFolder):
        if backend == "torch":
            raise BackendError(
                f"the torch backend runs checkpoints, and {source.path} is an exported folder"
            )
        from andrea_export.session.onnx_session import CachedOnnxSession, OnnxSession

        return CachedOnnxSession(source) if source.options.kv_cache else OnnxSession(source)
    if backend == "onnx":
        raise BackendError(
            "the onnx backend runs exported folders, and this is a checkpoint: "
            "`andrea-export onnx CKPT -o DIR` makes one"
        )
    from andrea_export.session.torch_session import TorchSession

    return TorchSession(source, dtype)

"""An exported folder, run by ONNX Runtime."""

from __future__ import annotations

from typing import Any

from andrea_export.errors import BackendError, require
from andrea_export.graph.folder import GraphFolder
from andrea_export.session.protocol import Array, Session

__all__ = ["OnnxSession"]

LOG_ERRORS_ONLY = 3


class OnnxSession(Session):
    """An exported folder on ONNX Runtime's CPU provider.

    That provider computes fp16 graphs in float32, and has no bf16 kernels at all.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
        BackendError: ONNX Runtime cannot load or run the graph; its own words are kept.
    """

    def __init__(self, graph: GraphFolder, *, threads: int | None = None) -> None:
        super().__init__()
        require("onnxruntime", extra="cpu", purpose="running an ONNX model")
        import onnxruntime as ort

        self.config, self.dtype = graph.config, graph.options.dtype
        self.label = f"onnx (CPU, {self.dtype})"
        if self.dtype == "bf16":
            raise BackendError(
                f"{graph.path}: ONNX Runtime's CPU provider has no bf16 kernels; "
                "export with --dtype fp32 or fp16 to run on a CPU"
            )
        options = ort.SessionOptions()
        options.log_severity_level = LOG_ERRORS_ONLY
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session: Any = ort.InferenceSession(
                graph.model_path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise BackendError(f"{graph.path}: ONNX Runtime cannot load it: {error}") from error
        self._fed = {argument.name for argument in self._session.get_inputs()}
        if self._fed != {"input_ids"}:
            raise BackendError(
                f"{graph.path}: the graph takes {', '.join(sorted(self._fed))}, "
                "this session gives input_ids alone"
            )

    def _run(self, input_ids: Array) -> Array:
        try:
            (logits,) = self._session.run(["logits"], {"input_ids": input_ids})
        except Exception as error:
            raise BackendError(f"ONNX Runtime failed while running: {error}") from error
        return logits  # type: ignore[no-any-return]

    def close(self) -> None:
        super().close()
        self._session = None

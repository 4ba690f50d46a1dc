"""The TensorRT of this process: full TensorRT or TensorRT-RTX, which offer the same Python names.

A process uses one of them, chosen once. Code that calls TensorRT imports `trt` from here, so it is
written once for both and can be held to the type stubs of full TensorRT.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from andrea_export.engine.flavors import FLAVORS, Flavor
from andrea_export.errors import BackendError, EngineError

__all__ = ["load_plugins", "logger", "trt", "use_flavor"]


class _Chosen:
    def __init__(self) -> None:
        self.module: Any = None

    def __getattr__(self, name: str) -> Any:
        assert self.module is not None, "use_flavor() comes first"
        return getattr(self.module, name)


if TYPE_CHECKING:
    import tensorrt as trt
else:
    trt = _Chosen()

_chosen: Any = trt
_logger: Any = None


def use_flavor(name: str) -> Flavor:
    """Load a flavor of TensorRT as the `trt` of this process.

    Raises:
        BackendError: it cannot be loaded here, or the process already uses the other one.
    """
    flavor = FLAVORS[name]
    loaded = getattr(_chosen, "module", None)
    if loaded is not None and loaded.__name__ != flavor.module:
        raise BackendError(
            f"this process already uses {loaded.__name__}: {flavor.title} needs one of its own"
        )
    try:
        _chosen.module = import_module(flavor.module)
    except Exception as error:  # ImportError, or whatever its libraries raise while loading
        raise BackendError(
            f"{flavor.title} is installed but cannot be loaded: {_one_line(error)}; "
            f"pip install --force-reinstall 'andrea-export[{flavor.extra}]'"
        ) from error
    return flavor


def logger(sink: Any) -> Any:
    """The process's one logger; `sink("error" or "warning", text)` gets its lines.

    A build logs some twelve thousand lines of less weight, which are let go at once. TensorRT keeps
    the first logger it sees and ignores every later one, so there is only this.
    """
    global _logger
    if _logger is None:
        kept = {
            trt.ILogger.INTERNAL_ERROR: "error",
            trt.ILogger.ERROR: "error",
            trt.ILogger.WARNING: "warning",
        }

        class Logger(trt.ILogger):  # type: ignore[misc,unused-ignore]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self.sink = sink

            def log(self, severity: Any, text: str) -> None:
                name = kept.get(severity)
                if name is not None:
                    self.sink(name, text)

        _logger = Logger()
    _logger.sink = sink
    return _logger


def load_plugins(library: str, errors: list[str]) -> None:
    """Load a plugin library into this process's registry.

    A builder or runtime must have been made before: TensorRT says what is wrong to their logger.

    Args:
        library: path of the library.
        errors: where the logger's sink puts errors.

    Raises:
        EngineError: TensorRT cannot load it; its own words are kept.
    """
    if trt.get_plugin_registry().load_library(library) is None:
        reason = " / ".join(errors[-2:]) or "TensorRT gives no reason"
        raise EngineError(f"{library}: the plugin library cannot be loaded: {reason}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

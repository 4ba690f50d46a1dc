"""Errors of the toolkit; the reference model's own, and all of them, share one root."""

from andrea_model.errors import (
    AndreaExportError,
    CheckpointError,
    ConfigError,
    InputError,
    NonFiniteWeightsError,
    TokenizerError,
)

__all__ = [
    "AndreaExportError",
    "BackendError",
    "CheckpointError",
    "ConfigError",
    "EngineError",
    "GraphError",
    "InputError",
    "MissingDependencyError",
    "NonFiniteLogitsError",
    "NonFiniteWeightsError",
    "OutputError",
    "TokenizerError",
    "require",
]


class OutputError(AndreaExportError):
    """A place that cannot be written: it exists already, the disk is full, no permission."""


class GraphError(AndreaExportError):
    """An ONNX file or exported folder that cannot be used, or a graph that cannot be made."""


class BackendError(AndreaExportError):
    """A runtime that cannot run this artefact on this machine."""


class EngineError(AndreaExportError):
    """An engine that cannot be built or used, or that is not what was asked for."""


class NonFiniteLogitsError(AndreaExportError):
    """A model that gives NaN or Inf where a token is to be chosen."""


class MissingDependencyError(AndreaExportError):
    """A package that this command needs is not installed."""


def require(module: str, *, extra: str, purpose: str) -> None:
    """Say which extra to install when an optional package is missing.

    Raises:
        MissingDependencyError: `module` is not installed.
    """
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise MissingDependencyError(
            f"{purpose} needs the package {module}, which is not installed: "
            f"pip install 'andrea-export[{extra}]'"
        )

"""Our own folder: `config.json` with model_type andrea, and `model.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea_model.checkpoint.checkpoint import Checkpoint
from andrea_model.checkpoint.checks import check_shapes
from andrea_model.checkpoint.safetensors_file import read_safetensors
from andrea_model.config import AndreaConfig
from andrea_model.errors import CheckpointError, ConfigError
from andrea_model.parameters import parameter_shapes

__all__ = ["WEIGHTS", "open_andrea_folder"]

WEIGHTS = "model.safetensors"


def open_andrea_folder(
    folder: Path,
    values: Mapping[str, Any],
    *,
    config: AndreaConfig | None = None,
    settings: Mapping[str, str] | None = None,
) -> Checkpoint:
    """values: the folder's config.json. A given config replaces it; settings change single fields.

    Raises:
        CheckpointError: no weights, damaged ones, or tensors that do not fit the config.
        ConfigError: a configuration that cannot exist.
    """
    weights = folder / WEIGHTS
    if not weights.is_file():
        is_graph = (folder / "model.onnx").is_file()
        hint = ": this is an exported graph, not a checkpoint" if is_graph else ""
        raise CheckpointError(f"{folder}: has no {WEIGHTS}{hint}")
    if config is None:
        try:
            config = AndreaConfig.from_dict(dict(values))
        except ConfigError as error:
            raise ConfigError(f"{folder / 'config.json'}: {error}") from error
    config = config.with_settings(dict(settings or {}))
    state, shapes = read_safetensors(weights), parameter_shapes(config)
    check_shapes(state, shapes, str(weights))
    return Checkpoint(
        path=folder,
        format="andrea",
        config=config,
        tensors={name: state[name] for name in shapes},
        files=(weights,),
    )

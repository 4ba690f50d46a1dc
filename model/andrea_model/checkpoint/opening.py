"""Telling the formats apart, and opening whichever it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from andrea_model.checkpoint.andrea_folder import open_andrea_folder
from andrea_model.checkpoint.bin_file import fits_bin, has_known_count, open_bin
from andrea_model.checkpoint.checkpoint import Checkpoint
from andrea_model.checkpoint.checks import check_finite
from andrea_model.checkpoint.gpt2_folder import open_gpt2_folder
from andrea_model.checkpoint.layout import Layout
from andrea_model.checkpoint.mapped_file import read_start
from andrea_model.checkpoint.nanogpt_file import open_nanogpt
from andrea_model.checkpoint.pickle_names import is_torch_file
from andrea_model.checkpoint.safetensors_file import looks_like_safetensors
from andrea_model.config import AndreaConfig
from andrea_model.demo import DEMO_NAME, demo_checkpoint
from andrea_model.errors import CheckpointError, ConfigError, shown
from andrea_model.presets import PRESETS
from andrea_model.tokenizer import existing_tokenizer, find_tokenizer

__all__ = ["open_checkpoint"]

FOLDERS = {"andrea": open_andrea_folder, "gpt2": open_gpt2_folder}
FORMATS = (
    "an ANDREA .bin, a folder with config.json and model.safetensors (andrea or gpt2), "
    "or nanoGPT's ckpt.pt"
)
TORCH_SUFFIXES = (".pt", ".pth", ".ckpt")
WEIGHT_SUFFIXES = (".bin", *TORCH_SUFFIXES, ".safetensors")
TORCH_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def open_checkpoint(
    source: str | Path,
    *,
    config: AndreaConfig | None = None,
    settings: Mapping[str, str] | None = None,
    layout: Layout | None = None,
    tokenizer: Path | None = None,
    allow_nonfinite: bool = False,
) -> Checkpoint:
    """Open trained weights of any known format, without reading them into memory.

    Args:
        source: a file or folder, or "andrea-nano" for the bundled demo checkpoint (a file or
            folder of that name wins).
        config: instead of the one that is found.
        settings: fields of the config as text, which win over both.
        layout: the order of tensors, for a `.bin`.
        tokenizer: instead of the one that lies beside the weights.
        allow_nonfinite: go on with NaN or Inf among the weights, with a note.

    Raises:
        CheckpointError: not there, not readable, no known format, damaged, or not fitting.
        NonFiniteWeightsError: NaN or Inf among the weights.
        ConfigError: a configuration that cannot exist, or an option that this model lacks.
        TokenizerError: the tokenizer that was given is not there.
    """
    path = _located(source)
    try:
        given = None if tokenizer is None else existing_tokenizer(tokenizer)
        if path.is_dir():
            _refuse_layout(layout, path)
            checkpoint = _open_folder(path, config, settings)
        else:
            checkpoint = _open_file(path, config, settings, layout)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    notes = check_finite(checkpoint.tensors, str(path), allow=allow_nonfinite)
    return replace(
        checkpoint,
        tokenizer_path=given or find_tokenizer(path),
        notes=checkpoint.notes + notes,
    )


def _located(source: str | Path) -> Path:
    path = Path(source)
    try:
        if path.exists():
            return path
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.is_symlink():
        raise CheckpointError(f"{path}: a link to {path.readlink()}, which does not exist")
    if str(source) == DEMO_NAME:
        return demo_checkpoint()
    if str(source) in PRESETS:
        raise CheckpointError(
            f"{source}: no such file or folder; it is the name of a preset, "
            "which has weights only with --random-weights SEED"
        )
    raise CheckpointError(f"{source}: no such file or folder; wanted {FORMATS}")


def _open_folder(
    folder: Path, config: AndreaConfig | None, settings: Mapping[str, str] | None
) -> Checkpoint:
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        raise CheckpointError(f"{folder}: the folder is empty; wanted {FORMATS}")
    if "config.json" not in names:
        weights = [name for name in names if name.endswith(WEIGHT_SUFFIXES)]
        hint = f"name one file of it: {', '.join(weights[:4])}" if weights else f"wanted {FORMATS}"
        raise CheckpointError(f"{folder}: the folder has no config.json; {hint}")
    values = _read_config(folder / "config.json")
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FOLDERS:
        known = " and ".join(FOLDERS)
        raise CheckpointError(
            f"{folder / 'config.json'}: model_type is {shown(model_type)}; known are {known}"
        )
    return FOLDERS[model_type](folder, values, config=config, settings=settings)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds {type(values).__name__}, wanted a JSON object")
    return values


def _open_file(
    path: Path,
    config: AndreaConfig | None,
    settings: Mapping[str, str] | None,
    layout: Layout | None,
) -> Checkpoint:
    if not path.is_file():
        raise CheckpointError(f"{path}: is neither a file nor a folder; wanted {FORMATS}")
    # First of all, for a .bin may start with any four bytes: step 640 looks like a pickle.
    if fits_bin(path):
        return open_bin(path, config=config, settings=settings, layout=layout)
    start = read_start(path, len(LFS_POINTER))
    if start == LFS_POINTER:
        raise CheckpointError(f"{path}: only a Git LFS pointer; fetch the file with `git lfs pull`")
    # The same when it is cut off: only more than two bytes make it a torch file.
    is_bin = has_known_count(path, config)
    starts_torch = start.startswith(TORCH_STARTS) and not is_bin
    if starts_torch and (path.suffix != ".bin" or is_torch_file(path)):
        _refuse_layout(layout, path)
        return open_nanogpt(path, config=config, settings=settings)
    if is_bin:
        return open_bin(path, config=config, settings=settings, layout=layout)
    if path.suffix == ".safetensors" or looks_like_safetensors(path):
        raise CheckpointError(
            f"{path}: safetensors do not record the model; give the folder with its config.json"
        )
    if path.suffix == ".onnx":
        raise CheckpointError(f"{path}: an ONNX graph, not a checkpoint; wanted {FORMATS}")
    if path.suffix == ".bin":
        return open_bin(path, config=config, settings=settings, layout=layout)
    if path.suffix in TORCH_SUFFIXES:  # protocols 0 and 1 have no start of their own
        _refuse_layout(layout, path)
        return open_nanogpt(path, config=config, settings=settings)
    raise CheckpointError(f"{path}: not a known format (starts {start[:16]!r}); wanted {FORMATS}")


def _refuse_layout(layout: Layout | None, path: Path) -> None:
    if layout is not None:
        raise CheckpointError(f"{path}: a layout is only for an ANDREA .bin")

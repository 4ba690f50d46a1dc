"""Writing checkpoints: our own folder, and ANDREA's `.bin`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np

from andrea_model.checkpoint.andrea_folder import WEIGHTS
from andrea_model.checkpoint.bin_file import HEADER, PER_PARAMETER
from andrea_model.checkpoint.checkpoint import Checkpoint, Tensors
from andrea_model.checkpoint.checks import check_shapes
from andrea_model.checkpoint.layout import Layout
from andrea_model.checkpoint.safetensors_file import write_safetensors
from andrea_model.config import AndreaConfig
from andrea_model.errors import CheckpointError
from andrea_model.parameters import count_parameters, parameter_shapes
from andrea_model.tokenizer import load_tokenizer

__all__ = ["save_folder", "write_bin"]

CONFIG, TOKENIZER = "config.json", "tokenizer.json"


def save_folder(
    source: Checkpoint | tuple[AndreaConfig, Tensors],
    folder: Path,
    tokenizer: Path | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write config.json, model.safetensors and tokenizer.json.

    The tokenizer is the one given, or the checkpoint's own; without either there is none. Whatever
    form it has (GPT-2's is two files), it becomes one tokenizer.json.
    Each file appears whole or not at all, config.json last: without it a folder is no checkpoint.

    Raises:
        CheckpointError: tensors that do not fit the config, a folder that already holds one of
            these files (unless `overwrite`), or a place that cannot be written.
        TokenizerError: a tokenizer that cannot be read.
    """
    if isinstance(source, Checkpoint):
        config, tensors = source.config, source.tensors
        tokenizer = tokenizer or source.tokenizer_path
    else:
        config, tensors = source
    shapes = parameter_shapes(config)
    check_shapes(tensors, shapes, str(folder))

    parts: dict[str, Callable[[Path], None]] = {
        WEIGHTS: partial(_write_weights, tensors, list(shapes))
    }
    if tokenizer is not None:
        parts[TOKENIZER] = load_tokenizer(tokenizer).save
    parts[CONFIG] = partial(_write_config, config)
    if not overwrite and (there := [name for name in parts if (folder / name).exists()]):
        raise CheckpointError(
            f"{folder}: already holds {', '.join(there)}; overwrite=True replaces"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    for name, write in parts.items():
        with _appearing(folder / name) as path:
            write(path)


def write_bin(
    config: AndreaConfig,
    tensors: Tensors,
    path: Path,
    *,
    step: int = 0,
    layout: Layout | None = None,
    optimizer_state: bool = True,
) -> None:
    """Write an ANDREA `.bin` in that layout; the optimizer's state, if any, is zeros.

    Raises:
        CheckpointError: tensors that do not fit the config, or a place that cannot be written.
    """
    layout = layout or Layout()
    check_shapes(tensors, parameter_shapes(config), str(path))
    n_params = count_parameters(config)
    with _appearing(path) as beside, beside.open("wb") as file:
        file.write(HEADER.pack(step, n_params))
        for name in layout.tensor_names(config):
            array = tensors[name].T if layout.is_transposed(name) else tensors[name]
            file.write(np.ascontiguousarray(array, "<f4").data)
        file.truncate(HEADER.size + n_params * PER_PARAMETER[optimizer_state])


def _write_weights(tensors: Tensors, order: list[str], path: Path) -> None:
    with path.open("wb") as file:
        write_safetensors(tensors, order, file)


def _write_config(config: AndreaConfig, path: Path) -> None:
    path.write_bytes(config.to_json().encode())


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """Where to write a file that takes its name only when it is complete.

    Raises:
        CheckpointError: a folder has that name, or the system refuses.
    """
    if path.is_dir():
        raise CheckpointError(f"{path}: cannot be written: it is a folder, wanted a file")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):  # the first error is the one to tell
            beside.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be written: {error.strerror or error}")

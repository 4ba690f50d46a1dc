"""ANDREA's `.bin`: int32 step, int32 n_params, float32 weights, Adam's m and v; little-endian."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

from andrea_model.checkpoint.checkpoint import Array, Checkpoint
from andrea_model.checkpoint.layout import Layout
from andrea_model.checkpoint.mapped_file import map_file, read_start
from andrea_model.checkpoint.variants import find_variant, variants
from andrea_model.config import AndreaConfig
from andrea_model.errors import CheckpointError
from andrea_model.parameters import count_parameters, parameter_shapes

__all__ = [
    "HEADER",
    "PER_PARAMETER",
    "arrange",
    "fits_bin",
    "has_known_count",
    "map_weights",
    "open_bin",
]

HEADER = struct.Struct("<ii")
FLOAT = 4
# Weights alone, or with Adam's two moments.
PER_PARAMETER = (FLOAT, 3 * FLOAT)
UNRECORDED = "norm, norm_position, activation, norm_eps and n_head are not in the file"


def fits_bin(path: Path) -> bool:
    """Whether the header agrees with the size of the file: strong evidence, having no magic."""
    start = read_start(path, HEADER.size)
    if len(start) < HEADER.size:
        return False
    n_params = HEADER.unpack(start)[1]
    return n_params > 0 and path.stat().st_size in sizes(n_params)


def has_known_count(path: Path, config: AndreaConfig | None) -> bool:
    """Whether the header names a parameter count of a known model: a cut-off file still does."""
    start = read_start(path, HEADER.size)
    if len(start) < HEADER.size:
        return False
    n_params = HEADER.unpack(start)[1]
    known = [variant.n_params for variant in variants()]
    return n_params in known or (config is not None and n_params == count_parameters(config))


def sizes(n_params: int) -> tuple[int, ...]:
    return tuple(HEADER.size + n_params * each for each in PER_PARAMETER)


def open_bin(
    path: Path,
    *,
    config: AndreaConfig | None = None,
    settings: Mapping[str, str] | None = None,
    layout: Layout | None = None,
) -> Checkpoint:
    """The weights as views of a memory map, which the optimizer's state is not part of.

    Raises:
        CheckpointError: a damaged header or size, or a parameter count that fits no variant (or
            not the config).
        ConfigError: settings that no variant can have.
    """
    step, n_params = _read_header(path)
    if config is None:
        variant = find_variant(n_params, settings, str(path))
        config = variant.config
        notes = [f"n_params {n_params:,} is {variant}", f"{UNRECORDED}: taken from the preset"]
    else:
        config = config.with_settings(dict(settings or {}))
        notes = []
        if (wanted := count_parameters(config)) != n_params:
            raise CheckpointError(
                f"{path}: n_params is {n_params:,}, but the config has {wanted:,} parameters "
                f"({n_params - wanted:+,}): give the config this model was trained with"
            )
    if layout is None:
        layout = Layout()
        notes.append(f"the order of tensors is not in the file: assumed {layout}")
    return Checkpoint(
        path=path,
        format="bin",
        config=config,
        tensors=arrange(map_weights(path, n_params), config, layout),
        step=step,
        layout=layout,
        notes=tuple(notes),
        files=(path,),
        hashed_bytes=sizes(n_params)[0],
    )


def map_weights(path: Path, n_params: int) -> Array:
    """The weights as one read-only float32 vector, for a file whose size is known to fit."""
    return map_file(path, HEADER.size + FLOAT * n_params)[HEADER.size :].view("<f4")


def arrange(flat: Array, config: AndreaConfig, layout: Layout) -> dict[str, Array]:
    """Canonical name → view of that vector, in canonical order."""
    shapes = parameter_shapes(config)
    views: dict[str, Array] = {}
    start = 0
    for name in layout.tensor_names(config):
        end = start + math.prod(shapes[name])
        part = flat[start:end]
        transposed = layout.is_transposed(name)
        views[name] = (
            part.reshape(shapes[name][::-1]).T if transposed else part.reshape(shapes[name])
        )
        start = end
    return {name: views[name] for name in shapes}


def _read_header(path: Path) -> tuple[int, int]:
    start, size = read_start(path, 64), path.stat().st_size
    if size < HEADER.size:
        raise CheckpointError(
            f"{path}: truncated: {size} bytes, shorter than the header of {HEADER.size} bytes"
        )
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        raise CheckpointError(
            f"{path}: is a text file, starting {start[:24]!r}: not an ANDREA .bin"
        )
    step, n_params = HEADER.unpack(start[: HEADER.size])
    if n_params < 1:
        raise CheckpointError(
            f"{path}: n_params is {n_params:,}, wanted one above 0: damaged, or no ANDREA .bin"
        )
    weights_only, with_adam = sizes(n_params)
    if size < weights_only:
        raise CheckpointError(
            f"{path}: truncated (or not an ANDREA .bin): n_params {n_params:,} needs "
            f"{weights_only:,} bytes, the file has {size:,}"
        )
    if size not in (weights_only, with_adam):
        raise CheckpointError(
            f"{path}: n_params {n_params:,} makes a file of {weights_only:,} bytes (8 + 4·n, "
            f"weights only) or {with_adam:,} bytes (8 + 12·n, with Adam's state), this one has "
            f"{size:,}: copied incompletely, or not an ANDREA .bin"
        )
    return step, n_params

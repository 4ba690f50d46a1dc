"""Reading and writing `.safetensors` as views of a memory map.

Format: uint64 length of a JSON header, the header, then the tensors; little-endian.
Source: https://github.com/huggingface/safetensors#format. The library itself copies on reading and
has no bfloat16 in numpy.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from andrea_model.checkpoint.checkpoint import Array, Tensors
from andrea_model.checkpoint.mapped_file import map_file, read_start
from andrea_model.errors import CheckpointError, shown

__all__ = ["looks_like_safetensors", "read_safetensors", "write_safetensors"]

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = struct.Struct("<Q")
MAX_HEADER = 100_000_000  # the library's own limit
ALIGNMENT = 8


def looks_like_safetensors(path: Path) -> bool:
    """A length and a JSON object: in a `.bin` that length would be of gigabytes."""
    start = read_start(path, LENGTH.size + 1)
    is_object = start[LENGTH.size :] == b"{"
    return is_object and LENGTH.unpack(start[: LENGTH.size])[0] <= MAX_HEADER


def read_safetensors(path: Path) -> dict[str, Array]:
    """Name → read-only view, in the order of the file.

    Raises:
        CheckpointError: a damaged file, or a dtype that is not known here.
    """
    header, data_start = _read_header(path)
    data = map_file(path, path.stat().st_size)[data_start:]
    header.pop("__metadata__", None)
    entries = {name: _checked_entry(entry, name, data.size, path) for name, entry in header.items()}
    return {
        name: data[start:end].view(dtype).reshape(shape)
        for name, (dtype, shape, start, end) in entries.items()
    }


def write_safetensors(tensors: Tensors, order: Iterable[str], file: BinaryIO) -> None:
    """Write tensors one after the other, in that order; the same ones always give the same bytes.

    No two are held at once, should the mapping make them when asked.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    names = list(order)
    for name in names:
        array = tensors[name]
        end = offset + array.nbytes
        entry = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [offset, end]}
        header[name] = entry
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    file.write(LENGTH.pack(len(text)) + text)
    for name in names:
        file.write(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    size = path.stat().st_size
    if size < LENGTH.size:
        raise CheckpointError(f"{path}: damaged safetensors file: only {size} bytes")
    (length,) = LENGTH.unpack(read_start(path, LENGTH.size))
    start = LENGTH.size + length
    if length > MAX_HEADER or start > size:
        raise CheckpointError(
            f"{path}: damaged safetensors file: its header claims {length:,} bytes, "
            f"the file has {size:,}"
        )
    try:
        header = json.loads(read_start(path, start)[LENGTH.size :])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: damaged safetensors file: header is no JSON: {error}"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: damaged safetensors file: header is no JSON object")
    return header, start


def _checked_entry(
    entry: Any, name: str, n_bytes: int, path: Path
) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    try:
        dtype_name, shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
        start, end = map(int, entry["data_offsets"])
    except (TypeError, KeyError, ValueError, OverflowError):
        raise CheckpointError(
            f"{path}: damaged safetensors file: tensor {name!r} is described as {shown(entry)}"
        ) from None
    if dtype_name not in DTYPES:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {dtype_name}; known: {', '.join(DTYPES)}"
        )
    dtype = DTYPES[dtype_name]
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not 0 <= start <= end <= n_bytes or end - start != wanted:
        raise CheckpointError(
            f"{path}: truncated or damaged: tensor {name!r} of {wanted:,} bytes stands at "
            f"{start:,} to {end:,} of {n_bytes:,} bytes of data"
        )
    return dtype, shape, start, end

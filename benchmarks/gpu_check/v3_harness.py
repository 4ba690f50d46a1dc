"""plugins/harness in Python: open a plugin as TensorRT would, and run it on raw addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FieldValue", "Harness", "HarnessError", "Plugin", "TensorSpec"]

# nvinfer1::DataType and nvinfer1::PluginFieldType
DATA_TYPES = {"float32": 0, "float16": 1, "int32": 3, "bfloat16": 7}
FLOAT32_FIELD, INT32_FIELD, CHAR_FIELD = 1, 5, 6
MAX_RANK = 9

FieldValue = float | int | str | Sequence[float]


class HarnessError(Exception):
    """A step failed; the message is the log: what the plugin said, then the step's name."""


@dataclass(frozen=True)
class TensorSpec:
    """One input. `dynamic` names the axes that are wildcards while the engine is built."""

    dtype: str
    shape: tuple[int, ...]
    dynamic: tuple[int, ...] = ()


class _Field(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_int32),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("extents", ctypes.c_int64 * MAX_RANK),
        ("dynamic", ctypes.c_uint32),
    )


class Harness:
    """The compiled harness, for any number of plugin libraries."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.v3_open.restype = ctypes.c_void_p
        self._library.v3_log.restype = ctypes.c_char_p
        self._library.v3_identity.restype = ctypes.c_char_p

    def open(
        self,
        library: Path,
        op: str,
        attributes: dict[str, FieldValue],
        inputs: Sequence[TensorSpec],
        outputs: int = 1,
    ) -> Plugin:
        """Build and runtime phase up to onShapeChange.

        Raises:
            HarnessError: a step was refused.
        """
        self.take_log()
        fields, keep_alive = _fields(attributes)
        handle = self._library.v3_open(
            str(library).encode(),
            op.encode(),
            fields,
            len(fields),
            _tensors(inputs),
            len(inputs),
            outputs,
        )
        del keep_alive
        if not handle:
            raise HarnessError(self.take_log())
        return Plugin(self, handle)

    def take_log(self) -> str:
        """Everything the plugins said since the last call."""
        return str(self._library.v3_log().decode())


class Plugin:
    """An opened plugin. Addresses are host or device addresses, as its library needs."""

    def __init__(self, harness: Harness, handle: int) -> None:
        self._harness = harness
        self._library = harness._library
        self._handle = ctypes.c_void_p(handle)

    @property
    def identity(self) -> str:
        """The timing-cache id."""
        return str(self._library.v3_identity(self._handle).decode())

    def enqueue(
        self, inputs: Sequence[int], outputs: Sequence[int], stream: int | None = None
    ) -> None:
        status = self._library.v3_enqueue(
            self._handle,
            (ctypes.c_void_p * len(inputs))(*inputs),
            (ctypes.c_void_p * len(outputs))(*outputs),
            ctypes.c_void_p(stream),
        )
        if status != 0:
            raise HarnessError(self._harness.take_log() or f"enqueue returned {status}")

    def reshape(self, inputs: Sequence[TensorSpec]) -> None:
        if self._library.v3_reshape(self._handle, _tensors(inputs), len(inputs)) != 0:
            raise HarnessError(self._harness.take_log())

    def close(self) -> None:
        self._library.v3_close(self._handle)


def _fields(attributes: dict[str, FieldValue]) -> tuple[ctypes.Array[_Field], list[object]]:
    """The fields, and the memory that they point to."""
    fields, buffers = [], []
    for name, value in attributes.items():
        kind, length, buffer = _field_value(value)
        buffers.append(buffer)
        fields.append(_Field(name.encode(), kind, ctypes.addressof(buffer), length))
    return (_Field * len(fields))(*fields), [fields, buffers]


def _field_value(value: FieldValue) -> tuple[int, int, ctypes.Array[Any] | ctypes.c_int32]:
    if isinstance(value, str):
        # Without a terminator, as a parser may pass it.
        text = ctypes.create_string_buffer(value.encode(), max(len(value), 1))
        return CHAR_FIELD, len(value), text
    if isinstance(value, int):
        return INT32_FIELD, 1, ctypes.c_int32(value)
    values = [value] if isinstance(value, float) else list(value)
    return FLOAT32_FIELD, len(values), (ctypes.c_float * len(values))(*values)


def _tensors(specs: Sequence[TensorSpec]) -> ctypes.Array[_Tensor]:
    tensors = []
    for spec in specs:
        extents = (ctypes.c_int64 * MAX_RANK)(*spec.shape)
        mask = sum(1 << axis for axis in spec.dynamic)
        tensors.append(_Tensor(DATA_TYPES[spec.dtype], len(spec.shape), extents, mask))
    return (_Tensor * len(tensors))(*tensors)

"""Listening to an engine while it runs. TensorRT calls this code; all that can be is elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from andrea_export.engine.binding import trt
from andrea_export.errors import BackendError
from andrea_export.session.layer_values import LayerValues, byte_count

if TYPE_CHECKING:
    import tensorrt

__all__ = ["debug_listener", "listen"]


def debug_listener(values: LayerValues) -> tensorrt.IDebugListener:
    """A listener that copies every wanted tensor into `values` while its memory is valid."""

    class Listener(trt.IDebugListener):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)

        def process_debug_tensor(  # type: ignore[override,unused-ignore]
            self, addr: int, location: Any, type: Any, shape: Any, name: str, stream: int
        ) -> bool:
            sizes = tuple(shape)
            try:
                if values.wants(name, type.name, sizes):
                    count = byte_count(type.name, sizes)
                    is_on_gpu = location == trt.TensorLocation.DEVICE
                    raw = _device_bytes(addr, count, stream) if is_on_gpu else _bytes(addr, count)
                    values.take(name, type.name, sizes, raw)
            except Exception as error:  # TensorRT would print it and go on
                values.errors.append(f"{name}: {error}")
            return True

    return Listener()


def listen(
    context: tensorrt.IExecutionContext, listener: tensorrt.IDebugListener, names: Iterable[str]
) -> None:
    """Have `listener` told of the debug tensors called `names`, or, without any, of unfused ones.

    Raises:
        BackendError: TensorRT refuses; the engine has no such tensors.
    """
    if not context.set_debug_listener(listener):
        raise BackendError("TensorRT takes no debug listener for this engine")
    context.set_all_tensors_debug_state(False)
    wanted = list(names)
    if not wanted:
        context.unfused_tensors_debug_state = True
    refused = [name for name in wanted if not context.set_tensor_debug_state(name, True)]
    if wanted and len(refused) == len(wanted):
        raise BackendError(f"the engine has none of its {len(wanted)} debug tensors ({wanted[0]})")


def _bytes(address: int, count: int) -> bytes:
    return ctypes.string_at(address, count)


def _device_bytes(address: int, count: int, stream: int) -> bytes:
    if not count:
        return b""
    torch.cuda.ExternalStream(stream).synchronize()  # type: ignore[no-untyped-call]
    return torch.as_tensor(_OnDevice(address, count), device="cuda").cpu().numpy().tobytes()


class _OnDevice:
    """Memory on the GPU as torch takes it, without a copy."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }

"""Marking tensors of a network so that the engine shows them when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from andrea_export.engine.binding import trt
from andrea_export.engine.layer_tensors import LayerTensors
from andrea_export.errors import EngineError

if TYPE_CHECKING:
    import tensorrt

__all__ = ["mark_layer_tensors"]


def mark_layer_tensors(
    network: tensorrt.INetworkDefinition, form: str, names: Sequence[str]
) -> LayerTensors:
    """Mark the tensors called `names`, and read back from the network what is marked.

    Where this TensorRT has no debug tensors, "named" makes them outputs, and the record says so.

    Args:
        network: parsed.
        form: "unfused", "named" or "outputs".
        names: of tensors, as in the graph; of no output.

    Raises:
        EngineError: TensorRT lacks this form or refuses it, or the network has no such tensor.
    """
    tensors = _by_name(network, names)
    missing = tuple(name for name in names if name not in tensors)
    if not tensors:
        raise EngineError(
            f"the graph has none of the {len(names)} tensors of its model's layers "
            f"({names[0]}, ...): only graphs of this toolkit take --layer-tensors"
        )
    if form == "named" and not hasattr(network, "mark_debug"):
        form = "outputs"
    if form == "unfused":
        _mark_unfused(network)
        return LayerTensors(form, len(names), None, missing)
    mark = _mark_debug if form == "named" else _mark_outputs
    marked = mark(network, tensors)
    if marked != len(tensors):
        raise EngineError(
            f"TensorRT {trt.__version__} was given {len(tensors)} tensors of layers and marked "
            f"{marked}: leave --layer-tensors out"
        )
    return LayerTensors(form, len(names), marked, missing)


def _by_name(
    network: tensorrt.INetworkDefinition, names: Sequence[str]
) -> Mapping[str, tensorrt.ITensor]:
    """The tensors of those names, without those whose name another tensor has as well."""
    wanted = set(names)
    found: dict[str, list[Any]] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for number in range(layer.num_outputs):
            tensor = layer.get_output(number)
            if tensor is not None and tensor.name in wanted:
                found.setdefault(tensor.name, []).append(tensor)
    return {name: found[name][0] for name in names if len(found.get(name, ())) == 1}


def _mark_unfused(network: tensorrt.INetworkDefinition) -> None:
    if not hasattr(network, "mark_unfused_tensors_as_debug_tensors"):
        raise EngineError(
            f"the installed TensorRT {trt.__version__} cannot show unfused tensors: "
            "use --layer-tensors named"
        )
    if not network.mark_unfused_tensors_as_debug_tensors():
        raise EngineError("TensorRT does not mark unfused tensors: use --layer-tensors named")


def _mark_debug(
    network: tensorrt.INetworkDefinition, tensors: Mapping[str, tensorrt.ITensor]
) -> int:
    for tensor in tensors.values():
        network.mark_debug(tensor)
    return sum(network.is_debug_tensor(tensor) for tensor in tensors.values())


def _mark_outputs(
    network: tensorrt.INetworkDefinition, tensors: Mapping[str, tensorrt.ITensor]
) -> int:
    for tensor in tensors.values():
        network.mark_output(tensor)
    outputs = (network.get_output(index) for index in range(network.num_outputs))
    return sum(output.name in tensors for output in outputs)

"""From an ONNX file to a TensorRT network, and from the network to its record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_export.engine.binding import trt
from andrea_export.engine.freezing import freeze_axis
from andrea_export.engine.network_record import LayerRecord, TensorRecord, node_of
from andrea_export.engine.profiles import NetworkInput
from andrea_export.errors import EngineError

if TYPE_CHECKING:
    import tensorrt

__all__ = [
    "allow_decomposed_attention",
    "create_network",
    "network_inputs",
    "network_outputs",
    "parse_onnx",
    "record_layers",
]

# TensorRT's words for "no importer, no function and no plugin".
NOT_FOUND = "Plugin not found"
# TensorRT's way to say which weight it failed at, and where in the log it says why.
INITIALIZER = re.compile(r".*Failed to import initializer: (.+)$")
WEIGHTS = "WeightsContext.cpp"
LOG_SOURCE = re.compile(r"^\w+\.cpp:\d+: ")
UNREADABLE = "MODEL_DESERIALIZE_FAILED"
DYNAMIC_CACHE = "must have a static sequence length dimension"
# Where there is no driver TensorRT ends whatever it says with this.
NO_DRIVER = re.compile(r"\s*\[checkMacros\.cpp::catchCudaError.*$")


def create_network(builder: tensorrt.Builder) -> tensorrt.INetworkDefinition:
    """An empty network in which every tensor has the type that the graph says.

    Raises:
        EngineError: this TensorRT would choose types by itself.
    """
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    if flag is None or not network.get_flag(flag):
        raise EngineError(
            f"TensorRT {trt.__version__} makes no strongly typed networks: "
            "it could build another precision than the graph's; 10.13 or newer is needed"
        )
    return network


def parse_onnx(
    network: tensorrt.INetworkDefinition,
    logger: Any,
    onnx: Path,
    *,
    capacity: int | None,
    error_log: Callable[[], list[str]],
) -> None:
    """Fill `network` from the file, with the axis `capacity` frozen where one is given.

    Args:
        network: empty.
        logger: of this process.
        onnx: the file; external data is looked for beside it.
        capacity: size of the axis of that name; None leaves the file as it is.
        error_log: gives the error lines that TensorRT has logged so far.

    Raises:
        EngineError: what the parser says, with the node that it says it of.
    """
    parser = trt.OnnxParser(network, logger)
    if capacity is None:
        parsed = parser.parse_from_file(str(onnx))
    else:
        parsed = parser.parse(freeze_axis(onnx, capacity), str(onnx))
    if not parsed:
        raise EngineError(f"{onnx}: {_explain(parser, error_log())}")
    if not network.num_outputs:
        raise EngineError(f"{onnx}: the graph has no output: the file is empty or damaged")


def _explain(parser: tensorrt.OnnxParser, lines: list[str]) -> str:
    if not parser.num_errors:
        return f"TensorRT cannot read it: {' / '.join(lines) or 'it gives no reason'}"
    error = parser.get_error(0)
    words = NO_DRIVER.sub("", " ".join(error.desc().split()))
    if UNREADABLE in words:
        return "is not an ONNX model, or a damaged one (TensorRT cannot decode it)"
    if match := INITIALIZER.search(words):
        # The error names the weight, the log says what is wrong with it.
        reasons = [LOG_SOURCE.sub("", line) for line in lines if WEIGHTS in line]
        return f"TensorRT cannot read the weights {match[1]}: {'; '.join(reasons) or words}"
    if DYNAMIC_CACHE in words:
        return "has a cache, to which TensorRT must give a fixed length: add --capacity N"
    node = error.node_name() or f"number {error.node()}"
    where = f" at node {node} ({error.node_operator()})" if error.node() >= 0 else ""
    if stack := error.local_function_stack():
        where += f", inside the function of {stack[-1]}"
    if NOT_FOUND in words:
        words = "no operator, function or plugin of that name"
    more = f" ({parser.num_errors - 1} more errors)" if parser.num_errors > 1 else ""
    return f"TensorRT cannot use the graph{where}: {words}{more}"


def allow_decomposed_attention(network: tensorrt.INetworkDefinition) -> int:
    """Let every attention layer run as several kernels where no fused one fits.

    Without it a build in fp32 fails: only half precision has fused kernels with a mask.

    Returns:
        The number of attention layers.
    """
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)
    count = 0
    for layer in _layers(network):
        if kind is not None and layer.type == kind:
            layer.__class__ = getattr(trt, "IAttentionInputLayer", None)
            layer.attention.decomposable = True
            count += 1
    return count


def network_inputs(network: tensorrt.INetworkDefinition) -> list[NetworkInput]:
    """Inputs with their axes; a dynamic axis without a name is called INPUT[INDEX]."""
    inputs: list[NetworkInput] = []
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        axes = tuple(
            size if size >= 0 else tensor.get_dimension_name(axis) or f"{tensor.name}[{axis}]"
            for axis, size in enumerate(_sizes(tensor.shape))
        )
        if tensor.is_shape_tensor:
            raise EngineError(
                f"input {tensor.name} decides shapes inside the graph: "
                "TensorRT would need its values in the profile, which is not supported"
            )
        inputs.append(NetworkInput(tensor.name, tensor.dtype.name, axes))
    return inputs


def network_outputs(network: tensorrt.INetworkDefinition) -> list[TensorRecord]:
    return [_tensor(network.get_output(index)) for index in range(network.num_outputs)]


def record_layers(network: tensorrt.INetworkDefinition) -> list[LayerRecord]:
    """Every layer of the network, as plain values."""
    records = []
    for layer in _layers(network):
        node, function, caller = node_of(layer.metadata)
        inputs = (layer.get_input(index) for index in range(layer.num_inputs))
        outputs = (layer.get_output(index) for index in range(layer.num_outputs))
        records.append(
            LayerRecord(
                name=layer.name,
                type=layer.type.name,
                node=node,
                function=function,
                caller=caller,
                inputs=tuple(tensor.name for tensor in inputs if tensor is not None),
                outputs=tuple(_tensor(tensor) for tensor in outputs if tensor is not None),
            )
        )
    return records


def _layers(network: tensorrt.INetworkDefinition) -> Iterator[Any]:
    return (network.get_layer(index) for index in range(network.num_layers))


def _sizes(dims: Any) -> tuple[int, ...]:
    return tuple(dims)


def _tensor(tensor: tensorrt.ITensor) -> TensorRecord:
    try:
        shape: tuple[int, ...] | None = _sizes(tensor.shape)
    except ValueError:  # TensorRT gives a negative rank where it does not know it
        shape = None
    return TensorRecord(tensor.name, tensor.dtype.name, shape)

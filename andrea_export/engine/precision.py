"""Whether a network has the precision that was asked for, told by the types of its tensors.

Asking TensorRT 11 for fp16 in the old way gives an fp32 engine and no error. So nothing is believed
here but the types in the network: what the matrix products compute in is the precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from andrea_export.engine.network_record import LayerRecord
from andrea_export.errors import EngineError

__all__ = ["TENSORRT_TYPES", "check_precision", "precision_of"]

TENSORRT_TYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16"}
PRODUCTS = ("MATRIX_MULTIPLY", "ATTENTION_OUTPUT", "EINSUM", "CONVOLUTION")
INTEGERS = ("INT64", "INT32", "BOOL")


def precision_of(layers: Sequence[LayerRecord]) -> str:
    """ "fp32", "fp16" or "bf16" where all matrix products agree, else "mixed" or "none"."""
    types = {layer.outputs[0].dtype for layer in _products(layers)}
    names = {name for name, type_ in TENSORRT_TYPES.items() if type_ in types}
    if len(types) == len(names) == 1:
        return names.pop()
    return "mixed" if types else "none"


def check_precision(layers: Sequence[LayerRecord], asked: str) -> None:
    """Refuse a network whose matrix products are of another type than the one asked for.

    Args:
        layers: of the network.
        asked: "fp32", "fp16" or "bf16".

    Raises:
        EngineError: counts the types, and names the first product that is of another one.
    """
    products = _products(layers)
    wanted = TENSORRT_TYPES[asked]
    others = [layer for layer in products if layer.outputs[0].dtype != wanted]
    if not others:
        return
    counts = Counter(layer.outputs[0].dtype for layer in products)
    raise EngineError(
        f"{asked} was asked for, but the network computes its {len(products)} matrix products "
        f"otherwise: {', '.join(f'{count} {type_}' for type_, count in counts.items())} "
        f"(the first: {others[0].node or others[0].name}); precision lives in the graph: export "
        f"it with `andrea-export onnx --dtype {asked}`"
    )


def _products(layers: Sequence[LayerRecord]) -> list[LayerRecord]:
    return [
        layer
        for layer in layers
        if layer.type in PRODUCTS and layer.outputs[0].dtype not in INTEGERS
    ]

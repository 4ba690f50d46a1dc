"""Parses a node with a wrong attribute while the plugin library is registered, and prints as JSON
what the logger heard: it shows that ONNX attributes reach the plugins as fields, values included.

A right attribute cannot be tried: TensorRT-RTX has no user plugins, and its parser ends the process
once it has created one.
"""

import json
import sys

import onnx
import tensorrt_rtx as trt

from benchmarks.gpu_check.engines import make_graph
from benchmarks.gpu_check.ops import DTYPES, OPS
from tests.plugins.registry_probe import Logger


def main(library: str, label: str, attribute: str, value: float | str) -> None:
    logger = Logger()
    builder = trt.Builder(logger)
    trt.get_plugin_registry().load_library(library)
    op = next(op for op in OPS if op.label == label)
    model = onnx.load_from_string(make_graph(op, DTYPES["float16"], as_plugin=True))
    for given in model.graph.node[0].attribute:
        if given.name == attribute:
            given.CopyFrom(onnx.helper.make_attribute(attribute, value))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    is_parsed = trt.OnnxParser(network, logger).parse(model.SerializeToString())
    print(json.dumps({"is_parsed": is_parsed, "messages": logger.messages}))


if __name__ == "__main__":
    main(*sys.argv[1:4], json.loads(sys.argv[4]))

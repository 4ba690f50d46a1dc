"""Loads a plugin library through TensorRT-RTX's registry and prints what came of it, as JSON.

A process of its own: with our creators registered, RTX's ONNX parser would end the process, and
other tests of the same run parse.
"""

import json
import sys
from typing import Any

import numpy as np
import tensorrt_rtx as trt

FIELD_TYPES = {
    float: (np.float32, trt.PluginFieldType.FLOAT32),
    int: (np.int32, trt.PluginFieldType.INT32),
}


class Logger(trt.ILogger):  # type: ignore[misc]
    """Keeps what is said at error level or worse."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def log(self, severity: trt.ILogger.Severity, message: str) -> None:
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            self.messages.append(message)


def field(name: str, value: Any) -> trt.PluginField:
    if isinstance(value, str):
        return trt.PluginField(
            name, np.frombuffer(value.encode(), np.int8), trt.PluginFieldType.CHAR
        )
    kind, code = FIELD_TYPES[type(value)]
    return trt.PluginField(name, np.array([value], kind), code)


def create(creator: Any, attributes: dict[str, Any]) -> Any:
    fields = trt.PluginFieldCollection([field(*item) for item in attributes.items()])
    return creator.create_plugin("layer", fields, trt.TensorRTPhase.BUILD)


def main(library: str, cases: list[tuple[str, dict[str, Any]]]) -> None:
    logger = Logger()
    builder = trt.Builder(logger)
    registry = trt.get_plugin_registry()
    handle = registry.load_library(library)
    ours = [creator for creator in registry.all_creators if creator.plugin_namespace == "andrea"]
    found = {
        creator.name: {
            "version": creator.plugin_version,
            "fields": {item.name: item.type.name for item in creator.field_names},
            "interface": creator.interface_info.kind,
        }
        for creator in ours
    }
    created = []
    for name, attributes in cases:
        plugin = create(registry.get_creator(name, "1", "andrea"), attributes)
        core = plugin and plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
        build = plugin and plugin.get_capability_interface(trt.PluginCapabilityType.BUILD)
        created.append(
            plugin
            and {
                "name": core.plugin_name,
                "version": core.plugin_version,
                "namespace": core.plugin_namespace,
                "outputs": build.num_outputs,
            }
        )
    missing = [
        registry.get_creator("AndreaLayerNorm", "2", "andrea"),
        registry.get_creator("AndreaLayerNorm", "1", ""),
        registry.get_creator("AndreaSoftmax", "1", "andrea"),
    ]
    registry.deregister_library(handle)
    del builder
    left = [creator.name for creator in registry.all_creators if creator.name in found]
    print(
        json.dumps(
            {
                "found": found,
                "created": created,
                "missing": [creator is None for creator in missing],
                "left": left,
                "messages": logger.messages,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

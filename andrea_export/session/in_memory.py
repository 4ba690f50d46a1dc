"""Models that exist in memory alone, over the weights of an exported folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from andrea_export.graph.folder import GraphFolder

if TYPE_CHECKING:
    import onnx
    import onnxruntime

__all__ = ["over_weights"]

WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


def over_weights(
    model: onnx.ModelProto, graph: GraphFolder, options: onnxruntime.SessionOptions
) -> bytes:
    """`model` serialized; `options` are told where its weights lie.

    A file may be a link, as in a cache of downloads. For weights ONNX Runtime follows one out of
    the folder only to where the model's own link leads, and a model in memory has none: so it is
    given the place itself, under the same condition.
    """
    folder, data = graph.path, graph.data_path.resolve()
    if data.parent == graph.model_path.resolve().parent:
        folder = data.parent
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location" and entry.value == graph.data_path.name:
                    entry.value = data.name
    options.add_session_config_entry(WEIGHTS_FOLDER, str(folder))
    return model.SerializeToString()  # type: ignore[no-any-return]

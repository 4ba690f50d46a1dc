"""An exported fp32 folder as the checkpoint that it was made from: its weights are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from andrea_export.engine.onnx_nodes import read_graph
from andrea_export.engine.source import check_recorded
from andrea_export.errors import GraphError
from andrea_model.checkpoint import Checkpoint
from andrea_model.checkpoint.checkpoint import Array
from andrea_model.file_hash import file_sha256
from andrea_model.parameters import parameter_shapes

if TYPE_CHECKING:
    from andrea_export.graph.folder import GraphFolder

__all__ = ["checkpoint_of_folder"]


class _FolderTensors(Mapping[str, Array]):
    """float32 tensors by name, mapped from `model.onnx.data`."""

    def __init__(self, folder: GraphFolder) -> None:
        wanted = parameter_shapes(folder.config)
        self._shapes = {name: tuple(shape) for name, shape in wanted.items()}
        stored = {tensor.name: tensor for tensor in read_graph(folder.model_path).graph.initializer}
        if missing := [name for name in self._shapes if name not in stored]:
            raise GraphError(f"{folder.path} has no weights called {missing[0]}")
        self._offsets = {
            name: int(entry.value)
            for name in self._shapes
            for entry in stored[name].external_data
            if entry.key == "offset"
        }
        self._path = folder.data_path

    def __getitem__(self, name: str) -> Array:
        return np.memmap(
            self._path, np.float32, "r", self._offsets.get(name, 0), self._shapes[name]
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def checkpoint_of_folder(folder: GraphFolder) -> Checkpoint:
    """The weights in an fp32 folder, under its checkpoint's names and its own hash.

    Raises:
        GraphError: a file is not the one that was exported, or the folder lacks weights that its
            configuration asks for.
    """
    for path in (folder.model_path, folder.data_path):
        check_recorded(path, folder.record, file_sha256(path))
    return Checkpoint(
        path=folder.path,
        format="graph",
        config=folder.config,
        tensors=_FolderTensors(folder),
        tokenizer_path=folder.tokenizer_path,
        notes=(f"the weights are those of {folder.path}: its checkpoint is gone",),
        files=(folder.data_path,),
    )

"""An exported folder, as other stages read it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_export.errors import ConfigError, GraphError
from andrea_export.graph.options import GraphOptions
from andrea_export.graph.reading import check_options
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_model.tokenizer import Tokenizer

__all__ = ["GraphFolder", "is_graph_folder", "open_graph"]

MODEL_FILE, DATA_FILE = "model.onnx", "model.onnx.data"
CONFIG_FILE, TOKENIZER_FILE, RECORD_FILE = "config.json", "tokenizer.json", "export.json"


@dataclass(frozen=True)
class GraphFolder:
    """What `export_graph` wrote.

    Attributes:
        path: the folder.
        config: of the model in the graph.
        options: dtype, op form and opset it was exported with.
        record: `export.json`, whole.
    """

    path: Path
    config: AndreaConfig
    options: GraphOptions
    record: dict[str, Any]

    @property
    def model_path(self) -> Path:
        return self.path / MODEL_FILE

    @property
    def data_path(self) -> Path:
        return self.path / DATA_FILE

    @property
    def tokenizer_path(self) -> Path | None:
        path = self.path / TOKENIZER_FILE
        return path if path.is_file() else None

    @property
    def nbytes(self) -> int:
        """Bytes of all files in the folder."""
        return sum(path.stat().st_size for path in self.path.iterdir())

    def open_tokenizer(self) -> Tokenizer | None:
        from andrea_model.tokenizer import load_tokenizer

        return None if self.tokenizer_path is None else load_tokenizer(self.tokenizer_path)


def is_graph_folder(path: Path) -> bool:
    return (path / MODEL_FILE).is_file()


def open_graph(path: Path) -> GraphFolder:
    """Open an exported folder.

    Raises:
        GraphError: not a folder of `andrea-export onnx`, a file of it is missing or damaged, or the
            graph is not what its record says.
    """
    if not path.exists():
        raise GraphError(f"{path} does not exist")
    if not path.is_dir():
        raise GraphError(f"{path} is a file: give the folder that `andrea-export onnx` wrote")
    for name in (MODEL_FILE, DATA_FILE, CONFIG_FILE, RECORD_FILE):
        if not (path / name).is_file():
            raise GraphError(f"{path} is not an exported folder: it has no {name}")
    try:
        record = json.loads((path / RECORD_FILE).read_text("utf-8"))
        options = GraphOptions(**record["options"])
        record["checkpoint"]["format"], record["sha256"][MODEL_FILE]
        config = AndreaConfig.from_file(path / CONFIG_FILE)
    except ConfigError as error:
        raise GraphError(str(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise GraphError(f"{path / RECORD_FILE} is damaged: {error!r}") from error
    check_options(path / MODEL_FILE, options)
    return GraphFolder(path, config, options, record)

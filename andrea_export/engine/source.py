"""What an engine is built from: an exported folder, a bare ONNX file, or a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_export.errors import CheckpointError, ConfigError, EngineError, GraphError
from andrea_export.progress import Progress
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_export.graph.folder import GraphFolder
    from andrea_model.checkpoint import Checkpoint

__all__ = [
    "GraphSource",
    "check_recorded",
    "graph_from_checkpoint",
    "is_graph_source",
    "open_source",
    "with_dtype",
]

MODEL_FILE, DATA_FILE, RECORD_FILE = "model.onnx", "model.onnx.data", "export.json"
CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer.json"
ENGINE_FILE, ENGINE_RECORD = "model.engine", "engine.json"


@dataclass(frozen=True)
class GraphSource:
    """A graph to build from.

    The record of an exported folder is read here as the plain data that it is: opening it as a
    graph would load the libraries that write graphs, which costs more than the build can spare.

    Attributes:
        onnx: the file.
        record: `export.json`, whole; None for a bare file.
        config: of the model, where a `config.json` lies beside the file.
    """

    onnx: Path
    record: dict[str, Any] | None
    config: AndreaConfig | None

    @property
    def dtype(self) -> str | None:
        """As exported; None for a bare file."""
        return None if self.record is None else str(self.record["options"]["dtype"])

    @property
    def has_cache(self) -> bool:
        return self.record is not None and bool(self.record["options"].get("kv_cache"))

    @property
    def custom_ops(self) -> dict[str, int] | None:
        return None if self.record is None else dict(self.record["custom_ops"])

    def companions(self) -> list[Path]:
        """Configuration and tokenizer, as far as they lie beside the graph."""
        paths = (self.onnx.parent / name for name in (CONFIG_FILE, TOKENIZER_FILE))
        return [path for path in paths if path.is_file()] if self.config is not None else []

    def files(self) -> list[Path]:
        """The graph and its weights."""
        if self.record is not None:
            return [self.onnx.parent / name for name in self.record["sha256"]]
        from andrea_export.engine.onnx_nodes import external_files

        return [self.onnx, *external_files(self.onnx)]


def check_recorded(path: Path, record: Mapping[str, Any], sha256: str) -> None:
    """Refuse a file of an exported folder that is not the one that was exported.

    Raises:
        GraphError: the record, `export.json`, has another hash of it.
    """
    if record["sha256"].get(path.name, sha256) != sha256:
        raise GraphError(
            f"{path} is not the file that {RECORD_FILE} records "
            "(its sha256 is another): it is damaged or was changed; export it again"
        )


def is_graph_source(path: Path) -> bool:
    """Whether that is an exported folder or an ONNX file, and no checkpoint."""
    return (path / MODEL_FILE).is_file() or path.suffix == ".onnx" or is_engine_folder(path)


def is_engine_folder(path: Path) -> bool:
    """Whether that is an engine folder, whole or half: `open_engine` says what it lacks."""
    return (path / ENGINE_RECORD).is_file() or (path / ENGINE_FILE).is_file()


def open_source(path: Path) -> GraphSource:
    """Open an exported folder or an ONNX file.

    Raises:
        GraphError: not there, incomplete, or with a damaged record.
        EngineError: an engine already.
    """
    if is_engine_folder(path):
        raise EngineError(f"{path} is an engine already: give the graph that it was built from")
    if not path.exists():
        raise GraphError(f"{path} does not exist")
    if path.is_dir():
        for name in (MODEL_FILE, DATA_FILE, CONFIG_FILE, RECORD_FILE):
            if not (path / name).is_file():
                raise GraphError(f"{path} is not an exported folder: it has no {name}")
        path = path / MODEL_FILE
    record = None
    record_path = path.with_name(RECORD_FILE)
    if path.name == MODEL_FILE and record_path.is_file():
        record = _read_record(record_path)
    try:
        config_path = path.with_name(CONFIG_FILE)
        config = AndreaConfig.from_file(config_path) if config_path.is_file() else None
    except ConfigError:
        if record is not None:
            raise
        config = None  # of some other program: a bare file stands for itself
    return GraphSource(path.absolute(), record, config)


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        record["options"]["dtype"], record["custom_ops"].items()
        [record["checkpoint"][key] for key in ("format", "path", "sha256")]
        record["sha256"][MODEL_FILE], record["sha256"][DATA_FILE]
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GraphError(f"{path} is damaged: {error!r}") from error
    return record


def with_dtype(
    source: GraphSource, dtype: str | None, scratch: Path, progress: Progress | None = None
) -> GraphSource:
    """The graph in another precision, exported again into `scratch` where it has a different one.

    The weights come from the checkpoint that the folder records; where that is gone, an fp32
    folder's own weights are as good.

    Raises:
        GraphError: a bare file of unknown origin, or a half-precision folder without checkpoint.
    """
    if source.record is None or dtype is None or dtype == source.dtype:
        return source
    from andrea_export.graph import export_graph, open_graph

    folder = open_graph(source.onnx.parent)
    checkpoint = _recorded_checkpoint(folder, dtype)
    options = replace(folder.options, dtype=dtype)  # type: ignore[arg-type]
    exported = export_graph(checkpoint, scratch, options, progress=progress)
    return open_source(exported.path)


def graph_from_checkpoint(
    checkpoint: Checkpoint,
    *,
    dtype: str | None,
    kv_cache: bool,
    scratch: Path,
    progress: Progress | None = None,
) -> GraphSource:
    """Export a checkpoint into `scratch`, to build from it."""
    from andrea_export.graph import GraphOptions, export_graph

    options = GraphOptions(dtype=dtype or "fp32", kv_cache=kv_cache)  # type: ignore[arg-type]
    return open_source(export_graph(checkpoint, scratch, options, progress=progress).path)


def _recorded_checkpoint(folder: GraphFolder, dtype: str) -> Checkpoint:
    from andrea_model.checkpoint import Layout, open_checkpoint, random_checkpoint

    recorded = folder.record["checkpoint"]
    problem = ""
    if recorded["format"] == "random":
        seed = recorded["random_weights_seed"]
        return random_checkpoint("random weights", seed, config=folder.config)
    layout = recorded.get("layout")
    try:
        checkpoint = open_checkpoint(
            recorded["path"],
            config=folder.config,
            layout=None if layout is None else Layout(**layout),
            tokenizer=folder.tokenizer_path,
            allow_nonfinite=True,
        )
        if checkpoint.sha256() == recorded["sha256"]:
            return checkpoint
        problem = f"{recorded['path']} has changed since"
    except (CheckpointError, ConfigError) as error:
        problem = str(error)
    if folder.options.dtype == "fp32":
        from andrea_export.engine.folder_weights import checkpoint_of_folder

        return checkpoint_of_folder(folder)
    raise GraphError(
        f"{folder.path} is {folder.options.dtype}, and {dtype} needs its checkpoint again: "
        f"{problem}; export it with `andrea-export onnx --dtype {dtype}`"
    )

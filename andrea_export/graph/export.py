"""From a checkpoint to a folder with an ONNX model: the one public function of this stage."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from andrea_export import __version__
from andrea_export.graph.build import build_model
from andrea_export.graph.folder import (
    CONFIG_FILE,
    DATA_FILE,
    MODEL_FILE,
    RECORD_FILE,
    TOKENIZER_FILE,
    GraphFolder,
    open_graph,
)
from andrea_export.graph.ops import DOMAIN
from andrea_export.graph.options import GraphOptions
from andrea_export.graph.weights import weight_initializers
from andrea_export.progress import Progress
from andrea_export.whole_folder import whole_folder
from andrea_model.file_hash import file_sha256
from andrea_model.tokenizer import check_vocabulary

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint
    from andrea_model.tokenizer import Tokenizer

__all__ = ["export_graph"]

# Runtimes map the weights straight from the file when large tensors start on a page.
PAGE_BYTES = 4096
PAGED_FROM_BYTES = 1 << 20
LIBRARIES = ("numpy", "ml_dtypes", "onnx", "onnx-ir")  # those that make the graph

DEFAULT_OPTIONS = GraphOptions()


def export_graph(
    checkpoint: Checkpoint,
    output: Path,
    options: GraphOptions = DEFAULT_OPTIONS,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> GraphFolder:
    """Write `checkpoint` as an ONNX model into the folder `output`, whole or not at all.

    Args:
        checkpoint: the weights and their configuration.
        output: the folder to make.
        options: dtype, op form and opset.
        force: replace an older output of this toolkit.
        progress: called with (tensors written, tensors in all).

    Raises:
        OutputError: the folder exists or cannot be written.
        GraphError: a weight that does not fit the dtype.
        TokenizerError: a tokenizer that cannot be read, or is larger than the model's vocabulary.
    """
    tokenizer = _checked_tokenizer(checkpoint)
    model = build_model(
        checkpoint.config, options, weight_initializers(checkpoint, options.numpy_dtype)
    )
    with whole_folder(output, force=force) as folder:
        _save(model, folder, progress)
        (folder / CONFIG_FILE).write_text(checkpoint.config.to_json(), "utf-8")
        if tokenizer is not None:
            tokenizer.save(folder / TOKENIZER_FILE)
        record = _record(checkpoint, options, model, folder)
        (folder / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    return open_graph(output)


def _checked_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    tokenizer = checkpoint.open_tokenizer()
    if tokenizer is not None:
        check_vocabulary(tokenizer, checkpoint.config, checkpoint.tokenizer_path)
    return tokenizer


def _save(model: ir.Model, folder: Path, progress: Progress | None) -> None:
    def report(_: ir.TensorProtocol, info: ir.external_data.CallbackInfo) -> None:
        if progress is not None:
            progress(info.index + 1, info.total)

    ir.save(
        model,
        folder / MODEL_FILE,
        external_data=DATA_FILE,
        size_threshold_bytes=0,
        callback=report,
        alignment=PAGE_BYTES,
        align_threshold=PAGED_FROM_BYTES,
    )


def _record(
    checkpoint: Checkpoint, options: GraphOptions, model: ir.Model, folder: Path
) -> dict[str, Any]:
    """What `export.json` says: from what, with what and how this folder was made.

    It holds no time and no output path: the same options and checkpoint give the same bytes.
    """
    custom_ops = Counter(node.op_type for node in model.graph if node.domain == DOMAIN)
    source: dict[str, Any] = {
        "format": checkpoint.format,
        "sha256": checkpoint.sha256(),
        "path": None if checkpoint.path is None else str(checkpoint.path.resolve()),
        "step": checkpoint.step,
        "layout": None if checkpoint.layout is None else asdict(checkpoint.layout),
    }
    if checkpoint.format == "random":
        source["random_weights_seed"] = checkpoint.seed
        source["warning"] = "random weights: for sizing and benchmarks, not a trained model"
    return {
        "schema": 1,
        "andrea_export": __version__,
        "libraries": {name: version(name) for name in LIBRARIES},
        "options": asdict(options),
        "checkpoint": source,
        "sha256": {name: file_sha256(folder / name) for name in (MODEL_FILE, DATA_FILE)},
        "custom_ops": dict(sorted(custom_ops.items())),
    }

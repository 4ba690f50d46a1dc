"""A small graph of every kind, exported once for all tests of engines."""

import functools
import tempfile
from pathlib import Path

from andrea_export.engine import EngineOptions
from andrea_export.graph import GraphOptions, export_graph
from andrea_model import AndreaConfig, random_checkpoint

SMALL = AndreaConfig(vocab_size=97, context_length=24, d_model=64, n_layer=2, n_head=2)
# Two norms a block and the last one, all but the first with an addition; one GELU a block.
SMALL_OPS = {"AndreaAddLayerNorm": 4, "AndreaBiasGelu": 2, "AndreaLayerNorm": 1}

_root = tempfile.TemporaryDirectory(prefix="engine-graphs-")


@functools.cache
def small_graph(dtype="fp32", **options):
    """The folder of SMALL, exported with these options. Not to be changed."""
    name = "-".join([dtype, *(f"{key}{value}" for key, value in options.items())])
    checkpoint = random_checkpoint("andrea-nano", 3, config=SMALL)
    graph = GraphOptions(dtype=dtype, **options)
    return export_graph(checkpoint, Path(_root.name) / name, graph).path


def rtx(**options):
    """Engine options of TensorRT-RTX, which builds without a GPU."""
    return EngineOptions(**{"flavor": "rtx", "compute_capability": "8.9", **options})


def names(folder):
    return sorted(path.name for path in folder.iterdir())

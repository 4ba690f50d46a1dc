"""The reference model of andrea-export: configuration, modules, checkpoints, tokenizers.

Importing this package imports neither torch nor numpy: names come when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint, load_model, open_checkpoint, random_checkpoint
    from andrea_model.config import AndreaConfig
    from andrea_model.modules import Andrea
    from andrea_model.presets import PRESETS, preset
    from andrea_model.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "PRESETS",
    "Andrea",
    "AndreaConfig",
    "Checkpoint",
    "Tokenizer",
    "load_model",
    "load_tokenizer",
    "open_checkpoint",
    "preset",
    "random_checkpoint",
]

_HOMES = {
    "checkpoint": ("Checkpoint", "load_model", "open_checkpoint", "random_checkpoint"),
    "config": ("AndreaConfig",),
    "modules": ("Andrea",),
    "presets": ("PRESETS", "preset"),
    "tokenizer": ("Tokenizer", "load_tokenizer"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"andrea_model.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

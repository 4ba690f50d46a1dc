"""Trained weights in: four formats, one `Checkpoint`. Importing this does not import torch."""

from andrea_model.checkpoint.checkpoint import Checkpoint
from andrea_model.checkpoint.layout import LAYOUT, Layout
from andrea_model.checkpoint.loading import load_model
from andrea_model.checkpoint.opening import open_checkpoint
from andrea_model.checkpoint.random_weights import random_checkpoint
from andrea_model.checkpoint.write import save_folder, write_bin

__all__ = [
    "LAYOUT",
    "Checkpoint",
    "Layout",
    "load_model",
    "open_checkpoint",
    "random_checkpoint",
    "save_folder",
    "write_bin",
]

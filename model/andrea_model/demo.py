"""The checkpoint that travels with the package, so that every command can be tried at once."""

from pathlib import Path

__all__ = ["DEMO_NAME", "demo_checkpoint", "heldout_text"]

DEMO_NAME = "andrea-nano"

_FOLDER = Path(__file__).parent / "andrea_nano"


def demo_checkpoint() -> Path:
    """The folder of the demo checkpoint: config.json, model.safetensors, tokenizer.json.

    `training.json` beside them says how it was trained and how well it does.
    """
    return _FOLDER


def heldout_text() -> Path:
    """A play (UTF-8, 114 kB) that neither the demo's tokenizer nor its weights have seen."""
    return _FOLDER / "heldout.txt"

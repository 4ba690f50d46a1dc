"""Options that mean the same in every command, and how they open a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.errors import ConfigError

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint

__all__ = [
    "AllowNonfinite",
    "CheckpointSource",
    "ConfigFile",
    "Force",
    "Json",
    "LayoutText",
    "Output",
    "RandomWeights",
    "Settings",
    "TokenizerFile",
    "Verbose",
    "open_checkpoint_from_options",
]

CHECKPOINT_HELP = (
    "A checkpoint: an ANDREA .bin, an own or a GPT-2 folder, nanoGPT's ckpt.pt, "
    "or andrea-nano for the bundled demo."
)

CheckpointSource = Annotated[str, typer.Argument(metavar="CKPT", help=CHECKPOINT_HELP)]
Output = Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an older output.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, alone.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on the way.")]

_PANEL = "Reading the checkpoint"
LayoutText = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="KEY=VALUE,...",
        help="Order of the tensors in a .bin: orientation=in_out|out_in, head=last|third, "
        "norms=inline|last, attention=qkvo.",
        rich_help_panel=_PANEL,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A config.json.", rich_help_panel=_PANEL),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One field of the config; repeatable.",
        rich_help_panel=_PANEL,
    ),
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE",
        help="Tokenizer, where none lies beside the weights.",
        rich_help_panel=_PANEL,
    ),
]
AllowNonfinite = Annotated[
    bool,
    typer.Option("--allow-nonfinite", help="Go on with NaN weights.", rich_help_panel=_PANEL),
]
RandomWeights = Annotated[
    int | None,
    typer.Option(
        "--random-weights",
        metavar="SEED",
        help="CKPT is the name of a preset, filled with random weights: for sizing and benchmarks.",
        rich_help_panel=_PANEL,
    ),
]


def open_checkpoint_from_options(
    source: str,
    *,
    layout: str | None = None,
    config: Path | None = None,
    settings: list[str] | None = None,
    tokenizer: Path | None = None,
    allow_nonfinite: bool = False,
    random_weights: int | None = None,
) -> Checkpoint:
    """The checkpoint that a command line names; errors are those of `open_checkpoint`."""
    from andrea_model.checkpoint import Layout, open_checkpoint, random_checkpoint
    from andrea_model.config import AndreaConfig

    given_config = None if config is None else AndreaConfig.from_file(config)
    given_settings = _parse_settings(settings or [])
    if random_weights is not None:
        return random_checkpoint(
            source, random_weights, config=given_config, settings=given_settings
        )
    return open_checkpoint(
        source,
        config=given_config,
        settings=given_settings,
        layout=None if layout is None else Layout.parse(layout),
        tokenizer=tokenizer,
        allow_nonfinite=allow_nonfinite,
    )


def _parse_settings(texts: list[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set takes KEY=VALUE, not {text!r}")
        settings[key.strip()] = value.strip()
    return settings

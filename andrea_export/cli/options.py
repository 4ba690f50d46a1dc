"""Options that mean the same in every command, and how they open a checkpoint."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from andrea_export.cli.console import note
from andrea_export.errors import ConfigError, InputError

if TYPE_CHECKING:
    from andrea_model.checkpoint import Checkpoint

__all__ = [
    "CheckpointSource",
    "Force",
    "Json",
    "Output",
    "Reading",
    "TextFile",
    "Verbose",
    "with_reading",
]

CHECKPOINT_HELP = (
    "A checkpoint: an ANDREA .bin, an own or a GPT-2 folder, nanoGPT's ckpt.pt, "
    "or andrea-nano for the bundled demo."
)

CheckpointSource = Annotated[str, typer.Argument(metavar="CKPT", help=CHECKPOINT_HELP)]
Output = Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an older output.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, alone.")]
TextFile = Annotated[
    Path | None,
    typer.Option("--text", metavar="FILE", help="UTF-8 text; a bundled play if not given."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on the way.")]


def _option(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel="Reading the checkpoint")


OPTION_NAMES = {"settings": "--set"}  # where the option is not called as its field


@dataclass(frozen=True)
class Reading:
    """How to read a checkpoint: one option per field, in every command that takes one."""

    layout: Annotated[
        str | None,
        _option(
            "--layout",
            "Order of the tensors in a .bin: orientation=in_out|out_in, head=last|third, "
            "norms=inline|last, attention=qkvo.",
            "KEY=VALUE,...",
        ),
    ] = None
    config: Annotated[Path | None, _option("--config", "A config.json.", "FILE")] = None
    settings: Annotated[
        list[str] | None, _option("--set", "One field of the config; repeatable.", "KEY=VALUE")
    ] = None
    tokenizer: Annotated[
        Path | None,
        _option("--tokenizer", "Tokenizer, where none lies beside the weights.", "FILE"),
    ] = None
    allow_nonfinite: Annotated[bool, _option("--allow-nonfinite", "Go on with NaN weights.")] = (
        False
    )
    random_weights: Annotated[
        int | None,
        _option(
            "--random-weights",
            "CKPT is the name of a preset, filled with random weights: for sizing and benchmarks.",
            "SEED",
        ),
    ] = None

    def open(self, source: str, *, print_notes: bool = True) -> Checkpoint:
        """The checkpoint that the command line names; errors are those of `open_checkpoint`."""
        from andrea_model.checkpoint import Layout, open_checkpoint, random_checkpoint
        from andrea_model.config import AndreaConfig

        config = None if self.config is None else AndreaConfig.from_file(self.config)
        settings = _parse_settings(self.settings or [])
        if self.random_weights is not None:
            if self.layout is not None:
                raise ConfigError("--layout is for an ANDREA .bin, not for random weights")
            checkpoint = random_checkpoint(
                source,
                self.random_weights,
                config=config,
                settings=settings,
                tokenizer=self.tokenizer,
            )
        else:
            checkpoint = open_checkpoint(
                source,
                config=config,
                settings=settings,
                layout=None if self.layout is None else Layout.parse(self.layout),
                tokenizer=self.tokenizer,
                allow_nonfinite=self.allow_nonfinite,
            )
        if print_notes:
            for line in checkpoint.notes:
                note(line)
        return checkpoint

    def refuse(self, source: str, what: str, *, tokenizer: bool = False) -> None:
        """Refuse options that only a checkpoint can take.

        Args:
            source, what: for the message.
            tokenizer: refuse that too; text can be read with one whatever runs the model.

        Raises:
            InputError: one of them was given.
        """
        given = [
            OPTION_NAMES.get(field.name, f"--{field.name.replace('_', '-')}")
            for field in fields(self)
            if (tokenizer or field.name != "tokenizer")
            and getattr(self, field.name) != field.default
        ]
        if given:
            raise InputError(f"{', '.join(given)} is for checkpoints, and {source} is {what}")


def with_reading(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command with a parameter `reading: Reading` one option for each field of it."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "reading"
    ]
    field_hints = get_type_hints(Reading, include_extras=True)
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=field_hints[field.name],
        )
        for field in fields(Reading)
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        reading = Reading(**{parameter.name: given.pop(parameter.name) for parameter in added})
        command(reading=reading, **given)

    # Typer reads a command's signature and annotations: these are the ones that it must see.
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
    return run


def _parse_settings(texts: list[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set takes KEY=VALUE, not {text!r}")
        settings[key.strip()] = value.strip()
    return settings

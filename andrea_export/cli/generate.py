"""`andrea-export generate`: text from a checkpoint or an exported folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.console import note, print_json
from andrea_export.cli.options import (
    AllowNonfinite,
    ConfigFile,
    Json,
    LayoutText,
    Settings,
    TokenizerFile,
    open_checkpoint_from_options,
)
from andrea_export.errors import TokenizerError

if TYPE_CHECKING:
    from andrea_export.graph import GraphFolder
    from andrea_model.checkpoint import Checkpoint

ENDINGS = {
    "length": "",
    "bos": "; the model ended the text",
    "context": "; the context is full",
}


def generate(
    source: Annotated[
        str, typer.Argument(metavar="CKPT|DIR", help="A checkpoint, or an exported folder.")
    ],
    prompt: Annotated[str, typer.Option("--prompt", help="Text to go on from.")],
    backend: Annotated[
        str, typer.Option("--backend", help="auto, torch (checkpoints) or onnx (folders).")
    ] = "auto",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="At most so many.")] = 100,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Sample; without it the likeliest token is taken."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", help="Sample from the k likeliest."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Sample from the likeliest that reach this probability."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the sampling.")] = 0,
    bos: Annotated[
        bool, typer.Option("--bos/--no-bos", help="Begin with the vocabulary's BOS.")
    ] = True,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the torch backend.")] = "fp32",
    as_json: Json = False,
    layout: LayoutText = None,
    config: ConfigFile = None,
    settings: Settings = None,
    tokenizer: TokenizerFile = None,
    allow_nonfinite: AllowNonfinite = False,
) -> None:
    """Continue a prompt, token by token as they come."""
    from andrea_export.graph import is_graph_folder, open_graph
    from andrea_export.session import Sampling, open_session
    from andrea_export.session import generate as run

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    opened: Checkpoint | GraphFolder
    if is_graph_folder(Path(source)):
        opened = open_graph(Path(source))
    else:
        opened = open_checkpoint_from_options(
            source,
            layout=layout,
            config=config,
            settings=settings,
            tokenizer=tokenizer,
            allow_nonfinite=allow_nonfinite,
        )
        for line in opened.notes:
            note(line)
    words = _tokenizer(opened, tokenizer)
    with open_session(opened, backend, dtype=dtype) as session:
        result = run(
            session,
            words,
            prompt,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            bos=bos,
            on_text=None if as_json else _write,
        )
        label = session.label
    if as_json:
        print_json(
            {
                "prompt": prompt,
                "text": result.text,
                "ids": result.ids,
                "ended_by": result.ended_by,
                "backend": label,
                "first_token_seconds": result.first_token_seconds,
                "tokens_per_second": result.tokens_per_second,
            }
        )
        return
    print(flush=True)
    note(
        f"{len(result.ids)} tokens in {result.seconds:.2f} s, "
        f"{result.tokens_per_second:.1f} tokens/s, the first after "
        f"{result.first_token_seconds * 1e3:.0f} ms; {label}{ENDINGS[result.ended_by]}"
    )


def _tokenizer(opened: Checkpoint | GraphFolder, given: Path | None):  # type: ignore[no-untyped-def]
    from andrea_model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(given) if given is not None else opened.open_tokenizer()
    if tokenizer is None:
        raise TokenizerError("there is no tokenizer beside the model: give one with --tokenizer")
    return tokenizer


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()

"""`andrea-export generate`: text from a checkpoint, an exported folder or an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.console import note, print_json
from andrea_export.cli.options import (
    Json,
    Reading,
    with_reading,
)
from andrea_export.errors import InputError, TokenizerError

if TYPE_CHECKING:
    from andrea_export.engine import EngineFolder
    from andrea_export.graph import GraphFolder
    from andrea_export.session import Generation, GenerationOptions, Session
    from andrea_model.checkpoint import Checkpoint
    from andrea_model.tokenizer import Tokenizer

ENDINGS = {
    "length": "",
    "bos": "; the model ended the text",
    "stop": "; a stop string was met",
    "context": "; the context is full (--on-full slide goes on)",
}
INTERRUPTED = 130


@with_reading
def generate(
    reading: Reading,
    source: Annotated[
        str,
        typer.Argument(metavar="CKPT|DIR", help="A checkpoint, an exported folder or an engine."),
    ],
    prompt: Annotated[str | None, typer.Option("--prompt", help="Text to go on from.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="One prompt a line; gives JSON lines."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Prompts side by side.")] = 8,
    backend: Annotated[
        str,
        typer.Option(
            "--backend", help="auto, torch (checkpoints), onnx (folders) or trt (engines)."
        ),
    ] = "auto",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="At most so many.")] = 100,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Sample; without it the likeliest token is taken."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Sample from the k likeliest.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Sample from the likeliest that reach this probability."),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Above 1: fewer repetitions.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the sampling.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End where this text appears; repeatable.")
    ] = None,
    on_full: Annotated[
        str,
        typer.Option(
            "--on-full",
            help="At the end of the context: stop, or slide (forget the older half and go on).",
        ),
    ] = "stop",
    bos: Annotated[
        bool, typer.Option("--bos/--no-bos", help="Begin with the vocabulary's BOS.")
    ] = True,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the torch backend.")] = "fp32",
    provider: Annotated[
        str, typer.Option("--provider", help="Of the onnx backend: cpu, cuda or tensorrt.")
    ] = "cpu",
    plugin_library: Annotated[
        Path | None,
        typer.Option(
            "--plugin-library",
            metavar="FILE",
            help="Our plugins, for an engine built with them or for --provider tensorrt.",
        ),
    ] = None,
    trust: Annotated[
        str | None,
        typer.Option(
            "--trust",
            metavar="FLAVOR",
            help="Run an engine that has no sidecar, unchecked: tensorrt or rtx built it.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Continue a prompt, token by token as they come; or a file of prompts, in batches."""
    from andrea_export.engine import is_engine_folder, open_trusted_engine
    from andrea_export.graph import is_graph_folder
    from andrea_export.session import GenerationOptions, Sampling, open_session, read_prompts
    from andrea_export.session.opening import open_source

    options = GenerationOptions(
        max_new_tokens=max_new_tokens,
        sampling=Sampling(temperature, top_k, top_p, seed, repetition_penalty),
        stop=tuple(stop or ()),
        bos=bos,
        on_full=on_full,  # type: ignore[arg-type]
    )
    if (prompt is None) == (prompts is None):
        raise InputError("give either --prompt TEXT or --prompts FILE")
    texts = [prompt or ""] if prompts is None else read_prompts(prompts)
    opened: Checkpoint | GraphFolder | EngineFolder
    if trust is not None:
        opened = open_trusted_engine(Path(source), trust)
    elif is_graph_folder(Path(source)) or is_engine_folder(Path(source)):
        opened = open_source(source)
    else:
        opened = reading.open(source)
    words = _tokenizer(opened, reading.tokenizer)
    with open_session(
        opened, backend, dtype=dtype, provider=provider, plugin_library=plugin_library
    ) as session:
        _say_where_nodes_run(session)
        if prompts is not None:
            _run_file(session, words, texts, options, batch_size)
        else:
            _run_one(session, words, texts[0], options, as_json)


def _say_where_nodes_run(session: Session) -> None:
    """A GPU provider leaves to the CPU what it cannot run, and says nothing."""
    placement = getattr(session, "placement", None)
    if placement is None or len(placement.ops) < 2:
        return
    note(str(placement))
    if placement.on_cpu:
        ops = ", ".join(f"{count} {op}" for op, count in placement.on_cpu.items())
        note(f"fell back to the CPU: {ops}")


def _run_one(
    session: Session, words: Tokenizer, prompt: str, options: GenerationOptions, as_json: bool
) -> None:
    from andrea_export.session import generate

    try:
        result = generate(session, words, prompt, options, on_text=None if as_json else _write)
    except KeyboardInterrupt:  # what was written stays
        print(flush=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(_as_dict(prompt, result, session))
        return
    print(flush=True)
    note(
        f"{len(result.ids)} tokens in {result.seconds:.2f} s, "
        f"{result.tokens_per_second:.1f} tokens/s, the first after "
        f"{result.first_token_seconds * 1e3:.0f} ms; {session.label}{ENDINGS[result.ended_by]}"
    )
    if options.stop and result.ended_by != "stop":
        note(f"no stop string appeared: {', '.join(map(repr, options.stop))}")


def _run_file(
    session: Session,
    words: Tokenizer,
    prompts: list[str],
    options: GenerationOptions,
    batch_size: int,
) -> None:
    """One JSON object a line, in the order of the file, as each batch ends."""
    from andrea_export.session import generate_batch

    if batch_size < 1:
        raise InputError(f"batch-size must be at least 1, not {batch_size}")
    tokens, seconds = 0, 0.0
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        results = generate_batch(session, words, batch, options, first_row=first)
        for text, result in zip(batch, results, strict=True):
            print(json.dumps(_as_dict(text, result, session), ensure_ascii=False), flush=True)
        tokens += sum(len(result.ids) for result in results)
        seconds += max(result.seconds for result in results)
    rate = tokens / seconds if seconds else 0.0
    note(f"{tokens} tokens for {len(prompts)} prompts, {rate:.1f} tokens/s; {session.label}")


def _as_dict(prompt: str, result: Generation, session: Session) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": result.text,
        "ids": result.ids,
        "ended_by": result.ended_by,
        "backend": session.label,
        "first_token_seconds": result.first_token_seconds,
        "tokens_per_second": result.tokens_per_second,
    }


def _tokenizer(opened: Checkpoint | GraphFolder | EngineFolder, given: Path | None) -> Tokenizer:
    from andrea_model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(given) if given is not None else opened.open_tokenizer()
    if tokenizer is None:
        raise TokenizerError("there is no tokenizer beside the model: give one with --tokenizer")
    return tokenizer


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()

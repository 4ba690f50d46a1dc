"""`andrea-export generate`: text from a checkpoint, an exported folder or an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.console import note, print_json
from andrea_export.cli.options import (
    Json,
    Reading,
    Verbose,
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
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Of the torch backend: fp64, fp32 (default), fp16 or bf16."),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option("--provider", help="Of the onnx backend: cpu (default), cuda or tensorrt."),
    ] = None,
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
    verbose: Verbose = False,
) -> None:
    """Continue a prompt, token by token as they come; or a file of prompts, in batches."""
    from andrea_export.session import GenerationOptions, Sampling, open_session, read_prompts

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
    opened = _open(
        source,
        reading,
        trust=trust,
        dtype=dtype,
        provider=provider,
        plugin_library=plugin_library,
    )
    words = _tokenizer(opened, reading.tokenizer)
    with open_session(
        opened,
        backend,
        dtype=dtype or "fp32",
        provider=provider or "cpu",
        plugin_library=plugin_library,
    ) as session:
        if verbose:
            note(f"{session.label}; {options}")
        _say_where_nodes_run(session)
        _say_if_unread(session, opened, words)
        if prompts is not None:
            _run_file(session, words, texts, options, batch_size)
        else:
            _run_one(session, words, texts[0], options, as_json)


def _open(
    source: str,
    reading: Reading,
    *,
    trust: str | None,
    dtype: str | None,
    provider: str | None,
    plugin_library: Path | None,
) -> Checkpoint | GraphFolder | EngineFolder:
    """What lies at `source`; options that it cannot take are refused, not ignored."""
    from andrea_export.engine import is_engine_folder, open_trusted_engine
    from andrea_export.graph import is_graph_folder
    from andrea_export.session.opening import open_source

    path = Path(source)
    if trust is not None or is_engine_folder(path):
        what = "an engine"
    else:
        what = "an exported folder" if is_graph_folder(path) else "a checkpoint"
    if provider is not None and what != "an exported folder":
        raise InputError(f"--provider is for exported folders, and {source} is {what}")
    if what == "a checkpoint":
        if plugin_library is not None:
            raise InputError(f"--plugin-library is for engines and exported folders, not {source}")
        return reading.open(source)
    reading.refuse(source, what)
    if dtype is not None:
        raise InputError(f"--dtype is for checkpoints, and {source} is {what}: it has its own")
    return open_source(source) if trust is None else open_trusted_engine(path, trust)


def _say_if_unread(
    session: Session, opened: Checkpoint | GraphFolder | EngineFolder, words: Tokenizer
) -> None:
    """A .bin records no layout, and a wrong one writes nonsense without an error."""
    if getattr(opened, "format", None) == "bin":
        from andrea_export.report.plausibility import quick_warnings

        for line in quick_warnings(session, opened, words):  # type: ignore[arg-type]
            note(f"warning: {line}")


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
        if not as_json:
            print(flush=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(_as_dict(prompt, result, session))
        return
    print(flush=True)
    note(f"{_figures(result)}; {session.label}{ENDINGS[result.ended_by]}")
    if options.stop and result.ended_by != "stop":
        note(f"no stop string appeared: {', '.join(map(repr, options.stop))}")


def _figures(result: Generation) -> str:
    if not result.ids:
        return "no new token"
    return (
        f"{len(result.ids)} tokens in {result.seconds:.2f} s, "
        f"{result.tokens_per_second:.1f} tokens/s, "
        f"the first after {result.first_token_seconds * 1e3:.0f} ms"
    )


def _run_file(
    session: Session,
    words: Tokenizer,
    prompts: list[str],
    options: GenerationOptions,
    batch_size: int,
) -> None:
    """One JSON object a line, in the order of the file, as each batch ends."""
    from andrea_export.session import generate_file

    tokens, seconds, done = 0, 0.0, 0
    for results in generate_file(session, words, prompts, options, batch_size=batch_size):
        for result in results:
            print_json(_as_dict(prompts[done], result, session), indent=None)
            tokens, done = tokens + len(result.ids), done + 1
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

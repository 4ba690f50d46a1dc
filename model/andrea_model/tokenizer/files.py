"""Tokenizer files: which form they have, and which one belongs to a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andrea_model.errors import TokenizerError, shown
from andrea_model.tokenizer.harris import DEFAULT_ID_LAYOUT, HarrisTokenizer
from andrea_model.tokenizer.huggingface import BOS_TOKEN, HuggingFaceTokenizer
from andrea_model.tokenizer.protocol import Tokenizer

__all__ = ["existing_tokenizer", "find_tokenizer", "load_tokenizer"]

# What may lie beside a checkpoint, the first one found wins. vocab.json needs merges.txt too.
FILE_NAMES = ("tokenizer.json", "harris_segments.json", "vocab.json")
MERGES = "merges.txt"
MOST_KEYS = 5  # that a message lists


def find_tokenizer(checkpoint: str | Path) -> Path | None:
    """The tokenizer file in a checkpoint's folder (for a file: in the folder around it), if any."""
    checkpoint = Path(checkpoint)
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    for name in FILE_NAMES:
        path = folder / name
        if path.is_file() and (name != "vocab.json" or (folder / MERGES).is_file()):
            return path
    return None


def existing_tokenizer(path: Path) -> Path:
    """The path itself, for a tokenizer that the user named.

    Raises:
        TokenizerError: nothing is there.
    """
    if not path.exists():
        raise TokenizerError(f"{path}: no such tokenizer file")
    return path


def load_tokenizer(path: str | Path, *, id_layout: str | None = None) -> Tokenizer:
    """The tokenizer of a file, or of the folder that holds one.

    Forms: a JSON list of strings (Harris segments); a JSON object with one list of strings under
    any key, and possibly its own "id_layout"; a Hugging Face tokenizer.json; GPT-2's vocab.json
    with merges.txt beside it.

    Args:
        id_layout: a name of `ID_LAYOUTS` that overrides the file's own (Harris segments only).

    Raises:
        TokenizerError: a file that is missing, unreadable or of another form; segments that
            `HarrisTokenizer` refuses. The message names the file and what was seen.
    """
    path = Path(path)
    if path.is_dir():
        found = find_tokenizer(path)
        if found is None:
            raise TokenizerError(f"{path}: no tokenizer here; expected {', '.join(FILE_NAMES)}")
        path = found
    data = _read(path)
    content = _parse_json(data, path)
    try:
        if _is_hugging_face(content):
            _refuse_id_layout(id_layout)
            text = json.dumps(content)
            return HuggingFaceTokenizer(_made(lambda tk: tk.Tokenizer.from_str(text)), data)
        if path.name == "vocab.json" and _is_vocabulary(content):
            _refuse_id_layout(id_layout)
            merges = str(path.with_name(MERGES))
            return HuggingFaceTokenizer(_made(lambda tk: _gpt2(tk, str(path), merges)))
        segments, own_layout = _segments(content)
        return HarrisTokenizer(segments, id_layout=id_layout or own_layout)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse_json(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from error


def _segments(content: Any) -> tuple[list[str], str]:
    """The list of segments and the id layout; its entries are the tokenizer's to check."""
    if isinstance(content, list):
        return content, DEFAULT_ID_LAYOUT
    if not isinstance(content, dict):
        raise TokenizerError(
            "expected a list of strings or an object that holds one, "
            f"not a JSON {type(content).__name__}"
        )
    lists = {key: value for key, value in content.items() if isinstance(value, list)}
    of_strings = [key for key, v in lists.items() if v and all(isinstance(s, str) for s in v)]
    names = of_strings or list(lists)
    if len(names) != 1:
        seen = _listed(names or list(content))
        what = "several lists" if names else "no list of strings; its keys are"
        raise TokenizerError(f"the object has {what} {seen}: one list of segments is expected")
    return lists[names[0]], content.get("id_layout", DEFAULT_ID_LAYOUT)


def _listed(keys: list[str]) -> str:
    """The first few: an object may be a whole vocabulary."""
    listed = ", ".join(map(shown, keys[:MOST_KEYS])) or "nothing"
    return listed + (f" and {len(keys) - MOST_KEYS:,} more" if len(keys) > MOST_KEYS else "")


def _is_hugging_face(content: Any) -> bool:
    return isinstance(content, dict) and "model" in content and "added_tokens" in content


def _is_vocabulary(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(value, int) for value in content.values())


def _refuse_id_layout(id_layout: str | None) -> None:
    if id_layout is not None:
        raise TokenizerError(
            f"id layout {shown(id_layout)} does not apply: this tokenizer gives its ids itself"
        )


def _made(make: Callable[[Any], Any]) -> Any:
    import tokenizers

    try:
        return make(tokenizers)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"the tokenizers library refuses it: {error}") from error


def _gpt2(tk: Any, vocabulary: str, merges: str) -> Any:
    inner = tk.Tokenizer(tk.models.BPE.from_file(vocabulary, merges))
    inner.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tk.decoders.ByteLevel()
    if inner.token_to_id(BOS_TOKEN) is not None:
        inner.add_special_tokens([BOS_TOKEN])
    return inner

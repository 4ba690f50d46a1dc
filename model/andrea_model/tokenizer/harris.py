"""Harris segments with byte fallback: the tokenizer of the ANDREA models.

The vocabulary is three groups: learned segments (strings), the 256 bytes, and one BOS token.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from andrea_model.errors import InputError, TokenizerError, shown
from andrea_model.tokenizer.protocol import checked_id, text_to_bytes

__all__ = ["DEFAULT_ID_LAYOUT", "ID_LAYOUTS", "HarrisTokenizer"]

# The order in which the three groups take their ids. The published checkpoints do not say which
# one they use, so a probe tries them all.
ID_LAYOUTS: dict[str, tuple[str, str, str]] = {
    "bytes,bos,segments": ("bytes", "bos", "segments"),
    "bytes,segments,bos": ("bytes", "segments", "bos"),
    "bos,bytes,segments": ("bos", "bytes", "segments"),
    "bos,segments,bytes": ("bos", "segments", "bytes"),
    "segments,bytes,bos": ("segments", "bytes", "bos"),
    "segments,bos,bytes": ("segments", "bos", "bytes"),
}
DEFAULT_ID_LAYOUT = "bytes,bos,segments"

N_BYTES = 256


class HarrisTokenizer:
    """Greedy longest match over the segments' UTF-8 bytes; a byte that starts no segment is itself.

    Any bytes round-trip exactly: `decode_bytes(encode(data)) == data`. A segment of one byte wins
    over the byte's own token.

    Args:
        segments: the learned strings; the k-th takes the k-th id of its group.
        id_layout: a name of `ID_LAYOUTS`.

    Raises:
        TokenizerError: an unknown layout; a segment that is empty, given twice, no string, or not
            expressible in UTF-8.
    """

    def __init__(self, segments: Sequence[str], *, id_layout: str = DEFAULT_ID_LAYOUT) -> None:
        if not isinstance(id_layout, str) or id_layout not in ID_LAYOUTS:
            known = ", ".join(repr(name) for name in ID_LAYOUTS)
            raise TokenizerError(f"no id layout {shown(id_layout)}; there are: {known}")
        self.id_layout = id_layout
        self.segments: tuple[str, ...] = tuple(segments)
        groups: dict[str, list[bytes]] = {
            "bytes": [bytes([value]) for value in range(N_BYTES)],
            "bos": [b""],
            "segments": _checked_segments(self.segments),
        }
        self._tokens: list[bytes] = []
        first_id: dict[str, int] = {}
        for group in ID_LAYOUTS[id_layout]:
            first_id[group] = len(self._tokens)
            self._tokens += groups[group]
        self._bos_id = first_id["bos"]
        # Segments last, so that one of a single byte replaces that byte's token.
        self._ids: dict[bytes, int] = {}
        for group in ("bytes", "segments"):
            self._ids.update((t, first_id[group] + k) for k, t in enumerate(groups[group]))

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def bos_id(self) -> int:
        return self._bos_id

    @cached_property
    def _matcher(self) -> re.Pattern[bytes]:
        return _longest_match([segment.encode("utf-8") for segment in self.segments])

    def encode(self, text: str | bytes) -> list[int]:
        """Token ids of any text or bytes, without BOS.

        Raises:
            InputError: a str with lone surrogates.
        """
        return list(map(self._ids.__getitem__, self._matcher.findall(text_to_bytes(text))))

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[checked_id(token_id, self.vocab_size)]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def pieces_without(self, segment: str) -> int:
        """Number of tokens that the segment's text would take if it were no segment itself."""
        token = text_to_bytes(segment)
        first = self._matcher.match(token, 0, len(token) - 1)  # the longest that is shorter
        return len(self._matcher.findall(token, first.end() if first else 0)) + (first is not None)

    def with_id_layout(self, id_layout: str) -> HarrisTokenizer:
        """The same segments with their ids in another order; the compiled matcher is shared.

        Raises:
            TokenizerError: no such layout.
        """
        other = HarrisTokenizer(self.segments, id_layout=id_layout)
        other.__dict__["_matcher"] = self._matcher
        return other

    def save(self, path: Path) -> None:
        """Write the JSON object that `load_tokenizer` reads back."""
        content = {"type": "harris", "id_layout": self.id_layout, "segments": self.segments}
        text = json.dumps(content, ensure_ascii=False, indent=0)
        Path(path).write_text(text + "\n", encoding="utf-8", newline="\n")


def _checked_segments(segments: Iterable[str]) -> list[bytes]:
    position: dict[bytes, int] = {}
    for k, segment in enumerate(segments):
        if not isinstance(segment, str):
            raise TokenizerError(f"segment {k} is {shown(segment)}, not a string")
        if not segment:
            raise TokenizerError(f"segment {k} is empty")
        try:
            token = text_to_bytes(segment)
        except InputError as error:
            raise TokenizerError(f"segment {k} ({shown(segment)}): {error}") from None
        if token in position:
            raise TokenizerError(
                f"segment {k} ({shown(segment)}) repeats segment {position[token]}"
            )
        position[token] = k
    return list(position)


def _longest_match(tokens: Iterable[bytes]) -> re.Pattern[bytes]:
    """A pattern whose `findall` cuts any bytes into longest tokens and single bytes.

    `re` takes the first alternative that fits, so the longer come first. They are grouped by their
    first two bytes: two look-ups leave a handful of alternatives. A full trie would be little
    faster, and nested deep enough by a hostile file it would exhaust the recursion of `re`.
    """
    groups: dict[bytes, dict[bytes, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for token in tokens:
        groups[token[:1]][token[1:2]].append(token[2:])
    branches = []
    for first, seconds in sorted(groups.items()):
        # A token of one byte has no second one: b"" sorts last, after all that are longer.
        inner = [
            re.escape(second) + _alternatives(rests)
            for second, rests in sorted(seconds.items(), reverse=True)
        ]
        branches.append(re.escape(first) + b"(?:" + b"|".join(inner) + b")")
    return re.compile(b"|".join([*branches, b"."]), re.DOTALL)


def _alternatives(rests: list[bytes]) -> bytes:
    longest_first = sorted(rests, key=lambda rest: (-len(rest), rest))
    return b"(?:" + b"|".join(map(re.escape, longest_first)) + b")"

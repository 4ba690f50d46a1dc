"""Learning a vocabulary of segments from text, by successor variety."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from andrea_model.errors import InputError
from andrea_model.tokenizer.harris import HarrisTokenizer
from andrea_model.tokenizer.protocol import text_to_bytes

__all__ = ["boundaries", "train_segments"]

# An utterance: what stands between two words (punctuation and white space) and the word after it.
UTTERANCE = re.compile(r"[^\w]*[\w'’]+|[^\w]+")
MAX_SEGMENT_BYTES = 24
# Candidates kept after each round, in multiples of the vocabulary wanted. Slow pruning matters: a
# segment's use rises when a longer rival goes, and those that only one play needs go first.
# Six rounds from 4 on give 4 % fewer bytes per token on held-out text.
ROUNDS = (32, 16, 8, 5, 3.5, 2.5, 2, 1.6, 1.3, 1.15, 1.05, 1)


def train_segments(text: str | bytes, n_segments: int) -> list[str]:
    """The `n_segments` most useful segments of a text, the most used first.

    Method. The *successor variety* of a string's beginning is the number of different characters
    that follow it anywhere in the text; it falls inside a morpheme and rises at its end (Zellig
    Harris, From Phoneme to Morpheme, Language 31:2, 1955, pp. 190-222). The same holds backwards
    for the *predecessor variety* of its end. Here:

    1. The text is cut into utterances: a word with the punctuation and white space before it.
    2. An utterance is cut where its successor variety or its predecessor variety has a peak, and
       at both ends (`boundaries`; the peak rule of Hafer and Weiss, Word segmentation by letter
       successor varieties, Information Storage and Retrieval 10, 1974, pp. 371-385).
    3. Every run of pieces between two cuts is a candidate, up to 24 bytes. Single bytes are not:
       the vocabulary has them already.
    4. Candidates are ranked by count * (bytes - 1), the tokens that they save over plain bytes.
       The best are kept and the text is encoded with them by greedy longest match. From then on
       the rank is real uses * (pieces - 1), pieces being the tokens that the segment would fall
       into without itself. Rounds of this end at `n_segments`.

    The result depends on nothing but the arguments. Segments are whole UTF-8 strings.

    Raises:
        InputError: bytes that are not UTF-8, lone surrogates, n_segments below 1, or a text that
            has fewer candidates than that.
    """
    data = text_to_bytes(text)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the training text is not UTF-8: {error}") from None
    if n_segments < 1:
        raise InputError(f"n_segments must be at least 1, not {n_segments}")

    uses = _candidates(Counter(UTTERANCE.findall(text)))
    if len(uses) < n_segments:
        raise InputError(
            f"the text gives {len(uses)} segments, {n_segments} were asked for: "
            "train on more text or ask for fewer"
        )
    saved = {segment: len(segment.encode()) - 1 for segment in uses}
    for multiple in ROUNDS:
        ranked = sorted(uses, key=lambda s: (-uses[s] * saved[s], s))
        tokenizer = HarrisTokenizer(ranked[: int(n_segments * multiple)])
        uses = _real_uses(tokenizer, data)
        saved = {segment: tokenizer.pieces_without(segment) - 1 for segment in uses}
    return sorted(uses, key=lambda s: (-uses[s], s))


def boundaries(utterances: Counter[str]) -> dict[str, list[int]]:
    """Where each utterance is cut: character offsets, 0 and its length among them.

    Offset i is a cut if the variety there is higher than one character earlier and not lower
    than one character later (seen in reading direction: predecessor variety is read backwards).
    The end of an utterance counts as one more successor. Only types count, not frequencies.
    """
    forward = _variety(utterances)
    backward = _variety(utterance[::-1] for utterance in utterances)
    cuts = {}
    for utterance in utterances:
        n = len(utterance)
        peaks = _peaks(utterance, forward)
        peaks |= {n - i for i in _peaks(utterance[::-1], backward)}
        cuts[utterance] = sorted({0, n} | peaks)
    return cuts


def _variety(utterances: Iterable[str]) -> Counter[str]:
    """Beginning → number of different characters (or ends) that follow it."""
    types = set(utterances)
    beginnings = {u[:i] for u in types for i in range(1, len(u) + 1)}
    variety = Counter(beginning[:-1] for beginning in beginnings)
    variety.update(types)  # the end of an utterance is a successor too
    return variety


def _peaks(utterance: str, variety: Counter[str]) -> set[int]:
    v = [variety[utterance[:i]] for i in range(len(utterance) + 1)]
    return {i for i in range(1, len(utterance)) if v[i - 1] < v[i] >= v[i + 1]}


def _candidates(utterances: Counter[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for utterance, cuts in boundaries(utterances).items():
        for start, end in combinations(cuts, 2):
            if end - start <= MAX_SEGMENT_BYTES:
                counts[utterance[start:end]] += utterances[utterance]
    return Counter({s: c for s, c in counts.items() if 1 < len(s.encode()) <= MAX_SEGMENT_BYTES})


def _real_uses(tokenizer: HarrisTokenizer, data: bytes) -> Counter[str]:
    counts = Counter(tokenizer.encode(data))
    first = tokenizer.vocab_size - len(tokenizer.segments)  # the default id layout
    return Counter({s: counts[first + k] for k, s in enumerate(tokenizer.segments)})

"""Successor variety: Harris's own kind of example by hand, and the trained vocabulary's quality."""

from collections import Counter
from itertools import pairwise

import pytest

from andrea_model.demo import heldout_text
from andrea_model.errors import InputError
from andrea_model.tokenizer import HarrisTokenizer, train_segments
from andrea_model.tokenizer.trainer import boundaries

WORDS = ["read", "reads", "reading", "reader", "readable", "fix", "fixes", "fixing", "fixable"]


def pieces(word: str, cuts: list[int]) -> list[str]:
    return [word[a:b] for a, b in pairwise(cuts)]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        # After "read" come s, i, e, a and the end of a word: 5; after "rea" only d.
        ("reading", ["read", "ing"]),
        ("readable", ["read", "able"]),
        # After "fix" come e, i, a and the end: 4.
        ("fixing", ["fix", "ing"]),
        ("fixable", ["fix", "able"]),
    ],
)
def test_boundaries_when_successor_variety_peaks_then_the_word_is_cut_there(word, expected):
    assert pieces(word, boundaries(Counter(WORDS))[word]) == expected


def test_boundaries_when_a_word_is_repeated_then_types_count_and_not_frequencies():
    once = boundaries(Counter(WORDS))
    often = boundaries(Counter(WORDS * 5 + ["reads"] * 100))
    assert once == often


def test_boundaries_when_nothing_varies_then_the_word_stays_whole():
    assert boundaries(Counter(["only"])) == {"only": [0, 4]}


@pytest.fixture(scope="module")
def play() -> str:
    return heldout_text().read_text("utf-8")


def test_train_when_repeated_then_the_same_segments(play):
    text = play[:30_000]
    assert train_segments(text, 200) == train_segments(text.encode(), 200)


def test_train_when_trained_then_distinct_strings_of_more_than_one_byte(play):
    segments = train_segments(play[:30_000], 200)
    assert len(segments) == len(set(segments)) == 200
    assert all(2 <= len(s.encode()) <= 24 for s in segments)


def test_train_when_text_is_multibyte_then_segments_are_whole_characters():
    text = "日本語の本と日本の国。" * 20 + "naïveté – élève, été. " * 20
    for segment in train_segments(text, 10):
        assert segment.encode().decode() == segment
        assert segment in text


def test_train_when_used_on_unseen_text_then_clearly_shorter_than_bytes(play):
    """1,000 segments of half a play (57 kB): 2.18 bytes per token on the other half."""
    half = len(play) // 2
    tokenizer = HarrisTokenizer(train_segments(play[:half], 1000))
    assert half / len(tokenizer.encode(play[half:])) > 2.1


def test_train_when_text_is_too_short_then_both_counts_are_named():
    with pytest.raises(InputError, match=r"gives 1 segments, 500 were asked for"):
        train_segments("ab", 500)


def test_train_when_text_is_not_utf8_then_refused():
    with pytest.raises(InputError, match=r"training text is not UTF-8.*position 2"):
        train_segments(b"ab\xff", 5)


@pytest.mark.parametrize("n", [0, -3])
def test_train_when_no_segments_are_asked_for_then_refused(n):
    with pytest.raises(InputError, match=f"at least 1, not {n}"):
        train_segments("some text", n)

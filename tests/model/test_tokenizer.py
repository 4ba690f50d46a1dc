"""Harris segments: the greedy match, the id layouts, exact bytes, and what is refused."""

import random
import re

import pytest

from andrea_model.errors import InputError, TokenizerError
from andrea_model.tokenizer import DEFAULT_ID_LAYOUT, ID_LAYOUTS, HarrisTokenizer, load_tokenizer

SEGMENTS = ["the", " the", "there", "he", "a", "é", "日本", "日", " "]


@pytest.fixture
def tokenizer() -> HarrisTokenizer:
    return HarrisTokenizer(SEGMENTS)


def naive_tokens(segments: list[str], data: bytes) -> list[bytes]:
    """Greedy longest match, written as its definition."""
    tokens, known, i = [], {s.encode() for s in segments}, 0
    while i < len(data):
        token = next(
            (data[i:end] for end in range(len(data), i, -1) if data[i:end] in known),
            data[i : i + 1],
        )
        tokens.append(token)
        i += len(token)
    return tokens


def random_segments(rng: random.Random, n: int) -> list[str]:
    """Distinct strings of one to six characters of an alphabet so small that they overlap."""
    found: dict[str, None] = {}
    while len(found) < n:
        found["".join(rng.choices("abé日 .|", k=rng.randint(1, 6)))] = None
    return list(found)


def test_encode_when_segments_overlap_then_the_longest_wins(tokenizer):
    ids = tokenizer.encode("there the")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"there", b" the"]


def test_encode_when_no_segment_fits_then_bytes_are_their_own_ids(tokenizer):
    assert tokenizer.encode("xyz") == [ord("x"), ord("y"), ord("z")]


def test_encode_when_a_segment_has_one_byte_then_it_wins_over_the_byte(tokenizer):
    assert tokenizer.encode("a") == [257 + SEGMENTS.index("a")]


@pytest.mark.parametrize("seed", range(20))
def test_encode_when_segments_are_random_then_equals_the_naive_greedy_match(seed):
    rng = random.Random(seed)
    segments = random_segments(rng, 60)
    tokenizer = HarrisTokenizer(segments)
    text = "".join(rng.choices("abé日 .|xyz", k=400)).encode()
    data = text[rng.randrange(3) :]  # may start inside a character
    tokens = [tokenizer.token_bytes(i) for i in tokenizer.encode(data)]
    assert tokens == naive_tokens(segments, data)


def test_encode_when_segments_hold_regex_characters_then_they_are_literal():
    tokenizer = HarrisTokenizer([".*", "[a-z]+", "(", "\\", "a|b", "^$", "\n\n"])
    text = "x.*[a-z]+(\\a|b^$\n\nq"
    assert len(tokenizer.encode(text)) == 9  # seven segments, x and q
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_encode_when_each_segment_begins_the_next_then_depth_is_no_limit():
    tokenizer = HarrisTokenizer(["a" * k for k in range(1, 501)])
    assert tokenizer.encode("a" * 700) == [257 + 499, 257 + 199]


@pytest.mark.parametrize("seed", range(20))
def test_decode_bytes_when_data_is_random_then_round_trips_exactly(tokenizer, seed):
    rng = random.Random(seed)
    data = rng.randbytes(500) + b" the \xe6\x97" + rng.randbytes(500)
    assert tokenizer.decode_bytes(tokenizer.encode(data)) == data


def test_encode_when_text_is_empty_then_no_tokens(tokenizer):
    assert tokenizer.encode("") == tokenizer.encode(b"") == []


def test_encode_when_there_are_no_segments_then_bytes_alone_work():
    tokenizer = HarrisTokenizer([])
    assert tokenizer.vocab_size == 257
    assert tokenizer.encode(b"\x00\n\xff") == [0, 10, 255]


def test_token_bytes_when_streamed_then_multibyte_characters_join(tokenizer):
    text = "é日本日ö€😀"
    ids = tokenizer.encode(text)
    pieces = [tokenizer.token_bytes(i) for i in ids]
    assert any(piece.decode(errors="ignore") == "" for piece in pieces)  # parts of characters
    assert b"".join(pieces).decode() == text


def test_decode_when_bytes_are_no_utf8_then_replacement_character(tokenizer):
    assert tokenizer.decode([0xFF, ord("a")]) == "\ufffda"


def test_token_bytes_when_bos_then_empty(tokenizer):
    assert tokenizer.bos_id == 256
    assert tokenizer.token_bytes(256) == b""
    assert tokenizer.decode([256, *tokenizer.encode("the")]) == "the"


@pytest.mark.parametrize(
    ("name", "byte_0", "bos", "segment_0"),
    [
        ("bytes,bos,segments", 0, 256, 257),
        ("bytes,segments,bos", 0, 265, 256),
        ("bos,bytes,segments", 1, 0, 257),
        ("bos,segments,bytes", 10, 0, 1),
        ("segments,bytes,bos", 9, 265, 0),
        ("segments,bos,bytes", 10, 9, 0),
    ],
)
def test_id_layout_when_named_then_groups_start_at(tokenizer, name, byte_0, bos, segment_0):
    laid_out = tokenizer.with_id_layout(name)
    assert laid_out.vocab_size == 9 + 256 + 1
    assert laid_out.encode(b"\x00the") == [byte_0, segment_0]
    assert laid_out.bos_id == bos
    assert laid_out.decode(laid_out.encode("日本 the ö")) == "日本 the ö"


def test_id_layouts_when_listed_then_all_six_orders_with_the_default_first():
    assert len(set(ID_LAYOUTS.values())) == 6
    assert next(iter(ID_LAYOUTS)) == DEFAULT_ID_LAYOUT


def test_save_when_loaded_again_then_the_same_ids(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.with_id_layout("segments,bos,bytes").save(path)
    loaded = load_tokenizer(path)
    assert isinstance(loaded, HarrisTokenizer)
    assert loaded.id_layout == "segments,bos,bytes"
    assert loaded.segments == tuple(SEGMENTS)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        (["the", "", "a"], "segment 1 is empty"),
        (["the", "a", "the"], "segment 2 ('the') repeats segment 0"),
        (["the", 7], "segment 1 is 7, not a string"),
        (["the", None], "segment 1 is None, not a string"),
        (["the", "\ud800"], "segment 1 ('\\ud800'): the text has a lone surrogate U+D800"),
    ],
)
def test_segments_when_impossible_then_entry_and_position_are_named(segments, message):
    with pytest.raises(TokenizerError, match=re.escape(message)):
        HarrisTokenizer(segments)


@pytest.mark.parametrize("name", ["bos,bytes", "", ["bytes"]])
def test_id_layout_when_unknown_then_all_are_listed(name):
    with pytest.raises(TokenizerError, match=r"no id layout .* 'segments,bos,bytes'"):
        HarrisTokenizer(SEGMENTS, id_layout=name)


@pytest.mark.parametrize("token_id", [-1, 266, 10**9])
def test_token_bytes_when_id_is_outside_then_id_and_range_are_named(tokenizer, token_id):
    with pytest.raises(InputError, match=rf"token id {token_id} is outside .* 0 to 265"):
        tokenizer.token_bytes(token_id)
    with pytest.raises(InputError, match=rf"token id {token_id} "):
        tokenizer.decode([0, token_id])


def test_encode_when_text_has_a_lone_surrogate_then_character_is_named(tokenizer):
    with pytest.raises(InputError, match=r"lone surrogate U\+DC80 at character 3"):
        tokenizer.encode("abc\udc80")

"""Tokenizer files: every form that is read, GPT-2's byte-level BPE, and what is refused."""

import codecs
import json
import os
import random
import re
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from andrea_model.errors import InputError, TokenizerError
from andrea_model.tokenizer import HarrisTokenizer, find_tokenizer, load_tokenizer
from andrea_model.tokenizer.huggingface import byte_symbols

TRAINING = ["the cat sat on the mat, and the dog — naïve 日本 😀 — sat there too. "] * 20
SAMPLES = ["the cat", " naïve — 日本語 😀", "\x00\x7f\n\t x", "", "ÿĀ", "the<|endoftext|>cat"]


def byte_level_bpe(vocab_size: int = 290, **trainer_options: object) -> Tokenizer:
    """A tokenizer built as GPT-2's is, only smaller."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {
        "special_tokens": ["<|endoftext|>"],
        "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(),
    } | trainer_options
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **options)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return byte_level_bpe()


@pytest.fixture
def bpe_file(bpe, tmp_path):
    path = tmp_path / "tokenizer.json"
    bpe.save(str(path))
    return path


def write(folder, content, name="tokenizer.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "content",
    [
        ["the", " cat"],
        {"type": "harris", "segments": ["the", " cat"], "id_layout": "bytes,bos,segments"},
        {"version": 2, "vocab": ["the", " cat"], "n": 2},
        {"special_tokens": [], "segments": ["the", " cat"]},
        {"offsets": [1, 2], "segments": ["the", " cat"]},
    ],
)
def test_load_when_json_holds_one_list_of_strings_then_these_are_the_segments(tmp_path, content):
    tokenizer = load_tokenizer(write(tmp_path, content))
    assert tokenizer.encode("the cat") == [257, 258]


def test_load_when_id_layout_is_given_then_it_overrides_the_file(tmp_path):
    path = write(tmp_path, {"segments": ["the"], "id_layout": "bytes,bos,segments"})
    assert load_tokenizer(path, id_layout="segments,bytes,bos").encode("the") == [0]


def test_load_when_file_has_a_byte_order_mark_then_it_is_ignored(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(codecs.BOM_UTF8 + b'["the"]')
    assert load_tokenizer(path).encode("the") == [257]


def test_load_when_hugging_face_then_ids_are_those_of_the_library(bpe, bpe_file):
    tokenizer = load_tokenizer(bpe_file)
    for text in SAMPLES:
        assert tokenizer.encode(text) == bpe.encode(text).ids
    assert tokenizer.vocab_size == bpe.get_vocab_size()
    assert tokenizer.bos_id == bpe.token_to_id("<|endoftext|>")
    assert tokenizer.token_bytes(tokenizer.bos_id) == b""


@pytest.mark.parametrize("seed", range(10))
def test_token_bytes_when_hugging_face_then_streamed_text_joins_exactly(bpe_file, seed):
    tokenizer = load_tokenizer(bpe_file)
    rng = random.Random(seed)
    points = [n for n in range(0x11000) if not 0xD800 <= n < 0xE000]
    text = "".join(map(chr, rng.choices(points, k=300)))
    decoder = codecs.getincrementaldecoder("utf-8")()
    streamed = "".join(decoder.decode(tokenizer.token_bytes(i)) for i in tokenizer.encode(text))
    assert streamed == text
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_byte_symbols_when_compared_with_the_library_then_the_same_alphabet():
    symbols = byte_symbols()
    assert set(symbols) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(symbols.values()) == list(range(256))
    assert (symbols["Ġ"], symbols["Ċ"], symbols["A"]) == (0x20, 0x0A, 0x41)


def test_load_when_file_asks_for_truncation_and_padding_then_ids_are_still_all(bpe, tmp_path):
    changed = Tokenizer.from_str(bpe.to_str())
    changed.enable_truncation(2)
    changed.enable_padding(length=50)
    changed.save(str(tmp_path / "tokenizer.json"))
    text = "the dog sat there"
    assert load_tokenizer(tmp_path).encode(text) == bpe.encode(text).ids


def test_load_when_vocab_and_merges_then_the_same_ids_as_tokenizer_json(bpe, tmp_path):
    bpe.model.save(str(tmp_path))
    tokenizer = load_tokenizer(tmp_path / "vocab.json")
    for text in SAMPLES:
        assert tokenizer.encode(text) == bpe.encode(text).ids


def test_save_when_it_came_from_tokenizer_json_then_the_bytes_are_the_same(bpe, tmp_path):
    changed = Tokenizer.from_str(bpe.to_str())
    changed.enable_truncation(2)
    for name, text in (("pretty", changed.to_str(pretty=True)), ("plain", bpe.to_str())):
        path = tmp_path / name
        path.write_bytes(codecs.BOM_UTF8 + text.encode())
        load_tokenizer(path).save(tmp_path / "saved")
        assert (tmp_path / "saved").read_bytes() == path.read_bytes()


def test_save_when_it_came_from_vocab_and_merges_then_one_file_gives_the_same_ids(bpe, tmp_path):
    bpe.model.save(str(tmp_path))
    two_files = load_tokenizer(tmp_path / "vocab.json")
    (tmp_path / "one").mkdir()
    two_files.save(tmp_path / "one" / "tokenizer.json")
    one_file = load_tokenizer(tmp_path / "one")
    assert (one_file.vocab_size, one_file.bos_id) == (two_files.vocab_size, two_files.bos_id)
    for text in SAMPLES:
        assert one_file.encode(text) == bpe.encode(text).ids
        assert one_file.decode(one_file.encode(text)) == two_files.decode(two_files.encode(text))
    library = Tokenizer.from_file(str(tmp_path / "one" / "tokenizer.json"))
    assert library.encode(SAMPLES[0]).ids == bpe.encode(SAMPLES[0]).ids


def test_save_when_repeated_in_other_processes_then_the_bytes_are_the_same(bpe, tmp_path):
    """The library keeps its vocabulary in hash maps, which every process orders differently."""
    bpe.model.save(str(tmp_path))
    code = (
        "import sys; from andrea_model.tokenizer import load_tokenizer; "
        "load_tokenizer(sys.argv[1]).save(sys.argv[2])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for name in ("a", "b"):
        command = [sys.executable, "-c", code, str(tmp_path / "vocab.json"), str(tmp_path / name)]
        subprocess.run(command, env=environment, check=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("content", [["the", " cat"], {"id_layout": "bos,bytes,segments", "x": []}])
def test_save_when_harris_segments_had_another_form_then_the_ids_are_the_same(tmp_path, content):
    if isinstance(content, dict):
        content["words"] = ["the", " cat"]
    first = load_tokenizer(write(tmp_path, content, "harris_segments.json"))
    first.save(tmp_path / "a.json")
    second = load_tokenizer(tmp_path / "a.json")
    second.save(tmp_path / "b.json")
    assert second.encode("the cat sat") == first.encode("the cat sat")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_load_when_the_path_is_text_then_it_is_read_all_the_same(tmp_path):
    path = write(tmp_path, ["the"])
    assert load_tokenizer(str(path)).encode("the") == load_tokenizer(str(tmp_path)).encode("the")
    assert find_tokenizer(str(tmp_path)) == path


def test_encode_when_a_byte_has_no_token_then_it_is_named_and_not_dropped(tmp_path):
    byte_level_bpe(60, initial_alphabet=[]).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    with pytest.raises(InputError, match=r"no token for byte 0x51"):
        tokenizer.encode("the Queen")


def test_encode_when_hugging_face_gets_bytes_that_are_no_utf8_then_refused(bpe_file):
    tokenizer = load_tokenizer(bpe_file)
    assert tokenizer.encode("naïve".encode()) == tokenizer.encode("naïve")
    with pytest.raises(InputError, match=r"not UTF-8.*0xff in position 1"):
        tokenizer.encode(b"a\xff")


@pytest.mark.parametrize("token_id", [-1, 290])
def test_token_bytes_when_hugging_face_id_is_outside_then_range_is_named(bpe_file, token_id):
    with pytest.raises(InputError, match=rf"token id {token_id} is outside .* 0 to 289"):
        load_tokenizer(bpe_file).token_bytes(token_id)


def test_token_bytes_when_the_vocabulary_has_a_gap_then_it_is_named(bpe, tmp_path):
    content = json.loads(bpe.to_str())
    vocabulary = content["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    vocabulary[last] += 5
    tokenizer = load_tokenizer(write(tmp_path, content))
    assert tokenizer.vocab_size == 295
    with pytest.raises(InputError, match="token id 290 is a gap"):
        tokenizer.token_bytes(290)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{'segments'", "not JSON: Expecting property name"),
        ("[" * 100_000, "not JSON: .*recursion"),
        ('"the"', "expected a list of strings or an object that holds one, not a JSON str"),
        ({}, "no list of strings; its keys are nothing"),
        ({"a": 1, "b": {"c": ["x"]}}, "no list of strings; its keys are 'a', 'b'"),
        ({"a": ["x"], "b": ["y"]}, "several lists 'a', 'b'"),
        (
            {f"w{i}": i for i in range(50_257)},
            "its keys are 'w0', 'w1', 'w2', 'w3', 'w4' and 50,252 more: one list",
        ),
        ({f"w{i}": ["x"] for i in range(7)}, "several lists 'w0', .* 'w4' and 2 more: one list"),
        (["the", "the"], r"segment 1 \('the'\) repeats segment 0"),
        ({"segments": ["the", 3]}, "segment 1 is 3, not a string"),
        ({"segments": ["the"], "id_layout": "bos"}, "no id layout 'bos'"),
        ({"model": {}, "added_tokens": []}, "the tokenizers library refuses it"),
    ],
)
def test_load_when_content_is_another_then_file_and_what_was_seen_are_named(
    tmp_path, content, message
):
    path = write(tmp_path, content)
    with pytest.raises(TokenizerError, match=f"^{re.escape(str(path))}: .*{message}"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "content",
    [
        {"k" * 10**6: 1},
        {"segments": ["the", list(range(10**5))]},
        ["x" * 10**6, "x" * 10**6],
        {"segments": ["the"], "id_layout": "bos" * 10**5},
    ],
    ids=["key", "segment", "repeated segment", "id layout"],
)
def test_load_when_what_is_wrong_is_huge_then_the_message_is_short(tmp_path, content):
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(write(tmp_path, content))
    assert len(str(caught.value)) < 600


def test_load_when_file_is_missing_then_it_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"none\.json: cannot be read: No such file"):
        load_tokenizer(tmp_path / "none.json")


def test_load_when_file_is_not_utf8_then_position_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'["th\xe9"]')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not UTF-8: .*0xe9 in position 4"):
        load_tokenizer(path)


def test_load_when_hugging_face_is_not_byte_level_then_its_decoder_is_named(tmp_path):
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="decoder is WordPiece, not ByteLevel"):
        load_tokenizer(tmp_path)


def test_load_when_hugging_face_gets_an_id_layout_then_refused(bpe_file):
    with pytest.raises(TokenizerError, match="id layout 'bytes,bos,segments' does not apply"):
        load_tokenizer(bpe_file, id_layout="bytes,bos,segments")


def test_find_when_several_files_then_tokenizer_json_comes_first(tmp_path):
    assert find_tokenizer(tmp_path) is None
    for name in ("vocab.json", "merges.txt", "harris_segments.json", "tokenizer.json"):
        write(tmp_path, [], name)
    for name in ("tokenizer.json", "harris_segments.json", "vocab.json"):
        assert find_tokenizer(tmp_path) == tmp_path / name
        (tmp_path / name).unlink()


def test_find_when_vocab_has_no_merges_then_none(tmp_path):
    write(tmp_path, {}, "vocab.json")
    assert find_tokenizer(tmp_path) is None
    with pytest.raises(TokenizerError, match=r"no tokenizer here; expected tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_find_when_checkpoint_is_a_file_then_its_folder_is_searched(tmp_path):
    path = write(tmp_path, ["the"], "harris_segments.json")
    assert find_tokenizer(tmp_path / "step_000001.bin") == path
    assert isinstance(load_tokenizer(path), HarrisTokenizer)

"""Windows of token ids from a text, and every text that cannot be used."""

import numpy as np
import pytest

from andrea_export.errors import InputError, TokenizerError
from andrea_export.report.texts import evaluation_data
from andrea_model import PRESETS, AndreaConfig
from andrea_model.demo import heldout_text
from andrea_model.tokenizer import HarrisTokenizer

TOKENIZER = HarrisTokenizer(["the ", "and "])  # ids: bytes, BOS 256, segments 257 and 258
CONFIG = AndreaConfig(TOKENIZER.vocab_size, 16, 8, 1, 2)


@pytest.fixture
def write(tmp_path):
    def make(content, name="text.txt"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return make


def test_windows_are_contiguous_text_and_each_token_is_predicted(write):
    text = bytes(range(65, 65 + 50))
    data = evaluation_data(CONFIG, TOKENIZER, text=write(text), windows=3, tokens=10)
    assert [len(window.ids) for window in data.windows] == [10] * 3
    for window in data.windows:
        np.testing.assert_array_equal(window.targets, window.ids + 1)
        assert window.ids.dtype == window.targets.dtype == np.int64
        np.testing.assert_array_equal(np.diff(window.ids), 1)


def test_windows_spread_from_the_first_to_the_last_token(write):
    text = bytes(range(65, 65 + 50))
    windows = evaluation_data(CONFIG, TOKENIZER, text=write(text), windows=3, tokens=10).windows
    assert windows[0].ids[0] == 65
    assert windows[-1].targets[-1] == 65 + 49


def test_segments_are_tokens(write):
    data = evaluation_data(CONFIG, TOKENIZER, text=write(b"the and the x"), windows=1)
    assert data.windows[0].ids.tolist() == [257, 258, 257]
    assert data.windows[0].targets.tolist() == [258, 257, ord("x")]


def test_the_context_length_bounds_a_window(write):
    data = evaluation_data(CONFIG, TOKENIZER, text=write(b"x" * 500), tokens=400)
    assert data.tokens_per_window == 16


def test_a_short_text_gives_fewer_windows_and_says_so(write):
    data = evaluation_data(CONFIG, TOKENIZER, text=write(b"x" * 40), windows=8)
    assert len(data.windows) == 2
    assert "has 40 tokens: 2 of 8 windows" in data.notes[0]


def test_a_text_shorter_than_the_only_window_is_said_too(write):
    data = evaluation_data(CONFIG, TOKENIZER, text=write(b"x" * 10), windows=1, tokens=16)
    assert data.tokens_per_window == 9
    assert "has 10 tokens: 1 of 1 windows, of 9 tokens each" in data.notes[0]


def test_two_tokens_are_enough(write):
    data = evaluation_data(CONFIG, TOKENIZER, text=write(b"xy"))
    assert (data.positions, data.windows[0].targets.tolist()) == (1, [ord("y")])


def test_the_bundled_text_is_the_default():
    data = evaluation_data(CONFIG, TOKENIZER)
    assert data.source == str(heldout_text())
    assert data.is_text


def test_the_same_arguments_give_the_same_windows():
    first, second = (evaluation_data(CONFIG, TOKENIZER, windows=4) for _ in range(2))
    for a, b in zip(first.windows, second.windows, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)


def test_without_a_tokenizer_ids_are_random_labelled_and_repeatable():
    data = evaluation_data(CONFIG, None, windows=2)
    again = evaluation_data(CONFIG, None, windows=2)
    assert data.source == "random token ids: no tokenizer"
    assert not data.is_text
    assert data.windows[0].targets is None
    assert 0 <= data.windows[0].ids.min() <= data.windows[0].ids.max() < CONFIG.vocab_size
    assert (data.windows[0].ids != data.windows[1].ids).any()
    np.testing.assert_array_equal(data.windows[1].ids, again.windows[1].ids)


def test_a_text_that_is_not_utf8_names_file_byte_and_offset(write):
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8: byte 0xE9 at offset 3"):
        evaluation_data(CONFIG, TOKENIZER, text=write(b"caf\xe9s", "latin.txt"))


def test_an_empty_text_is_refused(write):
    with pytest.raises(InputError, match=r"none\.txt is empty"):
        evaluation_data(CONFIG, TOKENIZER, text=write(b"", "none.txt"))


def test_a_text_of_one_token_is_refused(write):
    with pytest.raises(InputError, match=r"one\.txt has 1 token: at least 2"):
        evaluation_data(CONFIG, TOKENIZER, text=write(b"the ", "one.txt"))


def test_a_missing_text_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.txt cannot be read: No such file"):
        evaluation_data(CONFIG, TOKENIZER, text=tmp_path / "nowhere.txt")


def test_a_text_without_a_tokenizer_is_refused(write):
    with pytest.raises(InputError, match="has no tokenizer; give one with --tokenizer"):
        evaluation_data(CONFIG, None, text=write(b"hello"))


def test_a_tokenizer_of_another_vocabulary_is_refused():
    with pytest.raises(TokenizerError, match="has 259 ids, the model 100"):
        evaluation_data(CONFIG.replace(vocab_size=100), TOKENIZER)


@pytest.mark.parametrize(("preset", "windows"), [("andrea-nano", 16), ("andrea-120m", 4)])
def test_the_default_number_of_windows_follows_the_size_of_the_model(preset, windows):
    assert len(evaluation_data(PRESETS[preset], None).windows) == windows


@pytest.mark.parametrize("wrong", [{"windows": 0}, {"tokens": -1}])
def test_numbers_below_one_are_refused(wrong):
    with pytest.raises(InputError, match="at least 1, not"):
        evaluation_data(CONFIG, TOKENIZER, **wrong)

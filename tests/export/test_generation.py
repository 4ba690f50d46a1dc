"""Generation: the prompt is checked, text streams in whole characters, and ends for a reason."""

from dataclasses import replace

import numpy as np
import pytest

from andrea_export.errors import InputError, NonFiniteLogitsError, TokenizerError
from andrea_export.graph import GraphOptions, export_graph
from andrea_export.session import (
    GenerationOptions,
    Sampling,
    generate,
    generate_batch,
    open_session,
    read_prompts,
)
from andrea_export.session.full_sequence import FullSequenceSession
from andrea_export.session.text_stream import TextStream
from andrea_model import random_checkpoint
from andrea_model.tokenizer import HarrisTokenizer

WORDS = HarrisTokenizer(["the ", "and ", "é", "über"])  # 256 bytes, BOS 256, segments from 257


ONE_TOKEN = GenerationOptions(max_new_tokens=1)


class Scripted(FullSequenceSession):
    """Predicts a given list of tokens, whatever it is fed; remembers what it was fed."""

    label, dtype = "scripted", "fp32"

    def __init__(self, script, config):
        super().__init__()
        self.config, self._script, self.fed = config, list(script), []

    def _forward(self, input_ids):
        self.fed.append(input_ids[0].tolist())
        logits = np.zeros((*input_ids.shape, self.config.vocab_size), np.float32)
        logits[:, -1, self._script[len(self.fed) - 1]] = 1
        return logits


@pytest.fixture(scope="module")
def words_model():
    config = random_checkpoint("andrea-nano", 1).config
    config = config.replace(vocab_size=261, context_length=32, d_model=40, n_head=5, n_layer=2)
    return random_checkpoint("andrea-nano", 5, config=config)


def test_text_streams_in_whole_characters(words_model):
    # é as one byte each, then the segment, then half a character at the end
    script = [0xC3, 0xA9, 259, ord("!"), 0xF0]
    pieces = []
    result = generate(
        Scripted(script, words_model.config),
        WORDS,
        "the ",
        GenerationOptions(max_new_tokens=5),
        on_text=pieces.append,
    )
    assert pieces == ["é", "é", "!", "\ufffd"]
    assert result.text == "éé!\ufffd"
    assert result.ids == script
    assert result.ended_by == "length"


def test_bos_is_put_first_unless_told_not_to(words_model):
    for bos, expected in ((True, [256, 257]), (False, [257])):
        session = Scripted([0], words_model.config)
        generate(session, WORDS, "the ", GenerationOptions(max_new_tokens=1, bos=bos))
        assert session.fed == [expected]


def test_generation_ends_where_the_model_begins_a_new_document(words_model):
    result = generate(Scripted([65, 256, 66], words_model.config), WORDS, "the ")
    assert (result.text, result.ended_by) == ("A", "bos")


def test_generation_ends_when_the_context_is_full(words_model):
    session = Scripted([65] * 99, words_model.config)
    result = generate(session, WORDS, "x" * 20, GenerationOptions(max_new_tokens=99))
    # 21 tokens with BOS leave 11 places; the last token needs none.
    assert (len(result.ids), result.ended_by) == (12, "context")
    assert max(map(len, session.fed)) == 32


def test_prompt_of_exactly_the_context_still_gets_one_token(words_model):
    session = Scripted([65] * 9, words_model.config)
    result = generate(session, WORDS, "x" * 31)
    assert (len(result.ids), result.ended_by) == (1, "context")


def test_same_seed_gives_the_same_text_from_every_runtime(words_model, tmp_path):
    folder = export_graph(words_model, tmp_path / "out")
    sampling = Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=7, repetition_penalty=1.1)
    options = GenerationOptions(sampling=sampling, max_new_tokens=25)
    texts = []
    for source in (words_model, folder):
        with open_session(source) as session:
            texts.append(generate(session, WORDS, "and ", options).ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "the prompt is empty"),
        ("x" * 40, {}, "the prompt has 41 tokens, the model's context length is 32"),
        ("bad \udc80", {}, "lone surrogate"),
        ("x", {"max_new_tokens": 0}, "the number of new tokens must be at least 1, not 0"),
        ("x", {"stop": ("",)}, "a stop string is empty"),
        ("x", {"on_full": "fall"}, "on-full must be stop or slide, not 'fall'"),
    ],
)
def test_prompt_that_cannot_be_used_is_refused(words_model, prompt, options, message):
    with pytest.raises(InputError, match=message):
        generate(Scripted([0], words_model.config), WORDS, prompt, GenerationOptions(**options))


def test_ids_that_the_tokenizer_lacks_are_never_drawn(words_model):
    fewer = HarrisTokenizer(["the "])  # 258 ids, the model has 261
    result = generate(Scripted([260], words_model.config), fewer, "x", ONE_TOKEN)
    assert result.ids == [
        0
    ]  # the likeliest of those that it has: all are equal, the first is taken


def test_tokenizer_of_a_larger_vocabulary_is_refused(words_model):
    other = HarrisTokenizer([f"word{i}" for i in range(50)])
    with pytest.raises(TokenizerError, match="the tokenizer has 307 ids, the model 261"):
        generate(Scripted([0], words_model.config), other, "x")


@pytest.mark.parametrize("cache", [False, True], ids=["full", "cache"])
def test_batch_gives_each_prompt_what_it_gets_alone(words_model, tmp_path, cache):
    folder = export_graph(words_model, tmp_path / "out", GraphOptions(kv_cache=cache))
    prompts = ["the ", "and the über end", "é", "x y z"]
    sampled = GenerationOptions(max_new_tokens=9, sampling=Sampling(temperature=1.0, seed=4))
    for options in (GenerationOptions(max_new_tokens=9), sampled):
        with open_session(folder) as session:
            together = generate_batch(session, WORDS, prompts, options)
            for number, (prompt, result) in enumerate(zip(prompts, together, strict=True)):
                [alone] = generate_batch(session, WORDS, [prompt], options, first_row=number)
                assert alone.ids == result.ids


def test_rows_of_a_batch_end_on_their_own(words_model, tmp_path):
    folder = export_graph(words_model, tmp_path / "out", GraphOptions(kv_cache=True))
    with open_session(folder) as session:
        options = GenerationOptions(max_new_tokens=20)
        results = generate_batch(session, WORDS, ["x" * 29, "y"], options)
    # 30 tokens with BOS leave two places in a context of 32, and the last token needs none.
    assert [(len(r.ids), r.ended_by) for r in results] == [(3, "context"), (20, "length")]


def test_full_context_slides_to_its_newer_half_and_goes_on(words_model):
    session = Scripted(list(range(60, 99)), words_model.config)
    options = GenerationOptions(max_new_tokens=6, on_full="slide")
    result = generate(session, WORDS, "x" * 30, options)
    assert (result.ids, result.ended_by) == ([60, 61, 62, 63, 64, 65], "length")
    # 31 tokens, one more, and then the newest 16, of which the last two are new.
    assert [len(fed) for fed in session.fed] == [31, 32, 16, 17, 18, 19]
    assert session.fed[2] == [ord("x")] * 14 + [60, 61]


class SmallCache(Scripted):
    """Holds fewer tokens than the context, as an engine with a small cache does."""

    limit = 16


def test_a_cache_smaller_than_the_context_ends_the_text_as_the_context_would(words_model):
    session = SmallCache([65] * 99, words_model.config)
    result = generate(session, WORDS, "x" * 9, GenerationOptions(max_new_tokens=99))
    # 10 tokens with BOS leave 6 places; the last token needs none.
    assert (len(result.ids), result.ended_by) == (7, "context")
    assert max(map(len, session.fed)) == 16


def test_a_cache_smaller_than_the_context_slides(words_model):
    session = SmallCache([65] * 99, words_model.config)
    options = GenerationOptions(max_new_tokens=9, on_full="slide")
    assert len(generate(session, WORDS, "x" * 14, options).ids) == 9
    # 15 tokens, one more, and then the newest 8.
    assert [len(fed) for fed in session.fed] == [15, 16, 8, 9, 10, 11, 12, 13, 14]


def test_prompt_beyond_a_cache_smaller_than_the_context_is_refused(words_model):
    with pytest.raises(InputError, match="the prompt has 17 tokens, scripted holds 16"):
        generate(SmallCache([0], words_model.config), WORDS, "x" * 16)


def test_no_prompts_give_no_texts(words_model):
    assert generate_batch(Scripted([], words_model.config), WORDS, []) == []


def test_one_text_in_the_place_of_stop_strings_is_refused():
    with pytest.raises(InputError, match=r"as in stop=\('END',\), not one text"):
        GenerationOptions(stop="END")


def test_stop_string_ends_the_text_before_it_even_across_tokens(words_model):
    script = [ord(letter) for letter in "abENcENDd"]
    pieces = []
    options = GenerationOptions(stop=("END", "never"))
    result = generate(
        Scripted(script, words_model.config), WORDS, "x", options, on_text=pieces.append
    )
    assert (result.text, result.ended_by) == ("abENc", "stop")
    assert "".join(pieces) == "abENc"
    assert pieces == ["a", "b", "ENc"]  # EN was held back until it could no longer become END


def test_stop_string_that_never_comes_holds_nothing_back_at_the_end(words_model):
    script = [ord(letter) for letter in "abEN"]
    options = GenerationOptions(stop=("END",), max_new_tokens=4)
    result = generate(Scripted(script, words_model.config), WORDS, "x", options)
    assert (result.text, result.ended_by) == ("abEN", "length")


def test_first_of_several_stop_strings_wins():
    stream = TextStream(WORDS, ("the end", "end", "zz"))
    shown = "".join(stream.push(byte) for byte in b"at the end")
    assert shown + stream.finish() == "at "
    assert stream.stopped_by == "the end"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "prompts.txt is empty"),
        (b"one\n\nthree\n", "line 2 is empty"),
        (b"one\n  \n", "line 2 is empty"),
        (b"one\ncaf\xe9\n", "not UTF-8: byte 0xE9 at offset 7"),
    ],
)
def test_file_of_prompts_that_cannot_be_used_is_refused(tmp_path, data, message):
    path = tmp_path / "prompts.txt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_prompts(path)


def test_file_of_prompts_is_read_line_by_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffone\r\nzw\u2028ölf\nthr\x0cee".encode())
    assert read_prompts(path) == ["one", "zw\u2028ölf", "thr\x0cee"]


def test_failed_logits_of_a_runtime_that_shows_no_modules_say_what_to_run(words_model):
    class Failed(Scripted):
        def _forward(self, input_ids):
            return super()._forward(input_ids) + np.nan

    with pytest.raises(NonFiniteLogitsError, match=r"scripted does not show which module .* torch"):
        generate(Failed([0], words_model.config), WORDS, "the ")


@pytest.mark.parametrize("kind", ["torch", "full", "cache"])
def test_failed_logits_are_traced_to_the_first_module_that_fails(words_model, tmp_path, kind):
    tensors = {name: np.array(value) for name, value in words_model.tensors.items()}
    tensors["blocks.1.mlp.fc2.weight"][3, 4] = np.inf
    broken = replace(words_model, tensors=tensors)
    options = GraphOptions(kv_cache=kind == "cache")
    source = broken if kind == "torch" else export_graph(broken, tmp_path / "out", options)
    message = r"261 of 261 logits are NaN or Inf after 2 tokens.*output of blocks\.1\.mlp\.fc2"
    with open_session(source) as session, pytest.raises(NonFiniteLogitsError, match=message):
        generate(session, WORDS, "the ")

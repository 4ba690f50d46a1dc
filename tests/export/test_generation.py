"""Generation: the prompt is checked, text streams in whole characters, and ends for a reason."""

import numpy as np
import pytest

from andrea_export.errors import InputError, TokenizerError
from andrea_export.graph import export_graph
from andrea_export.session import Sampling, generate, open_session
from andrea_export.session.full_sequence import FullSequenceSession
from andrea_model import random_checkpoint
from andrea_model.tokenizer import HarrisTokenizer

WORDS = HarrisTokenizer(["the ", "and ", "é", "über"])  # 256 bytes, BOS 256, segments from 257


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
        max_new_tokens=5,
        on_text=pieces.append,
    )
    assert pieces == ["é", "é", "!", "\ufffd"]
    assert result.text == "éé!\ufffd"
    assert result.ids == script
    assert result.ended_by == "length"


def test_bos_is_put_first_unless_told_not_to(words_model):
    for bos, expected in ((True, [256, 257]), (False, [257])):
        session = Scripted([0], words_model.config)
        generate(session, WORDS, "the ", max_new_tokens=1, bos=bos)
        assert session.fed == [expected]


def test_generation_ends_where_the_model_begins_a_new_document(words_model):
    result = generate(Scripted([65, 256, 66], words_model.config), WORDS, "the ")
    assert (result.text, result.ended_by) == ("A", "bos")


def test_generation_ends_when_the_context_is_full(words_model):
    session = Scripted([65] * 99, words_model.config)
    result = generate(session, WORDS, "x" * 20, max_new_tokens=99)
    # 21 tokens with BOS leave 11 places; the last token needs none.
    assert (len(result.ids), result.ended_by) == (12, "context")
    assert max(map(len, session.fed)) == 32


def test_prompt_of_exactly_the_context_still_gets_one_token(words_model):
    session = Scripted([65] * 9, words_model.config)
    result = generate(session, WORDS, "x" * 31)
    assert (len(result.ids), result.ended_by) == (1, "context")


def test_same_seed_gives_the_same_text_from_every_runtime(words_model, tmp_path):
    folder = export_graph(words_model, tmp_path / "out")
    sampling = Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=7)
    texts = []
    for source in (words_model, folder):
        with open_session(source) as session:
            texts.append(generate(session, WORDS, "and ", sampling=sampling).ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "the prompt is empty"),
        ("x" * 40, {}, "the prompt has 41 tokens, the model's context length is 32"),
        ("bad \udc80", {}, "lone surrogate"),
        ("x", {"max_new_tokens": 0}, "the number of new tokens must be at least 1, not 0"),
    ],
)
def test_prompt_that_cannot_be_used_is_refused(words_model, prompt, options, message):
    with pytest.raises(InputError, match=message):
        generate(Scripted([0], words_model.config), WORDS, prompt, **options)


def test_tokenizer_of_a_larger_vocabulary_is_refused(words_model):
    other = HarrisTokenizer([f"word{i}" for i in range(50)])
    with pytest.raises(TokenizerError, match="the tokenizer has 307 ids, the model 261"):
        generate(Scripted([0], words_model.config), other, "x")

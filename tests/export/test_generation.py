"""Sessions and generation: what goes in is checked, what comes out streams whole characters."""

import numpy as np
import numpy_model
import pytest

from andrea_export.errors import BackendError, InputError, TokenizerError
from andrea_export.graph import GraphOptions, export_graph, open_graph
from andrea_export.session import Sampling, Session, generate, open_session
from andrea_model import random_checkpoint
from andrea_model.tokenizer import HarrisTokenizer

WORDS = HarrisTokenizer(["the ", "and ", "é", "über"])  # 256 bytes, BOS 256, segments from 257


class Scripted(Session):
    """Predicts a given list of tokens, whatever it is fed; remembers what it was fed."""

    label, dtype = "scripted", "fp32"

    def __init__(self, script, config):
        super().__init__()
        self.config, self._script, self.fed = config, list(script), []

    def _run(self, input_ids):
        self.fed.append(input_ids[0].tolist())
        logits = np.zeros((*input_ids.shape, self.config.vocab_size), np.float32)
        logits[:, -1, self._script[len(self.fed) - 1]] = 1
        return logits


@pytest.fixture(scope="module")
def words_model():
    config = random_checkpoint("andrea-nano", 1).config
    config = config.replace(vocab_size=261, context_length=32, d_model=40, n_head=5, n_layer=2)
    return random_checkpoint("andrea-nano", 5, config=config)


@pytest.fixture(scope="module", params=["torch", "onnx"])
def session(request, words_model, tmp_path_factory):
    if request.param == "torch":
        source = words_model
    else:
        source = export_graph(words_model, tmp_path_factory.mktemp("words") / "out")
    with open_session(source, request.param) as opened:
        yield opened


def test_forward_gives_the_models_logits(session, words_model, ids):
    expected = numpy_model.logits(words_model.config, words_model.tensors, ids)
    logits = session.forward(ids)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * expected.std())


def test_prefill_and_steps_give_the_last_tokens_logits(session, words_model, ids):
    expected = numpy_model.logits(words_model.config, words_model.tensors, ids)
    session.prefill(ids[:, :11])
    for t in range(11, 14):
        np.testing.assert_allclose(session.logits, expected[:, t - 1], rtol=0, atol=1e-4)
        session.step(ids[:, t])


def test_step_before_prefill_is_refused(words_model):
    with open_session(words_model) as fresh:
        with pytest.raises(InputError, match="call prefill first"):
            fresh.step(np.array([1]))
        with pytest.raises(InputError, match="no logits yet"):
            _ = fresh.logits


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[3, 261]], "token id 261 is outside the vocabulary: ids go from 0 to 260"),
        ([[-1, 3]], "token id -1 is outside the vocabulary"),
        ([list(range(33))], "the sequence has 33 tokens, the model's context length is 32"),
        ([[]], "input_ids must be whole numbers|input_ids are empty"),
        ([1, 2], r"input_ids must be whole numbers \[batch, sequence\], not int64 \(2,\)"),
        ([[0.5]], "must be whole numbers"),
    ],
)
def test_ids_that_the_model_cannot_take_are_refused(session, bad, message):
    with pytest.raises(InputError, match=message):
        session.forward(np.array(bad))


def test_fp64_torch_session_keeps_its_precision(words_model, ids):
    expected = numpy_model.logits(words_model.config, words_model.tensors, ids)
    with open_session(words_model, dtype="fp64") as session:
        np.testing.assert_allclose(session.forward(ids), expected, rtol=0, atol=1e-12)


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


def test_backends_refuse_what_they_cannot_run(words_model, tmp_path):
    folder = export_graph(words_model, tmp_path / "fp32")
    half = export_graph(words_model, tmp_path / "bf16", GraphOptions(dtype="bf16"))
    with pytest.raises(BackendError, match="backend 'tpu' is not one of auto, torch, onnx"):
        open_session(folder, "tpu")
    with pytest.raises(BackendError, match="the torch backend runs checkpoints"):
        open_session(folder, "torch")
    with pytest.raises(
        BackendError, match="the onnx backend runs exported folders"
    ):
        open_session(words_model, "onnx")
    with pytest.raises(BackendError, match="dtype 'int8' is not one of fp64, fp32, fp16, bf16"):
        open_session(words_model, dtype="int8")
    with pytest.raises(BackendError, match="CPU provider has no bf16 kernels"):
        open_session(half)


def test_damaged_graph_is_refused_in_the_runtimes_own_words(words_model, tmp_path):
    folder = export_graph(words_model, tmp_path / "out")
    folder.model_path.write_bytes(folder.model_path.read_bytes()[:1000])
    with pytest.raises(BackendError, match="ONNX Runtime cannot load it: "):
        open_session(open_graph(folder.path))

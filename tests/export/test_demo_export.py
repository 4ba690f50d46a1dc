"""The demo checkpoint, exported: the same model by another's arithmetic, and the same text."""

import numpy as np
import numpy_model
import pytest

from andrea_export.graph import GraphOptions, export_graph
from andrea_export.session import GenerationOptions, Sampling, generate_batch, open_session
from andrea_model import open_checkpoint
from andrea_model.demo import heldout_text

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 20, 100, 100


@pytest.fixture(scope="module")
def demo():
    return open_checkpoint("andrea-nano")


@pytest.fixture(scope="module")
def prompts(demo):
    """Pieces of the held-out play, spread over it, of 100 tokens each."""
    tokenizer = demo.open_tokenizer()
    ids = tokenizer.encode(heldout_text().read_text("utf-8"))
    starts = np.linspace(0, len(ids) - PROMPT_TOKENS, PROMPTS).astype(int)
    return [tokenizer.decode(ids[start : start + PROMPT_TOKENS]) for start in starts]


@pytest.fixture(scope="module")
def options():
    return GenerationOptions(max_new_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def torch_texts(demo, prompts, options):
    with open_session(demo) as session:
        return [g.ids for g in generate_batch(session, session.tokenizer, prompts, options)]


@pytest.mark.parametrize("ops", ["plugin", "standard"])
def test_exported_demo_agrees_with_the_formulas_to_a_ten_thousandth(demo, tmp_path, ops):
    ids = np.random.default_rng(0).integers(0, demo.config.vocab_size, (2, 256))
    expected = numpy_model.logits(demo.config, demo.tensors, ids)
    with open_session(export_graph(demo, tmp_path / "out", GraphOptions(ops=ops))) as session:
        logits = session.forward(ids)
    assert np.abs(logits - expected).max() < 1e-4 * np.sqrt((expected**2).mean())


@pytest.mark.parametrize("kv_cache", [False, True], ids=["full", "cache"])
def test_greedy_texts_of_twenty_heldout_prompts_are_the_same_from_torch_and_onnx(
    demo, prompts, options, torch_texts, tmp_path, kv_cache
):
    folder = export_graph(demo, tmp_path / "out", GraphOptions(kv_cache=kv_cache))
    with open_session(folder) as session:
        found = [g.ids for g in generate_batch(session, session.tokenizer, prompts, options)]
    assert len(found) == PROMPTS
    assert min(map(len, found)) == NEW_TOKENS
    assert found == torch_texts


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.5, seed=3),
        Sampling(temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.2, seed=5),
    ],
    ids=["all tokens", "few"],
)
def test_texts_of_twenty_heldout_prompts_drawn_by_a_seed_are_the_same_from_torch_and_onnx(
    demo, prompts, sampling, tmp_path
):
    folder = export_graph(demo, tmp_path / "out", GraphOptions(kv_cache=True))
    options = GenerationOptions(max_new_tokens=NEW_TOKENS, sampling=sampling)
    found = []
    for source in (demo, folder):
        with open_session(source) as session:
            texts = generate_batch(session, session.tokenizer, prompts, options)
            found.append([text.ids for text in texts])
    assert found[0] == found[1]
    assert len({tuple(ids) for ids in found[0]}) == PROMPTS

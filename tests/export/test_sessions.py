"""Every session gives the model's logits, in one call or step by step, whatever runs it."""

import json
import re

import numpy as np
import numpy_model
import pytest

from andrea_export.errors import BackendError, GraphError, InputError
from andrea_export.graph import GraphOptions, export_graph, open_graph
from andrea_export.session import open_session
from andrea_export.session.cached import bucket_for
from andrea_model import random_checkpoint

VOCAB, CONTEXT = 61, 300
KINDS = {
    "torch": None,
    "onnx": GraphOptions(),
    "onnx-cache": GraphOptions(kv_cache=True),
    "onnx-cache-as-exported": GraphOptions(kv_cache=True),
    "onnx-cache-last": GraphOptions(kv_cache=True, logits="last", ops="standard"),
    "onnx-cache-fp16": GraphOptions(kv_cache=True, dtype="fp16"),
}


@pytest.fixture(scope="module")
def model():
    config = random_checkpoint("andrea-nano", 1).config
    sizes = {"vocab_size": VOCAB, "context_length": CONTEXT, "d_model": 24, "n_head": 3}
    return random_checkpoint("andrea-nano", 5, config=config.replace(n_layer=2, **sizes))


@pytest.fixture(scope="module")
def text():
    return np.random.default_rng(2).integers(0, VOCAB, (3, CONTEXT))


@pytest.fixture(scope="module")
def expected(model, text):
    return numpy_model.logits(model.config, model.tensors, text)


@pytest.fixture(scope="module", params=KINDS)
def session(request, model, tmp_path_factory):
    options = KINDS[request.param]
    folder = tmp_path_factory.mktemp("sessions") / request.param
    source = model if options is None else export_graph(model, folder, options)
    with open_session(source, as_exported=request.param.endswith("as-exported")) as opened:
        yield opened


@pytest.fixture
def close_to(session):
    """Compares within what the session's dtype allows."""
    tolerance = 1e-2 if session.dtype == "fp16" else 1e-5

    def check(logits, reference):
        assert logits.dtype == np.float32
        scale = np.sqrt((reference**2).mean())
        np.testing.assert_allclose(logits, reference, rtol=0, atol=tolerance * scale)

    return check


def test_forward_takes_any_view_and_changes_no_cache(session, text, expected, close_to):
    session.prefill(text[:, :7])
    session.forward(text[:, 20::-1])
    session.step(text[:, 7])
    close_to(session.logits, expected[:, 7])


def test_forward_gives_all_logits(session, text, expected, close_to):
    close_to(session.forward(text[:, :40]), expected[:, :40])


def test_prefill_and_steps_give_the_last_tokens_logits(session, text, expected, close_to):
    session.prefill(text[:, :7])
    for t in range(7, 12):
        close_to(session.logits, expected[:, t - 1])
        session.step(text[:, t])
    close_to(session.logits, expected[:, 11])


def test_steps_go_on_across_a_growing_cache_to_the_end_of_the_context(
    session, text, expected, close_to
):
    for start in (125, 253, 297):
        session.prefill(text[:, :start])
        for t in range(start, start + 3):
            session.step(text[:, t])
            close_to(session.logits, expected[:, t])
    with pytest.raises(InputError, match="300"):
        session.step(text[:, 0])


def test_rows_of_different_lengths_are_independent(session, text, expected, close_to):
    lengths = np.array([9, 4, 1])
    prompt = np.full((3, 9), VOCAB - 1)
    for row, length in enumerate(lengths):
        prompt[row, :length] = text[row, :length]
    session.prefill(prompt, lengths)
    rows = np.arange(3)
    close_to(session.logits, expected[rows, lengths - 1])
    for step in range(3):
        session.step(text[rows, lengths + step])
        close_to(session.logits, expected[rows, lengths + step])


def test_rows_that_have_ended_stay_while_others_grow(session, text, expected, close_to):
    session.prefill(text[:2, :5])
    for t in range(5, 9):
        session.step(np.array([text[0, t], 0]), active=np.array([True, False]))
        close_to(session.logits[:1], expected[:1, t])
    session.step(text[:2, 5], active=np.array([False, True]))
    close_to(session.logits[1:], expected[1:2, 5])


def test_row_that_rests_at_the_end_of_a_bucket_goes_on_unharmed(session, text, expected, close_to):
    session.prefill(text[:2, :128], np.array([128, 10]))
    session.step(np.array([7, text[1, 10]]), active=np.array([False, True]))
    close_to(session.logits[1:], expected[1:2, 10])
    session.step(np.array([text[0, 128], 7]), active=np.array([True, False]))
    close_to(session.logits[:1], expected[:1, 128])
    session.step(np.array([text[0, 129], text[1, 11]]))
    close_to(session.logits, expected[[0, 1], [129, 11]])


def test_row_that_ended_at_a_full_context_harms_no_other(session, text, expected, close_to):
    lengths = np.array([300, 10])
    session.prefill(text[:2], lengths)
    for t in range(10, 13):
        session.step(np.array([0, text[1, t]]), active=np.array([False, True]))
        close_to(session.logits[1:], expected[1:2, t])


def test_prefill_starts_over(session, text, expected, close_to):
    session.prefill(text[:, :30])
    session.step(text[:, 0])
    session.prefill(text[:1, :6])
    close_to(session.logits, expected[:1, 5])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[3, VOCAB]], "token id 61 is outside the vocabulary: ids go from 0 to 60"),
        ([[-1, 3]], "token id -1 is outside the vocabulary"),
        ([[0] * 301], "the sequence has 301 tokens, the model's context length is 300"),
        (np.zeros((1, 0), int), r"input_ids are empty: their shape is \[1, 0\]"),
        ([1, 2], r"input_ids must be whole numbers \[batch, sequence\], not int64 \(2,\)"),
        ([[0.5]], "must be whole numbers"),
    ],
)
def test_ids_that_the_model_cannot_take_are_refused(session, bad, message):
    for call in (session.forward, session.prefill):
        with pytest.raises(InputError, match=message):
            call(np.array(bad))


def test_rows_of_different_lengths_without_pads_are_refused(session):
    with pytest.raises(InputError, match="rows of one length: pad the shorter ones"):
        session.prefill([[1, 2], [3]])


@pytest.mark.parametrize("lengths", [[0, 2], [3, 2], [2], 2, [1.5, 2], [np.nan, 2], [True, True]])
def test_lengths_that_do_not_fit_are_refused(session, text, lengths):
    with pytest.raises(InputError, match=r"lengths must be 2 whole numbers from 1 to 2, not "):
        session.prefill(text[:2, :2], np.array(lengths))


@pytest.mark.parametrize(
    ("ids", "shape"), [([1, 2, 3], "(3,)"), ([[1], [2]], "(2, 1)"), (5, "()"), ([], "(0,)")]
)
def test_step_of_another_batch_is_refused(session, text, ids, shape):
    session.prefill(text[:2, :4])
    with pytest.raises(InputError, match=re.escape(f"each of 2 rows, not int64 {shape}")):
        session.step(np.array(ids, int))


@pytest.mark.parametrize(
    ("active", "seen"),
    [([True], "bool (1,)"), ([[True], [False]], "bool (2, 1)"), ([0, 1], "int64 (2,)")],
)
def test_flags_that_are_not_one_for_each_row_are_refused(session, text, active, seen):
    session.prefill(text[:2, :4])
    message = re.escape(f"active must be true or false for each of 2 rows, not {seen}")
    with pytest.raises(InputError, match=message):
        session.step(text[:2, 4], np.array(active))


@pytest.mark.parametrize("kind", KINDS)
def test_closed_session_is_refused_and_may_be_closed_again(model, text, tmp_path, kind):
    options = KINDS[kind]
    source = model if options is None else export_graph(model, tmp_path / "out", options)
    session = open_session(source)
    session.prefill(text[:, :4])
    session.close()
    for call in (session.prefill, session.forward):
        with pytest.raises(InputError, match="the session is closed: "):
            call(text[:, :4])
    with pytest.raises(InputError, match="the session is closed: "):
        session.step(text[:, 4])
    session.close()


def test_step_before_prefill_is_refused(model):
    with open_session(model) as fresh:
        with pytest.raises(InputError, match="call prefill first"):
            fresh.step(np.array([1]))
        with pytest.raises(InputError, match="no logits yet"):
            _ = fresh.logits


def test_fp64_torch_session_keeps_its_precision(model, text, expected):
    with open_session(model, dtype="fp64") as session:
        np.testing.assert_allclose(session.forward(text), expected, rtol=0, atol=1e-12)
        session.prefill(text[:, :20])
        session.step(text[:, 20])
        np.testing.assert_allclose(session.logits, expected[:, 20], rtol=0, atol=1e-12)


def test_cache_is_written_in_place(model, text, tmp_path):
    with open_session(export_graph(model, tmp_path / "out", KINDS["onnx-cache"])) as session:
        session.prefill(text[:, :5])
        before = [cache.numpy().ctypes.data for cache in session._caches]
        session.step(text[:, 5])
        caches = [cache.numpy() for cache in session._caches]
        assert [cache.ctypes.data for cache in caches] == before
        for cache in caches:
            assert (np.abs(cache[:, :, :6]).sum(-1) > 0).all()
            assert (cache[:, :, 6:] == 0).all()


@pytest.mark.parametrize(
    ("slots", "capacity"), [(1, 128), (128, 128), (129, 256), (257, 512), (513, 600), (600, 600)]
)
def test_capacity_grows_in_doubling_buckets_up_to_the_limit(slots, capacity):
    assert bucket_for(slots, 600) == capacity


def test_more_slots_than_the_limit_are_refused():
    with pytest.raises(InputError, match="601 tokens do not fit: the capacity ends at 600"):
        bucket_for(601, 600)


def test_backends_refuse_what_they_cannot_run(model, tmp_path):
    folder = export_graph(model, tmp_path / "fp32")
    half = export_graph(model, tmp_path / "bf16", GraphOptions(dtype="bf16"))
    with pytest.raises(BackendError, match="backend 'tpu' is not one of auto, torch, onnx"):
        open_session(folder, "tpu")
    with pytest.raises(BackendError, match="the torch backend runs checkpoints"):
        open_session(folder, "torch")
    with pytest.raises(BackendError, match="the onnx backend runs exported folders"):
        open_session(model, "onnx")
    with pytest.raises(BackendError, match="dtype 'int8' is not one of fp64, fp32, fp16, bf16"):
        open_session(model, dtype="int8")
    with pytest.raises(BackendError, match="provider 'rocm' is not one of cpu, cuda, tensorrt"):
        open_session(folder, provider="rocm")
    with pytest.raises(BackendError, match="CPU provider has no bf16 kernels"):
        open_session(half)


def test_damaged_graph_is_refused(model, tmp_path):
    folder = export_graph(model, tmp_path / "out")
    folder.model_path.write_bytes(folder.model_path.read_bytes()[:1000])
    with pytest.raises(GraphError, match=r"model\.onnx is no ONNX model: "):
        open_graph(folder.path)


def test_truncated_weights_are_refused_in_the_runtimes_own_words(model, tmp_path):
    folder = export_graph(model, tmp_path / "out")
    folder.data_path.write_bytes(folder.data_path.read_bytes()[:1000])
    with pytest.raises(BackendError, match=r"cannot load it: .*wte\.weight .* file_length: 1000"):
        open_session(open_graph(folder.path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "fp16"}, "export.json says dtype fp16, the graph has fp32"),
        ({"kv_cache": True, "opset": 24}, "export.json says opset 24, the graph has 20"),
        ({"opset": 21}, "export.json says opset 21, the graph has 20"),
    ],
)
def test_record_that_does_not_tell_of_the_graph_is_refused(model, tmp_path, changes, message):
    folder = export_graph(model, tmp_path / "out")
    record = folder.record | {"options": folder.record["options"] | changes}
    (folder.path / "export.json").write_text(json.dumps(record))
    with pytest.raises(GraphError, match=message):
        open_graph(folder.path)

"""The cached graph gives the uncached model's logits, however a text is cut into calls."""

from collections import Counter

import numpy as np
import numpy_model
import onnx
import onnxruntime as ort
import pytest

from andrea_export.errors import GraphError
from andrea_export.graph import GraphOptions

CAPACITY = 24


class Cached:
    """Drives the graph by hand: caches are plain arrays, and may start as any garbage."""

    def __init__(self, folder, rows, capacity=CAPACITY, garbage=None):
        self.config, self.last = folder.config, folder.options.logits == "last"
        self.session = ort.InferenceSession(folder.model_path, providers=["CPUExecutionProvider"])
        shape = (rows, self.config.n_head, capacity, self.config.head_dim)
        names = [i.name for i in self.session.get_inputs() if i.name.startswith("past_key")]
        random = np.random.default_rng(99)
        self.caches = {
            name: np.zeros(shape, np.float32)
            if garbage is None
            else (random.standard_normal(shape) * garbage).astype(np.float32)
            for name in names
        }
        self.length = np.zeros(rows, np.int64)

    def __call__(self, ids, new_length=None):
        """Feed ids [B, T], of which row b's first new_length[b] are real."""
        ids = np.asarray(ids, np.int64)
        new = np.full(len(ids), ids.shape[1]) if new_length is None else np.asarray(new_length)
        feed = {"input_ids": ids, "past_length": self.length, **self.caches}
        if self.last:
            feed["new_length"] = new
        logits, *present = self.session.run(None, feed)
        self.caches = dict(zip(self.caches, present, strict=True))
        self.length = self.length + new
        return logits


@pytest.fixture(params=["plugin", "standard"])
def cached(tiny, export, request):
    return export(tiny.config, "cached", ops=request.param, kv_cache=True)


@pytest.fixture
def text():
    return np.random.default_rng(4).integers(0, 97, (3, 24))


def check(logits, expected):
    """1e-5 of the logits' RMS, the bound for a cached fp32 graph."""
    assert np.abs(logits - expected).max() < 1e-5 * np.sqrt((expected**2).mean())


def test_inputs_and_outputs_are_those_of_the_contract(tiny, export):
    _, folder = export(tiny.config, kv_cache=True, logits="last", dtype="fp16")
    onnx.checker.check_model(folder.model_path, full_check=True)
    graph = onnx.load(folder.model_path, load_external_data=False).graph

    def described(values):
        return {
            v.name: (
                onnx.TensorProto.DataType.Name(v.type.tensor_type.elem_type),
                [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim],
            )
            for v in values
        }

    cache = ("FLOAT16", ["batch", 5, "capacity", 8])
    parts = [f"{i}.{part}" for i in range(3) for part in ("key", "value")]
    assert described(graph.input) == {
        "input_ids": ("INT64", ["batch", "sequence"]),
        "past_length": ("INT64", ["batch"]),
        "new_length": ("INT64", ["batch"]),
        **{f"past_key_values.{part}": cache for part in parts},
    }
    assert described(graph.output) == {
        "logits": ("FLOAT", ["batch", 1, 97]),
        **{f"present.{part}": cache for part in parts},
    }


def test_cache_is_scattered_and_the_mask_is_explicit(cached):
    _, folder = cached
    model = onnx.load(folder.model_path, load_external_data=False)
    counts = Counter(node.op_type for node in model.graph.node)
    assert (counts["TensorScatter"], counts["Attention"]) == (6, 3)
    for node in model.graph.node:
        if node.op_type == "Attention":
            assert list(node.input)[3:] == ["mask"]  # and no nonpad_kv_seqlen, which TensorRT drops
            assert len(node.output) == 1
    assert {e.domain: e.version for e in model.opset_import}[""] == 24


@pytest.mark.parametrize("cuts", [[], [12], [1], [23], [5, 6, 7, 20], list(range(1, 24))], ids=str)
def test_any_split_of_a_text_gives_the_same_logits(cached, text, cuts):
    checkpoint, folder = cached
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, text)
    run = Cached(folder, rows=3)
    pieces = [run(piece) for piece in np.split(text, cuts, axis=1)]
    check(np.concatenate(pieces, axis=1), expected)


def test_rows_of_different_lengths_ignore_their_pads(cached, text):
    checkpoint, folder = cached
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, text)
    lengths = np.array([9, 4, 1])
    prompt = np.random.default_rng(8).integers(0, 97, (3, 9))  # pads are garbage tokens
    for row, length in enumerate(lengths):
        prompt[row, :length] = text[row, :length]
    run = Cached(folder, rows=3)
    logits = run(prompt, lengths)
    for row, length in enumerate(lengths):
        check(logits[row, :length], expected[row, :length])
    for step in range(6):
        logits = run(text[np.arange(3), lengths + step][:, None])
        check(logits[:, 0], expected[np.arange(3), lengths + step])


@pytest.mark.parametrize("garbage", [1.0, 1e4, 1e15])
def test_finite_garbage_in_unused_slots_changes_nothing(cached, text, garbage):
    checkpoint, folder = cached
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, text)
    run = Cached(folder, rows=3, garbage=garbage)
    check(run(text[:, :7]), expected[:, :7])
    check(run(text[:, 7:]), expected[:, 7:])


def test_slot_written_twice_holds_the_second_token(cached, text):
    checkpoint, folder = cached
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, text)
    run = Cached(folder, rows=3)
    run(text[:, :6])
    run((text[:, 6:10] + 1) % 97)
    run.length -= 4
    check(run(text[:, 6:12]), expected[:, 6:12])


def test_last_position_of_capacity_and_of_context_is_used(cached, text):
    checkpoint, folder = cached
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, text)
    run = Cached(folder, rows=3, capacity=24)
    run(text[:, :23])
    check(run(text[:, 23:]), expected[:, 23:])
    small = Cached(folder, rows=3, capacity=10)
    small(text[:, :9])
    check(small(text[:, 9:10]), expected[:, 9:10])


def test_pads_beyond_the_context_stay_inside_the_graph(tiny, export, text):
    """A row near the end of the context, padded past it: the pads' positions are clamped."""
    checkpoint, folder = export(tiny.config, kv_cache=True)
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, text)
    run = Cached(folder, rows=3, capacity=32)
    run(text[:, :22])
    padded = np.concatenate([text[:, 22:], np.full((3, 6), 5)], axis=1)
    check(run(padded, [2, 2, 2])[:, :2], expected[:, 22:])


def test_last_logits_are_those_of_each_rows_last_real_token(tiny, export, text):
    checkpoint, folder = export(tiny.config, kv_cache=True, logits="last")
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, text)
    run = Cached(folder, rows=3)
    lengths = np.array([5, 9, 2])
    logits = run(text[:, :9], lengths)
    assert logits.shape == (3, 1, 97)
    check(logits[:, 0], expected[np.arange(3), lengths - 1])


@pytest.mark.parametrize(
    "variant", [{"norm_position": "post"}, {"bias": "all"}, {"tied_head": False}]
)
def test_other_variants_have_a_cache_too(tiny, export, text, variant):
    checkpoint, folder = export(tiny.config.replace(**variant), kv_cache=True)
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, text)
    run = Cached(folder, rows=3)
    check(run(text[:, :11]), expected[:, :11])
    check(run(text[:, 11:]), expected[:, 11:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache": True, "opset": 23}, "opset 23 has no TensorScatter: .* needs 24"),
        ({"logits": "last"}, r"logits 'last' needs the key/value cache \(--kv-cache\)"),
        ({"logits": "some"}, "logits 'some' is not one of all, last"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(GraphError, match=message):
        GraphOptions(**options)

"""The sessions over engines, with ONNX Runtime in the place of the GPU.

It runs the very graph that an engine is built from, behind the interface of the engine runner. So
what the sessions do themselves (shapes, lengths, the fixed cache, whose logits are whose) is held
against PyTorch; what TensorRT does needs a GPU, and is tested in test_engine_gpu.py.
"""

import numpy as np
import onnx
import pytest
import torch

from andrea_export.engine.freezing import freeze_axis
from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import BackendError, InputError
from andrea_export.graph import GraphOptions, export_graph
from andrea_export.session import GenerationOptions, generate_batch, open_session, trt_session
from andrea_export.session.trt_bindings import TensorSpec, buffers_for, cache_pairs
from andrea_export.session.trt_session import CachedTrtSession, TrtSession
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.tokenizer import HarrisTokenizer

ort = pytest.importorskip("onnxruntime")
CONFIG = AndreaConfig(vocab_size=261, context_length=24, d_model=40, n_layer=2, n_head=5)
TYPES = {1: "FLOAT", 7: "INT64"}


class OrtCall:
    """What BoundCall does, on the CPU: copy in, run, leave the logits in their buffer."""

    def __init__(self, runtime, buffers, pairs):
        self.runtime, self.buffers, self.pairs = runtime, buffers, pairs

    def run(self, inputs):
        for name, value in inputs.items():
            self.buffers[name].copy_(value)
        fed = {i.name: self.buffers[i.name].numpy() for i in self.runtime.get_inputs()}
        names = [o.name for o in self.runtime.get_outputs()]
        for name, array in zip(names, self.runtime.run(names, fed), strict=True):
            self.buffers[name].copy_(torch.from_numpy(array))
        return self.buffers["logits"]


class OrtRunner:
    """What EngineRunner is, on the CPU. `bound` counts how often buffers were made."""

    def __init__(self, model, rows, width):
        options = ort.SessionOptions()
        options.log_severity_level = 3  # that nothing is updated in place is known, and no matter
        self.runtime = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        graph = onnx.load_from_string(model).graph
        self.specs = [
            TensorSpec(
                value.name,
                TYPES[value.type.tensor_type.elem_type],
                tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim),
                is_input,
            )
            for values, is_input in ((graph.input, True), (graph.output, False))
            for value in values
        ]
        self.cache_pairs = cache_pairs(self.specs)
        self.profiles = [
            {
                spec.name: tuple(
                    (r, *(w if size < 0 else size for size in spec.shape[1:]))
                    for r, w in ((1, 1), (1, 1), (rows, width))
                )
                for spec in self.specs
                if spec.is_input
            }
        ]
        self.bound = 0

    def buffer(self, name, shape):
        (spec,) = (spec for spec in self.specs if spec.name == name)
        return torch.zeros(shape, dtype={"FLOAT": torch.float32, "INT64": torch.int64}[spec.dtype])

    def bind(self, plan, caches):
        self.bound += 1
        buffers = buffers_for(plan, caches, self.cache_pairs, self.buffer)
        return OrtCall(self.runtime, buffers, self.cache_pairs)

    def close(self):
        self.runtime = None


@pytest.fixture(scope="module")
def checkpoint():
    return random_checkpoint("andrea-nano", 3, config=CONFIG)


@pytest.fixture
def session(checkpoint, tmp_path):
    """Over the exported graph: session(kv_cache=True, logits="last", capacity=16, width=8)."""

    def make(capacity=CONFIG.context_length, width=None, **options):
        graph = export_graph(checkpoint, tmp_path / "graph", GraphOptions(**options))
        # ONNX Runtime finds external weights beside a file, so they go inside for once.
        whole = onnx.load(graph.model_path)
        if options.get("kv_cache"):
            frozen = onnx.load_from_string(freeze_axis(graph.model_path, capacity))
            onnx.load_external_data_for_model(frozen, str(graph.path))
            whole = frozen
        runner = OrtRunner(whole.SerializeToString(), rows=3, width=width or capacity)
        folder = EngineFolder(tmp_path, {"flavor": "rtx", "precision": "fp32"}, CONFIG)
        kind = CachedTrtSession if runner.cache_pairs else TrtSession
        return kind(folder, CONFIG, runner)

    return make


@pytest.fixture
def reference(checkpoint):
    with open_session(checkpoint, "torch") as opened:
        yield opened


@pytest.fixture
def ids():
    return np.random.default_rng(0).integers(0, CONFIG.vocab_size, (3, 11))


def same(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


def test_logits_without_a_cache_are_those_of_torch(session, reference, ids):
    with session() as opened:
        same(opened.forward(ids), reference.forward(ids))
        same(opened.forward(ids[::-1, :4]), reference.forward(ids[::-1, :4].copy()))


def test_buffers_are_made_once_for_a_shape(session, ids):
    with session() as opened:
        for _ in range(3):
            opened.forward(ids)
        assert opened._runner.bound == 1


@pytest.mark.parametrize("logits", ["all", "last"])
def test_rows_of_different_lengths_step_as_in_torch(session, reference, ids, logits):
    lengths = np.array([11, 4, 1])
    with session(kv_cache=True, logits=logits) as opened:
        for runner in (opened, reference):
            runner.prefill(ids, lengths)
        for step in range(6):
            same(opened.logits, reference.logits)
            for runner in (opened, reference):
                runner.step(ids[:, step])


def test_rows_that_have_ended_do_not_disturb_the_others(session, reference, ids):
    active = np.array([True, False, True])
    with session(kv_cache=True) as opened:
        for runner in (opened, reference):
            runner.prefill(ids)
            runner.step(ids[:, 0], active)
            runner.step(ids[:, 1], active)
        same(opened.logits[active], reference.logits[active])


def test_new_prompt_starts_from_an_empty_cache(session, reference, ids):
    with session(kv_cache=True) as opened:
        opened.prefill(ids)
        opened.step(ids[:, 0])
        opened.prefill(ids[::-1, :5])
        reference.prefill(ids[::-1, :5].copy())
        same(opened.logits, reference.logits)


def test_other_number_of_rows_gets_a_cache_of_its_own(session, reference, ids):
    with session(kv_cache=True) as opened:
        opened.prefill(ids)
        opened.prefill(ids[:1])
        opened.step(ids[:1, 0])
        reference.prefill(ids[:1])
        reference.step(ids[:1, 0])
        same(opened.logits, reference.logits)


def test_steps_reuse_their_buffers_between_prompts(session, ids):
    with session(kv_cache=True) as opened:
        opened.prefill(ids)
        for step in range(4):
            opened.step(ids[:, step])
        opened.prefill(ids)
        opened.step(ids[:, 0])
        assert opened._runner.bound == 2  # one for the prompts, one for the steps


def test_forward_with_a_cache_leaves_the_running_text_alone(session, reference, ids):
    with session(kv_cache=True) as opened:
        opened.prefill(ids)
        same(opened.forward(ids[:2, :6]), reference.forward(ids[:2, :6]))
        opened.step(ids[:, 0])
        reference.prefill(ids)
        reference.step(ids[:, 0])
        same(opened.logits, reference.logits)


def test_cache_smaller_than_the_context_ends_the_text(session, ids):
    with session(kv_cache=True, capacity=12) as opened:
        assert opened.limit == 12
        opened.prefill(ids)
        opened.step(ids[:, 0])
        with pytest.raises(InputError, match="context is full: it holds 12 tokens"):
            opened.step(ids[:, 0])
        with pytest.raises(InputError, match="13 tokens do not fit: the engine's cache ends at 12"):
            opened.prefill(np.zeros((1, 13), np.int64))


def test_engine_for_last_logits_cannot_give_all(session, ids):
    with (
        session(kv_cache=True, logits="last") as opened,
        pytest.raises(BackendError, match="gives the logits of last tokens only"),
    ):
        opened.forward(ids)


def test_batch_that_no_profile_takes_is_refused(session):
    with (
        session() as opened,
        pytest.raises(InputError, match="input_ids of shape 4x2 fits no optimization profile"),
    ):
        opened.forward(np.zeros((4, 2), np.int64))


def test_logits_before_any_prompt_are_refused(session):
    with session(kv_cache=True) as opened, pytest.raises(InputError, match="call prefill first"):
        _ = opened.logits


PLANTED = np.array(
    [
        [0.0, 2.0, 1.0, 9.0],  # the last is beyond the vocabulary that is asked for
        [3.0, 3.0, -np.inf, 0.0],
        [0.0, np.nan, 1.0, 0.0],
        [0.0, np.inf, 1.0, 0.0],
        [-np.inf, -np.inf, -np.inf, 0.0],
    ],
    np.float32,
)


def test_likeliest_tokens_are_within_the_vocabulary_and_none_where_logits_fail(session, reference):
    reference._logits = PLANTED
    assert reference.likeliest(3).tolist() == [1, 0, -1, -1, -1]
    with session(kv_cache=True) as opened:
        opened._on_device = torch.from_numpy(PLANTED)
        assert opened.likeliest(3).tolist() == [1, 0, -1, -1, -1]


def test_greedy_text_leaves_the_logits_on_the_device(checkpoint, session, monkeypatch):
    letters = HarrisTokenizer([])
    prompts = ["one", "another", "the third"]
    options = GenerationOptions(max_new_tokens=9)
    with open_session(checkpoint, "torch") as torch_session:
        wanted = generate_batch(torch_session, letters, prompts, options)
    with session(kv_cache=True) as opened:
        fetched = []
        monkeypatch.setattr(trt_session, "_on_host", lambda logits: fetched.append(logits.shape))
        found = generate_batch(opened, letters, prompts, options)
    assert [row.ids for row in found] == [row.ids for row in wanted]
    assert fetched == []


@pytest.mark.parametrize(("width", "limit"), [(None, CONFIG.context_length), (10, 10)])
def test_text_ends_where_the_widest_profile_ends(session, width, limit):
    with session(width=width) as opened:
        assert opened.limit == limit

"""Looking into a running engine, with ONNX Runtime in the place of the GPU.

It computes the very graph that an engine is built from, and tells a real TensorRT listener of its
tensors in real host memory. So all that is ours is held against the taps of the ONNX graph; what
TensorRT tells on a GPU is tested in test_engine_taps_gpu.py.
"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from andrea_export.engine import binding
from andrea_export.engine.freezing import freeze_axis
from andrea_export.engine.layer_tensors import LayerTensors, tensor_names
from andrea_export.errors import BackendError, InputError
from andrea_export.graph import GraphOptions, export_graph
from andrea_export.layer_names import LOGITS, tap_names, value_name
from andrea_export.report.taps import OnnxTaps, expose
from andrea_export.session.trt_bindings import TensorSpec, buffers_for, cache_pairs
from andrea_export.session.trt_session import CachedTrtSession, TrtSession
from andrea_export.session.trt_taps import EngineTaps
from andrea_model import AndreaConfig, random_checkpoint

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX: pip install 'andrea-export[rtx]'")

CONFIG = AndreaConfig(vocab_size=97, context_length=24, d_model=40, n_layer=2, n_head=5)
TAPS = [tap for tap in tap_names(CONFIG) if tap != LOGITS]
TYPES = {1: "FLOAT", 7: "INT64", 10: "HALF"}
TORCH = {"FLOAT": torch.float32, "HALF": torch.float16, "INT64": torch.int64}
IDS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 11))
# What a marked tensor is called is the graph's; TensorRT calls others as it likes.
UNFUSED = {"embedding": "embedding", "blocks.1.norm2": "blocks.1.norm2", "norm_f": "__mye7_myl3"}


class Context:
    """An execution context in as far as debug tensors go: `names` is what the engine calls them."""

    def __init__(self, names):
        self.names, self.on, self.listener = names, set(), None
        self.unfused_tensors_debug_state = False

    def set_debug_listener(self, listener):
        self.listener = listener
        return True

    def set_all_tensors_debug_state(self, flag):
        self.on = set(self.names) if flag else set()
        return True

    def set_tensor_debug_state(self, name, flag):
        (self.on.add if flag else self.on.discard)(name)
        return name in self.names

    def tell(self, values):
        for name, told in self.names.items():
            if self.unfused_tensors_debug_state or name in self.on:
                self.tell_one(told, values[name])

    def tell_one(self, name, value):
        trt, value = binding.trt, np.ascontiguousarray(value)
        kind = {np.float32: trt.float32, np.float16: trt.float16}[value.dtype.type]
        shape, place = trt.Dims(list(value.shape)), trt.TensorLocation.HOST
        self.listener.process_debug_tensor(value.ctypes.data, place, kind, shape, name, 0)


class Call:
    def __init__(self, runner, buffers, context):
        self.runner, self.buffers, self.context = runner, buffers, context

    def run(self, inputs):
        for name, value in inputs.items():
            self.buffers[name].copy_(value)
        runtime = self.runner.runtime
        fed = {i.name: self.buffers[i.name].numpy() for i in runtime.get_inputs()}
        names = [o.name for o in runtime.get_outputs()]
        found = dict(zip(names, runtime.run(names, fed), strict=True))
        for name in self.buffers:
            if name in found:
                self.buffers[name].copy_(torch.from_numpy(found[name]))
        self.context.tell(found)
        return self.buffers["logits"]


class Runner:
    """What EngineRunner is, on the CPU.

    The graph has every tap as an output; the engine has only those that it was given `outputs`.
    """

    def __init__(self, folder, *, outputs=(), debug=None, profiles=1):
        self.debug, self.prepared = debug or {}, []
        model = ir.load(folder.model_path)
        if folder.options.kv_cache:
            frozen = freeze_axis(folder.model_path, CONFIG.context_length)
            model = ir.from_proto(onnx.load_from_string(frozen))
        expose(model, CONFIG)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(folder.path))
        proto = ir.to_proto(model)
        self.runtime = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        own = {*outputs, "logits", *(o.name for o in proto.graph.output if "present" in o.name)}
        self.specs = [
            TensorSpec(
                value.name,
                TYPES[value.type.tensor_type.elem_type],
                tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim),
                is_input,
            )
            for values, is_input in ((proto.graph.input, True), (proto.graph.output, False))
            for value in values
            if is_input or value.name in own
        ]
        self.cache_pairs = cache_pairs(self.specs)
        self.profiles = [
            {s.name: self._bounds(s, tuned) for s in self.specs if s.is_input}
            for tuned in range(1, profiles + 1)
        ]

    def _bounds(self, spec, tuned):
        return tuple(
            (rows, *(width if size < 0 else size for size in spec.shape[1:]))
            for rows, width in ((1, 1), (1, tuned), (3, CONFIG.context_length))
        )

    def buffer(self, name, shape):
        (spec,) = (spec for spec in self.specs if spec.name == name)
        return torch.zeros(shape, dtype=TORCH[spec.dtype])

    def bind(self, plan, caches, prepare=None):
        context = Context(self.debug)
        if prepare is not None:
            prepare(context)
        self.prepared.append(context)
        buffers = buffers_for(plan, caches, self.cache_pairs, self.buffer)
        return Call(self, buffers, context)

    def close(self):
        self.runtime = None


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A small graph: graph("fp16", kv_cache=True)."""
    binding.use_flavor("rtx")
    place, made = tmp_path_factory.mktemp("taps"), {}

    def make(dtype="fp32", **options):
        key = (dtype, *options.items())
        if key not in made:
            checkpoint = random_checkpoint("andrea-nano", 3, config=CONFIG)
            asked = GraphOptions(dtype=dtype, **options)
            made[key] = export_graph(checkpoint, place / str(len(made)), asked)
        return made[key]

    return make


def marked(form, missing=()):
    return LayerTensors(form, len(TAPS), None if form == "unfused" else len(TAPS), missing)


def named():
    return {name: name for name in tensor_names(CONFIG)}


def same(found, wanted):
    assert list(found) == list(wanted)
    for tap, value in found.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, wanted[tap].astype(np.float32), err_msg=tap)


@pytest.mark.parametrize("kv_cache", [False, True], ids=["plain", "cache"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("form", ["named", "outputs"])
def test_every_tap_is_the_one_of_the_graph(graph, form, dtype, kv_cache):
    folder = graph(dtype, kv_cache=kv_cache)
    what = {"debug": named()} if form == "named" else {"outputs": tensor_names(CONFIG)}
    taps = EngineTaps(CONFIG, marked(form), Runner(folder, **what))
    wanted = OnnxTaps(folder)(IDS)
    same({tap: taps(IDS)[tap] for tap in wanted}, wanted)


def test_unfused_tensors_are_used_only_under_the_names_of_taps(graph):
    taps = EngineTaps(CONFIG, marked("unfused"), Runner(graph(), debug=UNFUSED))
    wanted = OnnxTaps(graph())(IDS)
    same(taps(IDS), {tap: wanted[tap] for tap in ("embedding", "blocks.1.norm2", LOGITS)})
    assert taps.unseen == "the others are fused away"


def test_profile_that_runs_is_the_one_in_the_name(graph):
    debug = {"norm_f": "norm_f [profile 1]", "embedding": "embedding [profile 2]"}
    taps = EngineTaps(CONFIG, marked("unfused"), Runner(graph(), debug=debug, profiles=2))
    assert list(taps(IDS[:, :2])) == ["norm_f", LOGITS]


def test_tensor_that_is_unclear_is_not_used_and_said(graph):
    runner = Runner(graph(), debug={"norm_f": "norm_f", "embedding": "blocks.0.mlp.activation"})
    taps = EngineTaps(CONFIG, marked("unfused"), runner)
    assert list(taps(IDS)) == ["norm_f", LOGITS]
    assert taps.unseen == (
        "the others are fused away; 1 not used, because unclear: "
        "blocks.0.mlp.activation had shape [2, 11, 40] instead of [2, 11, 160]"
    )


def test_only_the_wanted_debug_tensors_are_on_and_each_run_has_its_own_context(graph):
    runner = Runner(graph(), debug={**named(), "logits": "logits"})
    taps = EngineTaps(CONFIG, marked("named"), runner)
    taps(IDS), taps(IDS)
    assert [context.on for context in runner.prepared] == [set(tensor_names(CONFIG))] * 2
    assert not any(context.unfused_tensors_debug_state for context in runner.prepared)


def test_tap_that_was_missing_when_it_was_built_is_not_asked_for(graph):
    debug = named()
    del debug["norm_f"]
    taps = EngineTaps(CONFIG, marked("named", ("norm_f",)), Runner(graph(), debug=debug))
    assert set(TAPS) - set(taps(IDS)) == {"norm_f"}
    assert taps.unseen == "the others are not in the engine"


def test_engine_without_its_debug_tensors_is_refused(graph):
    taps = EngineTaps(CONFIG, marked("named"), Runner(graph()))
    with pytest.raises(BackendError, match=r"none of its 24 debug tensors \(embedding\)"):
        taps(IDS)


def test_fault_while_reading_is_told_and_not_swallowed(graph):
    if torch.cuda.is_available():
        pytest.skip("memory of the GPU can be read here")
    runner = Runner(graph(), debug=named())
    Context.tell_one, kept = _on_a_gpu, Context.tell_one
    try:
        with pytest.raises(BackendError, match="reading the engine's layers failed: embedding: "):
            EngineTaps(CONFIG, marked("named"), runner)(IDS)
    finally:
        Context.tell_one = kept


def _on_a_gpu(self, name, value):
    trt = binding.trt
    shape, place = trt.Dims(list(value.shape)), trt.TensorLocation.DEVICE
    self.listener.process_debug_tensor(4096, place, trt.float32, shape, name, 0)


def test_ids_that_no_profile_takes_are_an_input_error(graph):
    taps = EngineTaps(CONFIG, marked("named"), Runner(graph(), debug=named()))
    with pytest.raises(InputError, match="fits no optimization profile"):
        taps(np.zeros((4, 2), np.int64))


def test_engine_for_last_logits_has_none_to_compare(graph):
    folder = graph(kv_cache=True, logits="last")
    with pytest.raises(BackendError, match="gives the logits of last tokens only"):
        EngineTaps(CONFIG, marked("named"), Runner(folder))


# Extra outputs do not disturb a session


@pytest.mark.parametrize("kv_cache", [False, True], ids=["plain", "cache"])
def test_session_over_an_engine_with_extra_outputs_is_as_without(graph, kv_cache):
    folder = graph(kv_cache=kv_cache)
    kind = CachedTrtSession if kv_cache else TrtSession
    engine = type("Engine", (), {"precision": "fp32", "flavor": "rtx"})
    plain, extra = (
        kind(engine, CONFIG, Runner(folder, outputs=outputs))
        for outputs in ((), tensor_names(CONFIG))
    )
    np.testing.assert_array_equal(extra.forward(IDS), plain.forward(IDS))
    for session in (plain, extra):
        session.prefill(IDS, np.array([11, 4]))
        session.step(IDS[:, 0])
    np.testing.assert_array_equal(extra.logits, plain.logits)
    assert extra._runner.cache_pairs == plain._runner.cache_pairs


def test_context_tap_is_the_merged_value():
    assert value_name("blocks.0.attn.context") == "blocks.0.attn.context/merged"

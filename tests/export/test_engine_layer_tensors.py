"""Engines that show their layers: what is marked in real networks, what is recorded and said."""

import json

import onnx
import pytest
from engine_graphs import SMALL, names, rtx, small_graph
from onnx import TensorProto, helper

from andrea_export.cli import run
from andrea_export.engine import EngineOptions, binding, build_engine, open_engine, parsing
from andrea_export.engine.layer_tensors import LayerTensors, tensor_names
from andrea_export.engine.marking import mark_layer_tensors
from andrea_export.errors import EngineError
from andrea_export.graph import GraphOptions, export_graph
from andrea_export.inspection import inspect_path
from andrea_export.layer_names import LOGITS, tap_names, value_name, width_of
from andrea_model import open_checkpoint, random_checkpoint

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX: pip install 'andrea-export[rtx]'")
NANO_TAPS = 1 + 4 * 11 + 1  # the embedding, eleven in each of four blocks, the last norm
VARIANTS = {
    "plain": {},
    "post": {"norm_position": "post"},
    "rmsnorm": {"norm": "rmsnorm", "norm_affine": "scale"},
    "swiglu": {"activation": "swiglu", "bias": "none"},
    "relu": {"activation": "relu", "bias": "all"},
}


@pytest.fixture(scope="module")
def builder():
    binding.use_flavor("rtx")
    return binding.trt.Builder(binding.logger(lambda *_: None))


@pytest.fixture
def parse(builder):
    """The network of a graph, as a build parses it."""

    def parse(folder, capacity=None):
        network = parsing.create_network(builder)
        log = binding.logger(lambda *_: None)
        path = folder / "model.onnx"
        parsing.parse_onnx(network, log, path, capacity=capacity, error_log=list)
        return network

    return parse


class Without:
    """A real network as an older TensorRT would have it."""

    def __init__(self, network, *lacking):
        self._network, self._lacking = network, lacking

    def __getattr__(self, name):
        if name in self._lacking:
            raise AttributeError(name)
        return getattr(self._network, name)


def tensors_of(network):
    layers = (network.get_layer(index) for index in range(network.num_layers))
    return [layer.get_output(i) for layer in layers for i in range(layer.num_outputs)]


# In the network


@pytest.mark.parametrize("kv_cache", [False, True], ids=["plain", "cache"])
@pytest.mark.parametrize("ops", ["plugin", "standard"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_tap_is_a_tensor_of_the_parsed_network_and_is_marked(parse, dtype, ops, kv_cache):
    network = parse(small_graph(dtype, ops=ops, kv_cache=kv_cache), 24 if kv_cache else None)
    marked = mark_layer_tensors(network, "named", tensor_names(SMALL))
    assert marked == LayerTensors("named", 2 + 2 * 11, 2 + 2 * 11)
    found = {t.name: tuple(t.shape) for t in tensors_of(network) if network.is_debug_tensor(t)}
    assert found == {
        value_name(tap): (-1, -1, width_of(tap, SMALL)) for tap in tap_names(SMALL) if tap != LOGITS
    }


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_the_model_has_all_its_taps(parse, tmp_path, variant, dtype):
    config = SMALL.replace(**VARIANTS[variant])
    checkpoint = random_checkpoint("andrea-nano", 3, config=config)
    folder = export_graph(checkpoint, tmp_path / "graph", GraphOptions(dtype=dtype)).path
    marked = mark_layer_tensors(parse(folder), "named", tensor_names(config))
    assert (marked.marked, marked.missing) == (marked.wanted, ())


def test_outputs_are_added_behind_the_models_own(parse):
    network = parse(small_graph("fp16", kv_cache=True), 24)
    own = [network.get_output(i).name for i in range(network.num_outputs)]
    marked = mark_layer_tensors(network, "outputs", tensor_names(SMALL))
    outputs = [network.get_output(i).name for i in range(network.num_outputs)]
    assert outputs == [*own, *tensor_names(SMALL)]
    assert marked.marked == len(tensor_names(SMALL))
    assert not any(network.is_debug_tensor(tensor) for tensor in tensors_of(network))


def test_unfused_tensors_are_marked_and_none_by_name(parse):
    network = parse(small_graph("fp16"))
    marked = mark_layer_tensors(network, "unfused", tensor_names(SMALL))
    assert (marked.form, marked.marked) == ("unfused", None)
    assert not any(network.is_debug_tensor(tensor) for tensor in tensors_of(network))


def test_older_tensorrt_without_debug_tensors_exposes_them_and_says_so(parse):
    network = Without(parse(small_graph("fp16")), "mark_debug", "is_debug_tensor")
    marked = mark_layer_tensors(network, "named", tensor_names(SMALL))
    assert marked.form == "outputs"
    assert network.num_outputs == 1 + len(tensor_names(SMALL))
    assert "24 of 24 as extra outputs" in str(marked)


def test_older_tensorrt_without_unfused_ones_names_the_other_form(parse):
    network = Without(parse(small_graph("fp16")), "mark_unfused_tensors_as_debug_tensors")
    with pytest.raises(EngineError, match="cannot show unfused tensors: use --layer-tensors named"):
        mark_layer_tensors(network, "unfused", tensor_names(SMALL))


def test_tap_that_the_graph_lacks_is_recorded_by_name(parse):
    marked = mark_layer_tensors(parse(small_graph("fp16")), "named", ["blocks.7.norm1", "norm_f"])
    assert marked == LayerTensors("named", 2, 1, ("blocks.7.norm1",))
    assert "1 of 2 as debug tensors" in str(marked)
    assert str(marked).endswith("the graph has none called blocks.7.norm1")


def test_graph_without_a_single_tap_is_refused(parse, tmp_path):
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9),
        tmp_path / "model.onnx",
    )
    with pytest.raises(EngineError, match=r"none of the 24 tensors of its model's layers"):
        mark_layer_tensors(parse(tmp_path), "named", tensor_names(SMALL))


# Built


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    """The demo model exported: nano("fp16")."""
    place, made = tmp_path_factory.mktemp("nano"), {}

    def graph(dtype):
        if dtype not in made:
            made[dtype] = export_graph(
                open_checkpoint("andrea-nano"), place / dtype, GraphOptions(dtype=dtype)
            ).path
        return made[dtype]

    return graph


@pytest.mark.parametrize(
    ("form", "marked"), [("unfused", None), ("named", NANO_TAPS), ("outputs", NANO_TAPS)]
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_demo_model_builds_with_every_form_and_records_it(nano, tmp_path, dtype, form, marked):
    engine = build_engine(nano(dtype), tmp_path / "engine", rtx(layer_tensors=form))
    assert engine.layer_tensors == LayerTensors(form, NANO_TAPS, marked)
    sidecar = json.loads((engine.path / "engine.json").read_text())
    assert sidecar["layer_tensors"] == {
        "form": form, "wanted": NANO_TAPS, "marked": marked, "missing": [],
    }  # fmt: skip
    assert sidecar["options"]["layer_tensors"] == form
    assert [output["name"] for output in sidecar["outputs"]] == ["logits"]
    assert inspect_path(engine.path).facts["layer tensors"] == str(engine.layer_tensors)
    engine.check_file()


@pytest.mark.parametrize("form", ["unfused", "named", "outputs"])
def test_engine_with_a_cache_builds_with_every_form(tmp_path, form):
    source = small_graph("fp16", kv_cache=True)
    engine = build_engine(source, tmp_path / "engine", rtx(layer_tensors=form))
    assert engine.layer_tensors.form == form
    assert len(engine.sidecar["outputs"]) == 1 + 2 * SMALL.n_layer


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_unfused_engine_is_the_plain_one_but_for_a_flag(tmp_path, dtype):
    plain, unfused = (
        build_engine(
            small_graph(dtype), tmp_path / form, rtx(layer_tensors=form)
        ).engine_path.read_bytes()
        for form in ("off", "unfused")
    )
    assert len(plain) == len(unfused)
    changed = [(a, b) for a, b in zip(plain, unfused, strict=True) if a != b]
    assert changed == [(0, 1)]


def test_plain_engine_records_that_it_shows_nothing(tmp_path):
    engine = build_engine(small_graph("fp16"), tmp_path / "engine", rtx())
    assert engine.sidecar["layer_tensors"] is None
    assert engine.layer_tensors is None
    assert "layer tensors" not in inspect_path(engine.path).facts


def test_older_sidecar_without_the_key_opens(tmp_path):
    path = build_engine(small_graph("fp16"), tmp_path / "engine", rtx()).path / "engine.json"
    sidecar = json.loads(path.read_text())
    del sidecar["layer_tensors"]
    path.write_text(json.dumps(sidecar))
    assert open_engine(path.parent).layer_tensors is None


@pytest.mark.parametrize(
    "record",
    [{"form": "some"}, {"form": "named", "wanted": 3, "marked": 1, "missing": [1]}],
)
def test_record_of_layer_tensors_that_is_none_is_told_as_damage(tmp_path, record):
    path = build_engine(small_graph("fp16"), tmp_path / "engine", rtx()).path / "engine.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "layer_tensors": record}))
    with pytest.raises(EngineError, match=r"engine.json is damaged: layer_tensors is"):
        open_engine(path.parent)


def test_command_prints_what_was_marked(tmp_path, capsys):
    command = ["trt", str(small_graph("fp16")), "-o", str(tmp_path / "engine"), "--flavor", "rtx"]
    assert run([*command, "--compute-capability", "8.9", "--layer-tensors", "named"]) == 0
    assert "layer tensors: 24 of 24 as debug tensors, which can keep" in capsys.readouterr().err


# Bad input


def test_unknown_form_is_refused_with_those_that_there_are():
    with pytest.raises(EngineError, match="'some' is not one of off, unfused, named, outputs"):
        EngineOptions(layer_tensors="some")


def test_command_refuses_an_unknown_form_in_a_line(tmp_path, capsys):
    command = ["trt", str(small_graph("fp16")), "-o", str(tmp_path / "engine")]
    assert run([*command, "--layer-tensors", "all"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert names(tmp_path) == []


def test_file_of_an_unknown_model_has_no_layers_to_show(tmp_path):
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).write_bytes((small_graph("fp16") / name).read_bytes())
    with pytest.raises(EngineError, match="--layer-tensors needs to know the model, and no config"):
        build_engine(tmp_path / "model.onnx", tmp_path / "engine", rtx(layer_tensors="named"))
    assert names(tmp_path) == ["model.onnx", "model.onnx.data"]

"""Real engines, built by TensorRT-RTX without a GPU."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from andrea_export.cli import run
from andrea_export.engine import EngineOptions, build_engine, open_engine
from andrea_export.engine.child import Child
from andrea_export.engine.gpus import Gpu, Machine
from andrea_export.engine.request import BuildRequest
from andrea_export.errors import EngineError, GraphError, OutputError
from andrea_export.graph import GraphOptions, export_graph, open_graph
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.checkpoint import open_checkpoint, save_folder

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX: pip install 'andrea-export[rtx]'")

SMALL = AndreaConfig(vocab_size=97, context_length=24, d_model=64, n_layer=2, n_head=2)
# Two norms a block and the last one, all but the first with an addition; one GELU a block.
SMALL_OPS = {"AndreaAddLayerNorm": 4, "AndreaBiasGelu": 2, "AndreaLayerNorm": 1}


def rtx(**options):
    return EngineOptions(**{"flavor": "rtx", "compute_capability": "8.9", **options})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """SMALL, exported: folders("fp16", kv_cache=True). Not to be changed."""
    made = {}
    root = tmp_path_factory.mktemp("graphs")

    def make(dtype="fp32", **options):
        key = "-".join([dtype, *(f"{k}{v}" for k, v in options.items())])
        if key not in made:
            checkpoint = random_checkpoint("andrea-nano", 3, config=SMALL)
            graph = GraphOptions(dtype=dtype, **options)
            made[key] = export_graph(checkpoint, root / key, graph).path
        return made[key]

    return make


@pytest.fixture
def damaged(folders, tmp_path):
    """A bare ONNX file made by changing the small graph: damaged(change)."""

    def make(change, with_weights=True):
        folder = folders("fp16")
        model = onnx.load(folder / "model.onnx", load_external_data=False)
        path = tmp_path / "bare.onnx"
        path.write_bytes(change(model) or model.SerializeToString())
        if with_weights:
            shutil.copy(folder / "model.onnx.data", tmp_path)
        return path

    return make


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# What a build writes


def test_engine_folder_holds_engine_sidecar_network_and_config(folders, tmp_path):
    engine = build_engine(folders("fp16"), tmp_path / "engine", rtx())
    assert names(engine.path) == ["config.json", "engine.json", "model.engine", "network.json"]
    sidecar = json.loads((engine.path / "engine.json").read_text())
    assert sidecar["sha256"]["model.engine"] == sha256(engine.engine_path)
    assert sidecar["sha256"]["network.json"] == sha256(engine.path / "network.json")
    assert sidecar["graph"]["sha256"] == {
        name: sha256(folders("fp16") / name) for name in ("model.onnx", "model.onnx.data")
    }
    assert sidecar["bytes"] == engine.engine_path.stat().st_size
    assert (sidecar["flavor"], sidecar["compute_capabilities"]) == ("rtx", ["8.9"])
    assert sidecar["inputs"] == [
        {"name": "input_ids", "dtype": "INT64", "shape": ["batch", "sequence"]}
    ]
    assert sidecar["outputs"] == [{"name": "logits", "dtype": "FLOAT", "shape": [-1, -1, 97]}]
    assert sidecar["profiles"] == [
        {"input_ids": {"min": [1, 1], "opt": [1, 24], "max": [8, 24]}},
    ]
    assert sidecar["plugin_library"] is None
    assert sidecar["custom_ops"] == {op: {"function": n} for op, n in SMALL_OPS.items()}
    assert engine.config == SMALL
    engine.check_file()
    assert len(engine.read_network()) == sidecar["layers"]


@pytest.mark.parametrize(
    ("dtype", "type_"), [("fp32", "FLOAT"), ("fp16", "HALF"), ("bf16", "BF16")]
)
def test_precision_of_the_graph_is_the_precision_of_the_network(folders, tmp_path, dtype, type_):
    engine = build_engine(folders(dtype), tmp_path / "engine", rtx(compute_capability="12.0"))
    assert engine.precision == dtype
    products = [x for x in engine.read_network() if x.type == "MATRIX_MULTIPLY"]
    # q, k, v, scores, context, o, fc1, fc2 in each block, and the head.
    assert len(products) == SMALL.n_layer * 8 + 1
    assert {product.outputs[0].dtype for product in products} == {type_}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_norms_compute_their_statistics_in_float32(folders, tmp_path, dtype):
    engine = build_engine(folders(dtype), tmp_path / "engine", rtx())
    norms = [x for x in engine.read_network() if x.type == "NORMALIZATION"]
    assert len(norms) == 2 * SMALL.n_layer + 1
    assert {norm.outputs[0].dtype for norm in norms} == {"FLOAT"}


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "12.1", "8.9,12.0"])
def test_engine_is_built_for_every_capability_that_rtx_knows(folders, tmp_path, capability):
    engine = build_engine(folders("fp16"), tmp_path / "e", rtx(compute_capability=capability))
    assert engine.sidecar["compute_capabilities"] == capability.split(",")
    assert engine.sidecar["bytes"] > 0


def test_plain_onnx_file_is_built_as_it_is(folders, tmp_path):
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(folders("fp16") / name, tmp_path / name)
    engine = build_engine(tmp_path / "model.onnx", tmp_path / "engine", rtx(sequence="1:8:16"))
    assert (engine.precision, engine.config) == ("fp16", None)
    assert engine.sidecar["graph"]["export"] is None
    assert set(engine.sidecar["graph"]["sha256"]) == {"model.onnx", "model.onnx.data"}


# The key/value cache


def test_cache_is_frozen_at_the_context_length_with_a_profile_for_single_tokens(folders, tmp_path):
    engine = build_engine(folders("fp16", kv_cache=True), tmp_path / "engine", rtx())
    assert engine.sidecar["capacity"] == SMALL.context_length
    shapes = {i["name"]: i["shape"] for i in engine.sidecar["inputs"]}
    assert shapes["past_key_values.1.value"] == ["batch", 2, 24, 32]
    tokens, prompts = engine.sidecar["profiles"]
    assert tokens["input_ids"] == {"min": [1, 1], "opt": [1, 1], "max": [8, 1]}
    assert prompts["input_ids"] == {"min": [1, 1], "opt": [1, 24], "max": [8, 24]}
    assert prompts["past_key_values.0.key"]["max"] == [8, 2, 24, 32]
    updates = [x for x in engine.read_network() if x.type == "KV_CACHE_UPDATE"]
    assert len(updates) == 2 * SMALL.n_layer


def test_cache_takes_the_capacity_that_was_asked_for(folders, tmp_path):
    source = folders("fp16", kv_cache=True)
    engine = build_engine(source, tmp_path / "engine", rtx(capacity=16))
    assert engine.sidecar["capacity"] == 16
    assert engine.sidecar["profiles"][1]["input_ids"]["max"] == [8, 16]


def test_attention_in_fp32_is_allowed_to_decompose_and_so_builds(folders, tmp_path):
    engine = build_engine(folders("fp32", opset=24), tmp_path / "engine", rtx())
    assert engine.sidecar["attention_layers"] == SMALL.n_layer
    assert engine.precision == "fp32"


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ({}, {"capacity": 8}, "the graph has no axis called capacity: it has no cache to size"),
        ({"kv_cache": True}, {"capacity": 25}, "longer than the model's context length, 24"),
        (
            {"kv_cache": True},
            {"capacity": 8, "sequence": "1:1:9"},
            "axis sequence: max 9 is above 8, the capacity of its cache",
        ),
        ({}, {"sequence": "1:1:25"}, "max 25 is above 24, the model's context length"),
        ({}, {"profiles": ("tokens=1x1",)}, "the profile names tokens, the graph has input_ids"),
        ({}, {"batch": "0:1:1"}, "--batch: min is 0"),
        ({}, {"compute_capability": "9.0"}, r"'9.0' is not .*: 7.5, 8.0, 8.6, 8.9, 12.0, 12.1"),
        ({}, {"compute_capability": None}, "no GPU here to build for: name the one"),
        ({}, {"strip_weights": True}, "strips weights only on a machine with a GPU"),
        ({}, {"plugins": "on"}, "TensorRT-RTX does not take --plugins on"),
        ({}, {"workspace_bytes": 1}, "cannot build the engine: .*workspace"),
    ],
)
def test_impossible_builds_are_refused_and_leave_nothing(
    folders, tmp_path, source, options, message
):
    with pytest.raises(EngineError, match=message):
        build_engine(folders("fp16", **source), tmp_path / "engine", rtx(**options))
    assert names(tmp_path) == []


# Precision that the source does not have


def test_folder_of_another_precision_is_exported_again(folders, tmp_path):
    notes = []
    engine = build_engine(
        folders("fp32"), tmp_path / "engine", rtx(dtype="fp16"), note=notes.append
    )
    assert engine.precision == "fp16"
    assert engine.sidecar["graph"]["export"]["options"]["dtype"] == "fp16"
    fp16 = open_graph(folders("fp16")).record
    assert engine.sidecar["graph"]["sha256"] == fp16["sha256"]
    assert any("exported again as fp16" in line for line in notes)
    assert names(tmp_path) == ["engine"]


@pytest.fixture
def from_file(tmp_path):
    """SMALL as a checkpoint on disk, and an export of it: from_file("fp32")."""
    path = tmp_path / "checkpoint"
    save_folder(random_checkpoint("andrea-nano", 3, config=SMALL), path)

    def make(dtype):
        options = GraphOptions(dtype=dtype)
        return path, export_graph(open_checkpoint(path), tmp_path / dtype, options).path

    return make


def test_fp32_folder_whose_checkpoint_is_gone_gives_its_own_weights(from_file, tmp_path):
    checkpoint, folder = from_file("fp32")
    expected = export_graph(open_checkpoint(checkpoint), tmp_path / "x", GraphOptions(dtype="fp16"))
    shutil.rmtree(checkpoint)
    engine = build_engine(folder, tmp_path / "engine", rtx(dtype="fp16"))
    digest = engine.sidecar["graph"]["sha256"]["model.onnx.data"]
    assert digest == sha256(expected.data_path)


def test_half_folder_whose_checkpoint_is_gone_cannot_become_fp32(from_file, tmp_path):
    checkpoint, folder = from_file("fp16")
    shutil.rmtree(checkpoint)
    with pytest.raises(
        GraphError, match=r"is fp16, and fp32 needs its checkpoint again: .*no such"
    ):
        build_engine(folder, tmp_path / "engine", rtx(dtype="fp32"))


def test_plain_file_of_another_precision_is_refused(folders, tmp_path):
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(folders("fp32") / name, tmp_path / name)
    with pytest.raises(EngineError, match=r"fp16 was asked .*: 17 FLOAT"):
        build_engine(tmp_path / "model.onnx", tmp_path / "engine", rtx(dtype="fp16"))


def test_checkpoint_is_exported_with_what_the_engine_needs(tmp_path):
    checkpoint = random_checkpoint("andrea-nano", 3, config=SMALL)
    engine = build_engine(checkpoint, tmp_path / "e", rtx(dtype="bf16", kv_cache=True, capacity=8))
    assert (engine.precision, engine.sidecar["capacity"]) == ("bf16", 8)
    assert engine.sidecar["graph"]["export"]["checkpoint"]["format"] == "random"
    assert names(tmp_path) == ["e"]


# Damaged graphs


def test_unknown_op_is_named_with_its_node(damaged, tmp_path):
    def change(model):
        node = next(n for n in model.graph.node if n.name == "blocks.0.attn.q")
        node.op_type = "Frobnicate"

    with pytest.raises(
        EngineError, match=r"node blocks.0.attn.q \(Frobnicate\): no operator, func"
    ):
        build_engine(damaged(change), tmp_path / "engine", rtx())


def test_broken_function_body_is_told_with_the_node_that_calls_it(damaged, tmp_path):
    def change(model):
        model.functions[0].node[-1].op_type = "Sqrtt"

    with pytest.raises(EngineError, match=r"\(Sqrtt\), inside the function of blocks.0.norm1"):
        build_engine(damaged(change), tmp_path / "engine", rtx())


def test_graph_without_its_functions_is_refused(damaged, tmp_path):
    def change(model):
        del model.functions[:]

    with pytest.raises(EngineError, match=r"blocks.0.norm1 \(AndreaLayerNorm\): .* more errors"):
        build_engine(damaged(change), tmp_path / "engine", rtx())


def test_parser_that_kills_its_process_is_contained(damaged, tmp_path):
    def change(model):  # a function that calls itself: TensorRT 11 recurses until its stack ends
        function = model.functions[0]
        call = helper.make_node(function.name, function.input, ["z"], domain="andrea")
        function.node.append(call)

    with pytest.raises(EngineError, match=r"process died while parsing \(signal SIGSEGV\)"):
        build_engine(damaged(change), tmp_path / "engine", rtx())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.SerializeToString()[:5000], "cannot be read as ONNX"),
        (lambda _: b"\x7fELF" * 100, "cannot be read as ONNX"),
        (lambda _: b" ", "cannot be read as ONNX"),
    ],
)
def test_file_that_is_no_onnx_is_refused(damaged, tmp_path, change, message):
    with pytest.raises(EngineError, match=message):
        build_engine(damaged(change), tmp_path / "engine", rtx())


def test_name_that_is_no_text_is_told(damaged, tmp_path):
    def change(model):
        raw = model.SerializeToString()
        return raw.replace(b"blocks.0.attn.q/heads", b"blocks.0.attn.\xff/heads")

    with pytest.raises(EngineError, match=r"cannot be read as ONNX|a name in it is no text"):
        build_engine(damaged(change), tmp_path / "engine", rtx())


@pytest.mark.parametrize("name", [b"model.onnx.dat\xff", b"model.onnx.dat\x00"])
def test_name_of_a_weights_file_that_cannot_be_one_is_told(damaged, tmp_path, name):
    def change(model):
        return model.SerializeToString().replace(b"model.onnx.data", name)

    with pytest.raises(EngineError, match=r"damaged: no weights can lie in|cannot be read as ONNX"):
        build_engine(damaged(change), tmp_path / "engine", rtx())


def test_missing_weights_file_is_named(damaged, tmp_path):
    path = damaged(lambda _: None, with_weights=False)
    with pytest.raises(GraphError, match=r"its weights file model.onnx.data is not beside it"):
        build_engine(path, tmp_path / "engine", rtx())


def test_weights_file_that_is_cut_short_is_told_with_the_weight(damaged, tmp_path):
    path = damaged(lambda _: None)
    os.truncate(tmp_path / "model.onnx.data", 100)
    with pytest.raises(EngineError, match=r"cannot read the weights wte.weight: .*file size=100"):
        build_engine(path, tmp_path / "engine", rtx())


def test_exported_folder_that_was_changed_is_refused(folders, tmp_path):
    shutil.copytree(folders("fp16"), tmp_path / "changed")
    with (tmp_path / "changed" / "model.onnx.data").open("r+b") as file:
        file.write(b"\x00\x3c")
    with pytest.raises(GraphError, match=r"model.onnx.data is not the file that export.json rec"):
        build_engine(tmp_path / "changed", tmp_path / "engine", rtx())


@pytest.mark.parametrize("missing", ["model.onnx.data", "config.json", "export.json"])
def test_incomplete_folder_is_refused(folders, tmp_path, missing):
    shutil.copytree(folders("fp16"), tmp_path / "folder")
    (tmp_path / "folder" / missing).unlink()
    with pytest.raises(GraphError, match=f"is not an exported folder: it has no {missing}"):
        build_engine(tmp_path / "folder", tmp_path / "engine", rtx())


def test_engine_as_a_source_is_refused(folders, tmp_path):
    build_engine(folders("fp16"), tmp_path / "engine", rtx())
    with pytest.raises(EngineError, match="is an engine already"):
        build_engine(tmp_path / "engine", tmp_path / "again", rtx())


def test_attention_from_elsewhere_builds_in_fp32(tmp_path):
    """A graph of another author, with the mask that FACTS says needs decomposition."""
    shape = ["batch", 2, 8, 16]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkv"]
    mask = numpy_helper.from_array(np.zeros((8, 8), np.float32), "mask")
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "g", inputs, [output], [mask])
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "attention.onnx")
    engine = build_engine(tmp_path / "attention.onnx", tmp_path / "engine", rtx())
    assert engine.sidecar["attention_layers"] == 1


# Outputs and interruption


def test_older_engine_is_replaced_only_with_force(folders, tmp_path):
    build_engine(folders("fp16"), tmp_path / "engine", rtx())
    with pytest.raises(OutputError, match="exists"):
        build_engine(folders("fp16"), tmp_path / "engine", rtx())
    build_engine(folders("fp16"), tmp_path / "engine", rtx(sequence="4"), force=True)
    assert open_engine(tmp_path / "engine").sidecar["options"]["sequence"] == "4"


def test_progress_grows_up_to_its_end(folders, tmp_path):
    seen = []
    build_engine(folders("fp16"), tmp_path / "e", rtx(), progress=lambda *pair: seen.append(pair))
    done = [done for done, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {1000}


def test_interrupted_build_stops_and_leaves_nothing(tmp_path):
    config = AndreaConfig(vocab_size=8449, context_length=64, d_model=768, n_layer=4, n_head=12)
    folder = export_graph(random_checkpoint("andrea-nano", 3, config=config), tmp_path / "g").path
    command = [sys.executable, "-m", "andrea_export", "trt", folder, "-o", tmp_path / "e"]
    options = ["--flavor", "rtx", "--compute-capability", "8.9"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob(".e.*.partial/model.engine")) and time.monotonic() < deadline:
        time.sleep(0.01)  # it exists from the moment that building begins
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Traceback" not in errors
    assert names(tmp_path) == ["g"]


def test_plugin_library_is_never_loaded_where_rtx_parses():
    request = BuildRequest(
        flavor="rtx", onnx="x", engine="x", network="x", plugin_library="libandrea_plugins.so"
    )
    with (
        Child() as child,
        pytest.raises(EngineError, match="a plugin library kills TensorRT-RTX's parser"),
    ):
        child.run(request.to_json(), "x")


def test_gpu_that_rtx_does_not_know_is_refused_with_the_other_flavor(
    folders, tmp_path, monkeypatch
):
    h200 = Machine((Gpu("H200", "9.0", 1 << 37),), "13.0")
    monkeypatch.setattr("andrea_export.engine.build.machine", lambda: h200)
    with pytest.raises(EngineError, match=r"'9.0' is not .* --flavor tensorrt, builds for any"):
        build_engine(folders("fp16"), tmp_path / "engine", rtx(compute_capability=None))


# The command


def test_command_prints_json_alone_and_a_summary_beside_it(folders, tmp_path, capsys):
    command = ["trt", str(folders("fp16")), "-o", str(tmp_path / "engine"), "--json"]
    assert run([*command, "--flavor", "rtx", "--compute-capability", "8.9"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["output"] == str(tmp_path / "engine")
    assert result["precision"] == "fp16"
    assert "4 AndreaAddLayerNorm as function" in printed.err
    assert "input_ids 1x1:1x24:8x24" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing", "-o", "e"], "nothing: no such file or folder"),
        (["nothing.onnx", "-o", "e"], "nothing.onnx does not exist"),
        (["x.onnx", "-o", "e", "--fp16", "--bf16"], "one precision at a time, not --fp16 and --b"),
        (["x.onnx", "-o", "e", "--workspace", "much"], "a size is a number with K, M or G"),
        (["x.onnx", "-o", "e", "--flavor", "lean"], "does not exist"),
    ],
)
def test_command_says_in_a_line_what_is_wrong(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["trt", *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
    assert names(tmp_path) == []


def test_output_that_cannot_be_written_is_told_before_the_build(folders, tmp_path, capsys):
    (tmp_path / "file").touch()
    command = ["trt", str(folders("fp16")), "-o", str(tmp_path / "file" / "engine")]
    assert run([*command, "--flavor", "rtx", "--compute-capability", "8.9"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_model_of_120m_parameters_builds(tmp_path, dtype):
    checkpoint = random_checkpoint("andrea-120m", 3)
    graph = export_graph(checkpoint, tmp_path / "graph", GraphOptions(dtype=dtype))
    engine = build_engine(graph.path, tmp_path / "engine", rtx(compute_capability="8.9,12.0"))
    assert engine.precision == dtype
    assert engine.sidecar["custom_ops"]["AndreaAddLayerNorm"] == {"function": 24}

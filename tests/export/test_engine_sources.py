"""What an engine is built from: another precision, a checkpoint, a damaged or a foreign graph."""

import hashlib
import json
import os
import shutil

import numpy as np
import onnx
import pytest
from engine_graphs import SMALL, names, rtx, small_graph
from onnx import TensorProto, helper, numpy_helper

from andrea_export.engine import build_engine
from andrea_export.errors import EngineError, GraphError
from andrea_export.graph import GraphOptions, export_graph, open_graph
from andrea_model import random_checkpoint
from andrea_model.checkpoint import open_checkpoint, save_folder

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX: pip install 'andrea-export[rtx]'")


@pytest.fixture
def damaged(tmp_path):
    """A bare ONNX file made by changing the small graph: damaged(change)."""

    def make(change, with_weights=True):
        folder = small_graph("fp16")
        model = onnx.load(folder / "model.onnx", load_external_data=False)
        path = tmp_path / "bare.onnx"
        path.write_bytes(change(model) or model.SerializeToString())
        if with_weights:
            shutil.copy(folder / "model.onnx.data", tmp_path)
        return path

    return make


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_folder_of_another_precision_is_exported_again(tmp_path):
    notes = []
    engine = build_engine(
        small_graph("fp32"), tmp_path / "engine", rtx(dtype="fp16"), note=notes.append
    )
    assert engine.precision == "fp16"
    assert engine.sidecar["graph"]["export"]["options"]["dtype"] == "fp16"
    fp16 = open_graph(small_graph("fp16")).record
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


@pytest.mark.parametrize("change", ["a byte", "cut short"])
def test_fp32_folder_that_was_changed_gives_no_weights(from_file, tmp_path, change):
    checkpoint, folder = from_file("fp32")
    shutil.rmtree(checkpoint)
    data = folder / "model.onnx.data"
    if change == "a byte":
        first = data.read_bytes()[0]
        data.write_bytes(bytes([first ^ 1]) + data.read_bytes()[1:])
    else:
        os.truncate(data, data.stat().st_size // 2)
    with pytest.raises(GraphError, match=r"model.onnx.data is not the file that export.json"):
        build_engine(folder, tmp_path / "engine", rtx(dtype="bf16"))
    assert "engine" not in names(tmp_path)


def test_weights_of_the_folder_itself_are_told(from_file, tmp_path):
    checkpoint, folder = from_file("fp32")
    shutil.rmtree(checkpoint)
    notes = []
    build_engine(folder, tmp_path / "engine", rtx(dtype="fp16"), note=notes.append)
    assert any("from its own weights (its checkpoint is gone or has changed)" in n for n in notes)


def test_half_folder_whose_checkpoint_is_gone_cannot_become_fp32(from_file, tmp_path):
    checkpoint, folder = from_file("fp16")
    shutil.rmtree(checkpoint)
    with pytest.raises(
        GraphError, match=r"is fp16, and fp32 needs its checkpoint again: .*no such"
    ):
        build_engine(folder, tmp_path / "engine", rtx(dtype="fp32"))


def test_plain_file_of_another_precision_is_refused(tmp_path):
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(small_graph("fp32") / name, tmp_path / name)
    with pytest.raises(EngineError, match=r"fp16 was asked .*: 17 FLOAT"):
        build_engine(tmp_path / "model.onnx", tmp_path / "engine", rtx(dtype="fp16"))


def test_checkpoint_is_exported_with_what_the_engine_needs(tmp_path):
    checkpoint = random_checkpoint("andrea-nano", 3, config=SMALL)
    engine = build_engine(checkpoint, tmp_path / "e", rtx(dtype="bf16", kv_cache=True, capacity=8))
    assert (engine.precision, engine.sidecar["capacity"]) == ("bf16", 8)
    assert engine.sidecar["graph"]["export"]["checkpoint"]["format"] == "random"
    assert names(tmp_path) == ["e"]


# Damaged graphs


def test_graph_of_a_checkpoint_is_the_one_that_export_writes(tmp_path):
    # What `refit` asks for, after the graph inside the build is gone.
    checkpoint = random_checkpoint("andrea-nano", 3, config=SMALL)
    engine = build_engine(checkpoint, tmp_path / "engine", rtx(dtype="fp16", kv_cache=True))
    graph = GraphOptions(dtype="fp16", kv_cache=True)
    exported = export_graph(checkpoint, tmp_path / "graph", graph)
    assert engine.sidecar["graph"]["sha256"] == {
        name: sha256(exported.path / name) for name in ("model.onnx", "model.onnx.data")
    }


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


def test_weights_called_as_tensorflow_does_are_told_with_the_reason(tmp_path):
    weights = TensorProto(name="dense/kernel:0", data_type=TensorProto.FLOAT, dims=[4, 4])
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../elsewhere.bin")
    (tmp_path / "elsewhere.bin").write_bytes(bytes(64))
    path = tmp_path / "folder" / "model.onnx"
    path.parent.mkdir()
    save_product(path, weights)
    with pytest.raises(EngineError, match=r"cannot read the weights dense/kernel:0: .*elsewhere"):
        build_engine(path, tmp_path / "engine", rtx())


def test_cache_without_a_size_is_told_with_the_option_that_gives_it(tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(small_graph("fp16", kv_cache=True), bare)
    (bare / "export.json").unlink()
    with pytest.raises(EngineError, match=r"fixed length: add --capacity N"):
        build_engine(bare / "model.onnx", tmp_path / "engine", rtx())
    engine = build_engine(bare / "model.onnx", tmp_path / "engine", rtx(capacity=8))
    assert engine.sidecar["capacity"] == 8


def test_node_without_a_name_is_told_by_its_number_and_nothing_of_the_driver(tmp_path):
    path = tmp_path / "bare.onnx"
    save_product(path, numpy_helper.from_array(np.zeros((3, 4), np.float32), "w"))
    with pytest.raises(EngineError, match=r"at node number 0 \(MatMul\)") as caught:
        build_engine(path, tmp_path / "engine", rtx())
    assert "cuda" not in str(caught.value).lower()


def save_product(path, weights):
    """x [2, 4] times `weights`, as other tools write it: the node has no name."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("MatMul", ["x", weights.name], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [weights])
    opset = helper.make_opsetid("", 17)
    path.write_bytes(helper.make_model(graph, opset_imports=[opset]).SerializeToString())


def test_missing_weights_file_is_named(damaged, tmp_path):
    path = damaged(lambda _: None, with_weights=False)
    with pytest.raises(GraphError, match=r"its weights file model.onnx.data is not beside it"):
        build_engine(path, tmp_path / "engine", rtx())


def test_weights_file_that_is_cut_short_is_told_with_the_weight(damaged, tmp_path):
    path = damaged(lambda _: None)
    os.truncate(tmp_path / "model.onnx.data", 100)
    with pytest.raises(EngineError, match=r"cannot read the weights wte.weight: .*file size=100"):
        build_engine(path, tmp_path / "engine", rtx())


def test_exported_folder_that_was_changed_is_refused(tmp_path):
    shutil.copytree(small_graph("fp16"), tmp_path / "changed")
    with (tmp_path / "changed" / "model.onnx.data").open("r+b") as file:
        file.write(b"\x00\x3c")
    with pytest.raises(GraphError, match=r"model.onnx.data is not the file that export.json rec"):
        build_engine(tmp_path / "changed", tmp_path / "engine", rtx())


@pytest.mark.parametrize("missing", ["model.onnx.data", "config.json", "export.json"])
def test_incomplete_folder_is_refused(tmp_path, missing):
    shutil.copytree(small_graph("fp16"), tmp_path / "folder")
    (tmp_path / "folder" / missing).unlink()
    with pytest.raises(GraphError, match=f"is not an exported folder: it has no {missing}"):
        build_engine(tmp_path / "folder", tmp_path / "engine", rtx())


@pytest.mark.parametrize("key", ["format", "path", "sha256"])
def test_record_that_does_not_name_its_checkpoint_is_damaged(tmp_path, key):
    folder = tmp_path / "folder"
    shutil.copytree(small_graph("fp32"), folder)
    record = json.loads((folder / "export.json").read_text())
    del record["checkpoint"][key]
    (folder / "export.json").write_text(json.dumps(record))
    with pytest.raises(GraphError, match=f"export.json is damaged: .*{key}"):
        build_engine(folder, tmp_path / "engine", rtx(dtype="fp16"))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("graph", {"kv_cache": True}, r"is a graph already: export it with `.* --kv-cache`"),
        ("checkpoint", {"capacity": 8}, "give the graph one with --kv-cache"),
    ],
)
def test_cache_that_would_not_be_there_is_refused(tmp_path, source, options, message):
    opened = random_checkpoint("andrea-nano", 3, config=SMALL)
    with pytest.raises(EngineError, match=message) as caught:
        build_engine(
            small_graph("fp16") if source == "graph" else opened, tmp_path / "e", rtx(**options)
        )
    assert "partial" not in str(caught.value)  # no path that is gone when it is read


def test_engine_as_a_source_is_refused(tmp_path):
    build_engine(small_graph("fp16"), tmp_path / "engine", rtx())
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

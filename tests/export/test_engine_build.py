"""Real engines, built by TensorRT-RTX without a GPU: what comes out."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from engine_graphs import SMALL, SMALL_OPS, names, rtx, small_graph

from andrea_export.engine import build_engine
from andrea_export.errors import EngineError, OutputError

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX: pip install 'andrea-export[rtx]'")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_engine_folder_holds_engine_sidecar_network_and_config(tmp_path):
    engine = build_engine(small_graph("fp16"), tmp_path / "engine", rtx())
    assert names(engine.path) == ["config.json", "engine.json", "model.engine", "network.json"]
    sidecar = json.loads((engine.path / "engine.json").read_text())
    assert sidecar["sha256"]["model.engine"] == sha256(engine.engine_path)
    assert sidecar["sha256"]["network.json"] == sha256(engine.path / "network.json")
    assert sidecar["graph"]["sha256"] == {
        name: sha256(small_graph("fp16") / name) for name in ("model.onnx", "model.onnx.data")
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
def test_precision_of_the_graph_is_the_precision_of_the_network(tmp_path, dtype, type_):
    engine = build_engine(small_graph(dtype), tmp_path / "engine", rtx(compute_capability="12.0"))
    assert engine.precision == dtype
    products = [x for x in engine.read_network() if x.type == "MATRIX_MULTIPLY"]
    # q, k, v, scores, context, o, fc1, fc2 in each block, and the head.
    assert len(products) == SMALL.n_layer * 8 + 1
    assert {product.outputs[0].dtype for product in products} == {type_}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_norms_compute_their_statistics_in_float32(tmp_path, dtype):
    engine = build_engine(small_graph(dtype), tmp_path / "engine", rtx())
    norms = [x for x in engine.read_network() if x.type == "NORMALIZATION"]
    assert len(norms) == 2 * SMALL.n_layer + 1
    assert {norm.outputs[0].dtype for norm in norms} == {"FLOAT"}


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "12.1", "8.9,12.0"])
def test_engine_is_built_for_every_capability_that_rtx_knows(tmp_path, capability):
    engine = build_engine(small_graph("fp16"), tmp_path / "e", rtx(compute_capability=capability))
    assert engine.sidecar["compute_capabilities"] == capability.split(",")
    assert engine.sidecar["bytes"] > 0


def test_manual_names_every_key_of_the_sidecar(tmp_path):
    engine = build_engine(small_graph("fp16"), tmp_path / "engine", rtx())
    manual = (Path(__file__).parents[2] / "docs" / "trt.md").read_text("utf-8")
    table = manual.partition("### `engine.json`")[2].partition("\n## ")[0]
    assert set(engine.sidecar) <= set(re.findall(r"`(\w+)`", table))


def test_plain_onnx_file_is_built_as_it_is(tmp_path):
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(small_graph("fp16") / name, tmp_path / name)
    engine = build_engine(tmp_path / "model.onnx", tmp_path / "engine", rtx(sequence="1:8:16"))
    assert (engine.precision, engine.config) == ("fp16", None)
    assert engine.sidecar["graph"]["export"] is None
    assert set(engine.sidecar["graph"]["sha256"]) == {"model.onnx", "model.onnx.data"}


def test_cache_is_frozen_at_the_context_length_with_a_profile_for_single_tokens(tmp_path):
    engine = build_engine(small_graph("fp16", kv_cache=True), tmp_path / "engine", rtx())
    assert engine.sidecar["capacity"] == SMALL.context_length
    shapes = {i["name"]: i["shape"] for i in engine.sidecar["inputs"]}
    assert shapes["past_key_values.1.value"] == ["batch", 2, 24, 32]
    tokens, prompts = engine.sidecar["profiles"]
    assert tokens["input_ids"] == {"min": [1, 1], "opt": [1, 1], "max": [8, 1]}
    assert prompts["input_ids"] == {"min": [1, 1], "opt": [1, 24], "max": [8, 24]}
    assert prompts["past_key_values.0.key"]["max"] == [8, 2, 24, 32]
    updates = [x for x in engine.read_network() if x.type == "KV_CACHE_UPDATE"]
    assert len(updates) == 2 * SMALL.n_layer


def test_cache_takes_the_capacity_that_was_asked_for(tmp_path):
    source = small_graph("fp16", kv_cache=True)
    engine = build_engine(source, tmp_path / "engine", rtx(capacity=16))
    assert engine.sidecar["capacity"] == 16
    assert engine.sidecar["profiles"][1]["input_ids"]["max"] == [8, 16]


def test_attention_in_fp32_is_allowed_to_decompose_and_so_builds(tmp_path):
    engine = build_engine(small_graph("fp32", opset=24), tmp_path / "engine", rtx())
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
        (
            {},
            {"batch": "1:1:4", "profiles": ("input_ids=1x1:1x8:8x24",)},
            "axis batch is 1:1:4 in --batch and 1:1:8 in input_ids: one axis has one range",
        ),
        ({}, {"compute_capability": "9.0"}, r"'9.0' is not .*: 7.5, 8.0, 8.6, 8.9, 12.0, 12.1"),
        ({}, {"compute_capability": None}, "no GPU here to build for: name the one"),
        ({}, {"strip_weights": True}, "strips weights only on a machine with a GPU"),
        ({}, {"plugins": "on"}, "TensorRT-RTX does not take --plugins on"),
        ({}, {"workspace_bytes": 1}, "cannot build the engine: .*workspace"),
    ],
)
def test_impossible_builds_are_refused_and_leave_nothing(tmp_path, source, options, message):
    with pytest.raises(EngineError, match=message):
        build_engine(small_graph("fp16", **source), tmp_path / "engine", rtx(**options))
    assert names(tmp_path) == []


def test_full_disk_is_told_and_nothing_is_left(full_disk):
    with pytest.raises(OutputError, match=r"engine cannot be written: the disk is full"):
        build_engine(small_graph("fp16"), full_disk / "engine", rtx())
    assert names(full_disk) == []

"""Building as a user meets it: outputs, interruption, the command."""

import json
import signal
import subprocess
import sys
import time

import pytest
from engine_graphs import names, rtx, small_graph
from onnx import TensorProto, helper

from andrea_export.cli import run
from andrea_export.engine import build_engine, open_engine
from andrea_export.engine.child import Child
from andrea_export.engine.gpus import Gpu, Machine
from andrea_export.engine.request import BuildRequest
from andrea_export.errors import EngineError, OutputError
from andrea_export.graph import GraphOptions, export_graph
from andrea_model import AndreaConfig, random_checkpoint

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX: pip install 'andrea-export[rtx]'")


def test_older_engine_is_replaced_only_with_force(tmp_path):
    build_engine(small_graph("fp16"), tmp_path / "engine", rtx())
    with pytest.raises(OutputError, match="exists"):
        build_engine(small_graph("fp16"), tmp_path / "engine", rtx())
    build_engine(small_graph("fp16"), tmp_path / "engine", rtx(sequence="4"), force=True)
    assert open_engine(tmp_path / "engine").sidecar["options"]["sequence"] == "4"


def test_progress_grows_up_to_its_end(tmp_path):
    seen = []
    build_engine(
        small_graph("fp16"), tmp_path / "e", rtx(), progress=lambda *pair: seen.append(pair)
    )
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


def test_gpu_that_rtx_does_not_know_is_refused_with_the_other_flavor(tmp_path, monkeypatch):
    h200 = Machine((Gpu("H200", "9.0", 1 << 37),), "13.0")
    for module in ("build", "planning"):
        monkeypatch.setattr(f"andrea_export.engine.{module}.machine", lambda: h200)
    with pytest.raises(EngineError, match=r"'9.0' is not .* --flavor tensorrt, builds for any"):
        build_engine(small_graph("fp16"), tmp_path / "engine", rtx(compute_capability=None))


def test_command_prints_json_alone_and_a_summary_beside_it(tmp_path, capsys):
    command = ["trt", str(small_graph("fp16")), "-o", str(tmp_path / "engine"), "--json"]
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--layout", "head=third"),
        ("--config", "config.json"),
        ("--set", "n_layer=3"),
        ("--tokenizer", "tokenizer.json"),
    ],
)
def test_option_for_checkpoints_is_refused_for_a_graph(tmp_path, capsys, option, value):
    command = ["trt", str(small_graph("fp16")), "-o", str(tmp_path / "e"), option, value]
    assert run([*command, "--flavor", "rtx", "--compute-capability", "8.9"]) == 2
    assert f"{option} is for checkpoints, and" in capsys.readouterr().err
    assert names(tmp_path) == []


@pytest.mark.parametrize("option", ["--batch", "--sequence"])
def test_empty_range_is_refused_and_not_taken_for_none(tmp_path, capsys, option):
    command = ["trt", str(small_graph("fp16")), "-o", str(tmp_path / "e"), option, ""]
    assert run([*command, "--flavor", "rtx", "--compute-capability", "8.9"]) == 2
    assert f"{option} takes MIN:OPT:MAX or one number, not ''" in capsys.readouterr().err


def test_graph_without_inputs_is_built_and_summed_up(tmp_path, capsys):
    weights = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1, 2, 3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])
    node = helper.make_node("MatMul", ["w", "w"], ["y"])
    graph = helper.make_graph([node], "g", [], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "constant.onnx").write_bytes(model.SerializeToString())
    command = ["trt", str(tmp_path / "constant.onnx"), "-o", str(tmp_path / "e"), "--json"]
    assert run([*command, "--flavor", "rtx", "--compute-capability", "8.9"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["inputs"] == []
    assert "profiles: no inputs" in printed.err


def test_output_that_cannot_be_written_is_told_before_the_build(tmp_path, capsys):
    (tmp_path / "file").touch()
    command = ["trt", str(small_graph("fp16")), "-o", str(tmp_path / "file" / "engine")]
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

"""Looking into graphs and engines without a GPU."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from onnx import TensorProto, helper

from andrea_export.cli import run
from andrea_export.engine import EngineOptions, build_engine
from andrea_export.errors import EngineError, GraphError, InputError
from andrea_export.graph import GraphOptions, export_graph
from andrea_export.inspection import Inspection, Layer, inspect_path, picture
from andrea_export.inspection.inspection import part_of, size_text
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.parameters import count_parameters

CONFIG = AndreaConfig(vocab_size=97, context_length=24, d_model=64, n_layer=3, n_head=2)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    checkpoint = random_checkpoint("andrea-nano", 3, config=CONFIG)
    path = tmp_path_factory.mktemp("inspect") / "graph"
    return export_graph(checkpoint, path, GraphOptions(dtype="fp16", kv_cache=True)).path


@pytest.fixture(scope="module")
def engine(graph):
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    options = EngineOptions(flavor="rtx", compute_capability="8.9")
    return build_engine(graph, graph.parent / "engine", options).path


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("wte.weight", "embedding"),
        ("blocks.11.attn.q/heads", "blocks.11.attn"),
        ("blocks.0.norm1", "blocks.0.norm1"),
        ("blocks.2.mlp.fc1.bias", "blocks.2.mlp"),
        ("present.1.key", "blocks.1.attn"),
        ("norm_f.weight", "norm_f"),
        ("head/transposed", "head"),
        ("logits", "head"),
        ("mask/seen", "positions and mask"),
        ("ONNXTRT_castHelper_7", "added by the parser"),
        ("(Unnamed Layer* 87) [Unary]", "added by the parser"),
        ("model.layers.0.self_attn", "other"),
    ],
)
def test_names_tell_the_part_of_the_model(name, part):
    assert part_of(name) == part


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (512, "512 B"), (1500, "1.5 kB"), (655_616, "0.66 MB")]
)
def test_sizes_are_read_in_powers_of_1000(size, text):
    assert size_text(size) == text


def test_weights_of_a_graph_are_those_of_the_model(graph):
    inspection = inspect_path(graph)
    parts = {part.name: part for part in inspection.parts()}
    assert sum(part.parameters for part in parts.values()) == count_parameters(CONFIG)
    d, mlp = CONFIG.d_model, CONFIG.mlp_dim
    assert parts["blocks.1.attn"].parameters == 4 * d * d
    assert parts["blocks.1.mlp"].parameters == 2 * d * mlp + mlp + d
    assert parts["embedding"].weight_bytes == 2 * (97 + 24) * d
    assert parts["head"].parameters == 0  # tied: it is the embedding


def test_graph_says_which_form_each_custom_op_would_take(graph, monkeypatch):
    def forms():
        return inspect_path(graph).custom_ops["AndreaBiasGelu"]

    monkeypatch.setattr("andrea_export.inspection.graph._library", lambda: None)
    functions = {"ONNX Runtime": "function", "TensorRT": "function", "TensorRT-RTX": "function"}
    assert forms() == {"nodes": 3, "forms": functions}
    monkeypatch.setattr("andrea_export.inspection.graph._library", lambda: graph)
    assert forms()["forms"] == {**functions, "TensorRT": "plugin"}


@pytest.mark.parametrize(
    ("domain", "form"), [("com.microsoft", "not known"), ("andrea", "none: it cannot run")]
)
def test_op_without_a_definition_is_judged_only_if_it_is_ours(tmp_path, domain, form):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    node = helper.make_node("AndreaGelu", ["x"], ["y"], domain=domain, plugin_namespace="other")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    (tmp_path / "foreign.onnx").write_bytes(model.SerializeToString())
    inspection = inspect_path(tmp_path / "foreign.onnx")
    assert set(inspection.custom_ops["AndreaGelu"]["forms"].values()) == {form}
    assert inspection.notes == ()  # nothing of definitions that are not there


def test_parts_come_in_the_order_of_the_model(graph):
    names = [part.name for part in inspect_path(graph).parts()]
    assert names[0] == "embedding"
    assert names[2:6] == ["blocks.0.norm1", "blocks.0.attn", "blocks.0.norm2", "blocks.0.mlp"]
    assert names[-2:] == ["norm_f", "head"]


def test_engine_is_read_without_a_gpu(engine):
    inspection = inspect_path(engine)
    assert inspection.kind == "engine"
    assert inspection.facts["precision"] == "fp16"
    # Two caches a block, float16: heads × capacity × head_dim.
    assert inspection.facts["cache memory"] == f"{3 * 2 * 2 * 2 * 24 * 32 / 1e6:.1f} MB a row"
    assert inspection.custom_ops["AndreaAddLayerNorm"] == {"nodes": 6, "forms": {"function": 6}}
    parts = {part.name: part for part in inspection.parts()}
    assert parts["blocks.1.mlp"].parameters == 2 * 64 * 256 + 256 + 64
    assert sum(part.parameters for part in parts.values()) == count_parameters(CONFIG)
    assert parts["blocks.1.norm2"].dtypes["FLOAT"] > 0  # statistics in float32
    assert set(parts["blocks.1.attn"].dtypes) == {"HALF"}
    assert len(inspection.profiles) == 2
    assert any("opens only on the GPU" in line for line in inspection.notes)


@pytest.mark.parametrize(
    "name", ["blocks.0.norm1", "input_ids", "AndreaLayerNorm", "batch", "wpe.weight", "andrea"]
)
def test_name_that_is_no_text_is_told(graph, tmp_path, name):
    data = (graph / "model.onnx").read_bytes()
    damaged = data.replace(name.encode(), b"\xff" + name[1:].encode())
    assert damaged != data
    (tmp_path / "damaged.onnx").write_bytes(damaged)
    with pytest.raises(EngineError, match="the file is damaged: a name in it is no text"):
        inspect_path(tmp_path / "damaged.onnx")


@pytest.mark.parametrize("data", [b"", b"\x08\x09"], ids=["no bytes", "a version alone"])
def test_file_without_a_graph_is_refused(tmp_path, data):
    (tmp_path / "empty.onnx").write_bytes(data)
    with pytest.raises(EngineError, match=r"empty.onnx cannot be read as ONNX: it is empty or"):
        inspect_path(tmp_path / "empty.onnx")


class Page(HTMLParser):
    """Collects the tags that are open at the end, and every address a page refers to."""

    VOID = frozenset({"meta", "br", "link", "img", "hr"})

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_picture_is_one_page_that_needs_nothing_else(graph):
    page = Page(picture(inspect_path(graph)))
    assert page.open == []
    assert page.addresses == []
    assert not page.tags & {"script", "link", "img", "iframe"}


def test_equal_blocks_are_drawn_once(engine):
    text = picture(inspect_path(engine))
    # The first norm has no addition in it, so that block 0 differs.
    assert re.findall(r"<p>(block[^<]*)</p>", text) == [
        "block 0",
        "blocks 1 to 2: 2 × the same",
    ]
    assert "AndreaBiasGelu: activation" in text


def test_picture_of_a_foreign_graph_promises_no_way_from_ids_to_logits():
    layer = Layer("/conv1/Conv", "Conv", "other", ("float",))
    text = picture(Inspection("graph", "x", {}, (), (), (), (layer,), {}, {}))
    assert re.findall(r"<h2>([^<]*)</h2>", text) == ["Layers"]


def test_names_in_a_file_cannot_put_markup_into_the_picture():
    layer = Layer("<script>", "<b>Op</b>", "other", ("<i>",))
    hostile = Inspection("graph", "<a>", {"<x>": "<y>"}, (), (), (), (layer,), {}, {})
    text = picture(hostile)
    assert "<script>" not in text
    assert "<b>Op" not in text
    assert "<x>" not in text


def test_commands_print_json_alone_and_write_the_picture(graph, tmp_path, capsys):
    assert run(["inspect", str(graph), "--json", "--html", str(tmp_path / "x.html")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["kind"] == "graph"
    assert {"facts", "inputs", "outputs", "parts", "ops", "layers", "custom_ops"} <= set(result)
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")


def test_tables_name_parts_and_custom_ops(engine, capsys):
    assert run(["inspect", str(engine), "--layers"]) == 0
    out = capsys.readouterr().out
    assert "blocks.2.attn" in out
    assert "3 as function" in out
    assert "KV_CACHE_UPDATE" in out


def test_what_is_neither_graph_nor_engine_is_refused(tmp_path, capsys):
    with pytest.raises(InputError, match="does not exist"):
        inspect_path(tmp_path / "nothing")
    with pytest.raises(InputError, match="neither an exported folder, an ONNX file nor an engine"):
        inspect_path(tmp_path)
    assert run(["inspect", str(tmp_path)]) == 2
    assert "andrea-export info" in capsys.readouterr().err


def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\x7fELF" * 10)
    with pytest.raises(EngineError, match="cannot be read as ONNX"):
        inspect_path(tmp_path / "bad.onnx")
    with pytest.raises(GraphError, match="does not exist"):
        inspect_path(tmp_path / "missing.onnx")


def test_engine_without_the_record_of_its_network_is_refused(engine, tmp_path):
    for name in ("engine.json", "model.engine", "config.json"):
        (tmp_path / name).write_bytes((engine / name).read_bytes())
    with pytest.raises(EngineError, match=r"network.json cannot be read"):
        inspect_path(tmp_path)


def test_engine_without_its_weights_is_told_as_that(engine, tmp_path):
    assert not any("stripped" in line for line in inspect_path(engine).notes)
    shutil.copytree(engine, tmp_path / "stripped")
    sidecar = json.loads((engine / "engine.json").read_text())
    sidecar["options"]["strip_weights"] = True
    (tmp_path / "stripped" / "engine.json").write_text(json.dumps(sidecar))
    notes = inspect_path(tmp_path / "stripped").notes
    assert any("were stripped, and `andrea-export refit`" in line for line in notes)


def test_picture_that_cannot_be_written_is_told(graph, tmp_path, capsys):
    assert run(["inspect", str(graph), "--html", str(tmp_path / "no" / "x.html")]) == 2
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_shapes_are_printed_in_plain_brackets(tiny_folder, capsys):
    assert run(["inspect", str(tiny_folder)]) == 0
    assert "[batch, sequence, 97]" in capsys.readouterr().out

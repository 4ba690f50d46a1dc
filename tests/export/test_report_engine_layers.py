"""An engine in a report: its layers as far as they are seen, and how to see them."""

import json
from pathlib import Path

import jsonschema
import planted_faults as faults
import pytest

from andrea_export.engine.layer_tensors import LayerTensors
from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import BackendError, InputError
from andrea_export.graph import export_graph, open_graph
from andrea_export.layer_names import tap_names
from andrea_export.report import candidates
from andrea_export.report.candidates import CandidateSpec
from andrea_export.report.make import ReportOptions, make_report
from andrea_export.report.markdown import render_markdown
from andrea_export.report.taps import OnnxTaps
from andrea_export.session import open_session
from andrea_model import AndreaConfig

pytest.importorskip("onnxruntime")

CONFIG = AndreaConfig(259, 24, 32, 2, 4)
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report-schema.json").read_text())
OPTIONS = ReportOptions(windows=2, tokens=20)
SEEN = ("embedding", "blocks.0.attn_sum", "blocks.1.norm1", "blocks.1.mlp_sum", "logits")
ALL = len(tap_names(CONFIG))


class SomeTaps:
    """The taps of a graph, as an engine that has fused most of them away would show them."""

    unseen = "the others are fused away"

    def __init__(self, graph, names):
        self._taps, self._names = OnnxTaps(graph), names

    def __call__(self, ids):
        return {name: value for name, value in self._taps(ids).items() if name in self._names}


@pytest.fixture(scope="module")
def checkpoint():
    return faults.lively(CONFIG)


@pytest.fixture(scope="module")
def honest(checkpoint, tmp_path_factory):
    return export_graph(checkpoint, tmp_path_factory.mktemp("engine") / "honest")


@pytest.fixture
def report(checkpoint, monkeypatch):
    """A report on an engine that computes what `graph` does: report(graph, form="unfused")."""

    def make(graph, form, names=SEEN, options=OPTIONS):
        keys = ("version", "compute_capabilities", "sha256", "options", "custom_ops")
        sidecar = dict.fromkeys(keys) | {"flavor": "rtx", "precision": "fp32"}
        if form is not None:
            marked = None if form == "unfused" else ALL - 1
            sidecar["layer_tensors"] = LayerTensors(form, ALL - 1, marked).to_dict()
        engine = EngineFolder(graph.path, sidecar, CONFIG)
        taps = names if callable(names) else lambda: SomeTaps(graph, names)
        monkeypatch.setattr(candidates, "open_source", lambda _: engine)
        monkeypatch.setattr(candidates, "open_session", lambda *_: open_session(graph))
        monkeypatch.setattr(candidates, "_engine_taps", lambda _: taps())
        return make_report(checkpoint, [CandidateSpec("ENGINE")], options)

    return make


def way_of(report):
    ((way,),) = (candidate.ways for candidate in report.candidates)
    return way


def test_taps_that_are_seen_are_judged_and_the_others_counted(report, honest):
    found = report(honest, "unfused")
    way = way_of(found)
    assert [row.name for row in way.layers.rows] == list(SEEN)
    assert way.layers.departure is None
    assert way.notes == (f"layers: seen 5 of {ALL} taps (the others are fused away)",)
    assert found.exit_code == 0
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    jsonschema.validate(values, SCHEMA)
    assert values["candidates"][0]["facts"]["layer_tensors"]["form"] == "unfused"


def test_tap_that_is_not_seen_is_absent_and_no_zero(report, honest):
    seen = {row.name: row.rms_error for row in way_of(report(honest, "unfused")).layers.rows}
    whole = way_of(report(honest, "unfused", tap_names(CONFIG))).layers
    assert seen == {row.name: row.rms_error for row in whole.rows if row.name in SEEN}
    assert set(whole.order) - set(seen) == set(tap_names(CONFIG)) - set(SEEN)


def test_engine_that_shows_every_tap_has_nothing_to_count(report, honest):
    way = way_of(report(honest, "named", tap_names(CONFIG)))
    assert way.layers.unseen == ()
    (note,) = way.notes
    assert note.startswith("built with --layer-tensors named, which can keep kernels from fusing")


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (tap_names(CONFIG), "at blocks.1.attn.context"),
        (SEEN, "between blocks.1.norm1 and blocks.1.mlp_sum (9 taps between them are not seen)"),
        (("logits",), f"at logits or before ({ALL - 1} taps before it are not seen)"),
    ],
)
def test_first_tap_out_of_tolerance_names_what_may_lie_before_it(
    report, honest, tmp_path, names, place
):
    faults.spoiled(honest, tmp_path / "spoiled", faults.attention_scale(1, 1.2).plant)
    found = report(open_graph(tmp_path / "spoiled"), "unfused", names)
    assert found.exit_code == 1
    assert f"leaves the model {place}" in way_of(found).layers.departure.message


@pytest.mark.parametrize("names", [SEEN, ("logits",), ("blocks.0.norm2", "logits")])
def test_pages_show_a_part_of_the_taps(report, honest, names):
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    from andrea_export.report.page import render_html

    values = json.loads(json.dumps(report(honest, "unfused", names).to_dict()))
    said = f"seen {len(names)} of {ALL} taps (the others are fused away)"
    assert said in render_html(values)
    assert said in render_markdown(values)


def test_engine_without_layer_tensors_names_the_option(report, honest):
    way = way_of(report(honest, None))
    assert way.layers is None
    assert "`andrea-export trt --layer-tensors unfused`" in way.no_layers
    assert way.notes == ()


def test_engine_whose_layers_cannot_be_opened_is_judged_by_its_logits(report, honest):
    def refuse():
        raise BackendError("no debug tensors here")

    found = report(honest, "named", refuse)
    assert way_of(found).no_layers == "no debug tensors here"
    assert found.exit_code == 0


def test_window_that_the_engine_is_not_built_for_is_a_reason_and_no_end(report, honest):
    class Narrow:
        unseen = ""

        def __call__(self, _ids):
            raise InputError("input_ids of shape 1x20 fits no optimization profile")

    found = report(honest, "named", Narrow)
    assert "fits no optimization profile" in way_of(found).no_layers
    assert found.exit_code == 0

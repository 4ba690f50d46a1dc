"""Layers of engines on a real GPU: what each form shows, and that it is the model's."""

import numpy as np
import pytest
from gpu_engines import CONFIG, FLAVOR_NAMES, MARKS

from andrea_export.engine import EngineOptions, build_engine
from andrea_export.engine.flavors import FLAVORS, is_installed
from andrea_export.graph import GraphOptions, export_graph
from andrea_export.layer_names import LOGITS, tap_names
from andrea_export.report.candidates import CandidateSpec
from andrea_export.report.make import ReportOptions, make_report
from andrea_export.report.taps import TorchTaps
from andrea_export.report.torch_models import BaselineSession
from andrea_export.session import open_session
from andrea_export.session.trt_taps import open_engine_taps
from andrea_model import open_checkpoint, random_checkpoint

pytestmark = MARKS
IDS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (3, 17))
# RMS error relative to the tap's own RMS; torch's own in half precision is a third of it.
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 8e-2}


@pytest.fixture(scope="module")
def checkpoint():
    return random_checkpoint("andrea-nano", 3, config=CONFIG)


@pytest.fixture(scope="module")
def truth(checkpoint):
    return TorchTaps(BaselineSession(checkpoint, "fp32"))(IDS)


@pytest.fixture
def engine(checkpoint, tmp_path):
    """An engine of the small model: engine("rtx", "named", dtype="fp16", kv_cache=True)."""

    def make(name, form, *, dtype="fp32", kv_cache=False, plugins="off"):
        graph = GraphOptions(dtype=dtype, kv_cache=kv_cache)
        folder = export_graph(checkpoint, tmp_path / "graph", graph, force=True).path
        asked = EngineOptions(flavor=name, dtype=dtype, plugins=plugins, layer_tensors=form)
        return build_engine(folder, tmp_path / "engine", asked, force=True)

    return make


def near(found, truth, dtype):
    for tap, value in found.items():
        error = np.sqrt(((value - truth[tap]) ** 2).mean() / (truth[tap] ** 2).mean())
        assert error < TOLERANCE[dtype], tap


@pytest.mark.parametrize("kv_cache", [False, True], ids=["plain", "cache"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("form", ["named", "outputs"])
@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_every_tap_is_told_and_is_that_of_torch(engine, truth, name, form, dtype, kv_cache):
    taps = open_engine_taps(engine(name, form, dtype=dtype, kv_cache=kv_cache))
    for _ in range(2):  # each run has a context of its own
        found = taps(IDS)
    assert set(found) == set(tap_names(CONFIG))
    near(found, truth, dtype)


@pytest.mark.tensorrt
@pytest.mark.skipif(not is_installed(FLAVORS["tensorrt"]), reason="TensorRT is not installed")
@pytest.mark.parametrize("form", ["named", "outputs"])
def test_outputs_of_plugins_are_taps_too(engine, truth, form):
    found = open_engine_taps(engine("tensorrt", form, dtype="fp16", plugins="on"))(IDS)
    assert set(found) == set(tap_names(CONFIG))
    near(found, truth, "fp16")


@pytest.mark.parametrize("kv_cache", [False, True], ids=["plain", "cache"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_unfused_tensors_that_are_taken_for_taps_are_those_of_torch(
    engine, truth, name, dtype, kv_cache
):
    found = open_engine_taps(engine(name, "unfused", dtype=dtype, kv_cache=kv_cache))(IDS)
    assert LOGITS in found
    near(found, truth, dtype)


@pytest.mark.parametrize("form", ["unfused", "named", "outputs"])
@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_session_over_such_an_engine_gives_the_logits_of_torch(engine, truth, name, form):
    with open_session(engine(name, form)) as session:
        for _ in range(3):  # the second records a CUDA graph, the third replays it
            found = session.forward(IDS)
    np.testing.assert_allclose(found, truth[LOGITS], atol=4e-4, rtol=0)


@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_report_on_the_demo_model_sees_every_named_tap(tmp_path, name):
    demo = open_checkpoint("andrea-nano")
    folder = export_graph(demo, tmp_path / "graph").path
    asked = EngineOptions(flavor=name, plugins="off", layer_tensors="named")
    build_engine(folder, tmp_path / "engine", asked)
    spec = CandidateSpec(str(tmp_path / "engine"))
    report = make_report(demo, [spec], ReportOptions(quick=True))
    (way,) = report.candidates[0].ways
    assert way.layers.unseen == ()
    assert report.exit_code == 0

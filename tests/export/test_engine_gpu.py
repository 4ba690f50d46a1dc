"""Engines on a real GPU: the same model as PyTorch's, whatever built them."""

import numpy as np
import pytest
from gpu_engines import CONFIG, FLAVOR_NAMES, MARKS

from andrea_export.engine import EngineOptions, build_engine
from andrea_export.engine.flavors import FLAVORS, is_installed
from andrea_export.engine.refit import refit_engine
from andrea_export.errors import EngineError, InputError
from andrea_export.graph import GraphOptions, export_graph
from andrea_export.session import open_session
from andrea_model import random_checkpoint

pytestmark = MARKS
# Largest difference of logits from torch in float32: QuACK's tolerances for norms, times four for
# the depth of the model.
TOLERANCE = {"fp32": 4e-4, "fp16": 4e-3, "bf16": 4e-2}


@pytest.fixture(scope="module")
def checkpoint():
    return random_checkpoint("andrea-nano", 3, config=CONFIG)


@pytest.fixture
def engine(checkpoint, tmp_path):
    """An engine of the small model: engine("rtx", dtype="fp16", kv_cache=True, plugins="off")."""

    def make(name, *, dtype="fp32", kv_cache=False, logits="all", **options):
        graph = GraphOptions(dtype=dtype, kv_cache=kv_cache, logits=logits)
        folder = export_graph(checkpoint, tmp_path / "graph", graph, force=True).path
        asked = EngineOptions(flavor=name, dtype=dtype, **{"plugins": "off", **options})
        return build_engine(folder, tmp_path / "engine", asked, force=True)

    return make


@pytest.fixture
def reference(checkpoint):
    with open_session(checkpoint, "torch") as session:
        yield session


@pytest.fixture
def ids():
    return np.random.default_rng(0).integers(0, CONFIG.vocab_size, (3, 17))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_logits_are_those_of_torch(engine, reference, ids, name, dtype):
    with open_session(engine(name, dtype=dtype)) as session:
        for _ in range(3):  # the second records a CUDA graph, the third replays it
            found = session.forward(ids)
    np.testing.assert_allclose(found, reference.forward(ids), atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("logits", ["all", "last"])
@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_steps_over_the_cache_are_those_of_torch(engine, reference, ids, name, logits):
    lengths = np.array([17, 9, 1])
    with open_session(engine(name, kv_cache=True, logits=logits)) as session:
        for runner in (session, reference):
            runner.prefill(ids, lengths)
        for step in range(8):
            np.testing.assert_allclose(session.logits, reference.logits, atol=TOLERANCE["fp32"])
            for runner in (session, reference):
                runner.step(ids[:, step])


@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_second_prompt_remembers_nothing_of_the_first(engine, reference, ids, name):
    with open_session(engine(name, kv_cache=True)) as session:
        session.prefill(ids)
        session.prefill(ids[::-1, :5])
        reference.prefill(ids[::-1, :5])
        np.testing.assert_allclose(session.logits, reference.logits, atol=TOLERANCE["fp32"])


@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_cache_ends_at_its_capacity(engine, ids, name):
    with open_session(engine(name, kv_cache=True, capacity=18)) as session:
        session.prefill(ids)
        session.step(ids[:, 0])
        with pytest.raises(InputError, match="context is full"):
            session.step(ids[:, 0])


@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_batch_beyond_every_profile_is_refused(engine, ids, name):
    with (
        open_session(engine(name, batch="1:1:2")) as session,
        pytest.raises(InputError, match="fits no optimization profile"),
    ):
        session.forward(ids)


@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_types_are_read_back_from_the_built_engine(engine, name):
    assert engine(name, dtype="fp16").sidecar["engine"]["tensor_types"]["HALF"] > 0


@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_damaged_engine_is_refused_before_tensorrt_sees_it(engine, name):
    folder = engine(name)
    plan = bytearray(folder.engine_path.read_bytes())
    plan[len(plan) // 2] ^= 1
    folder.engine_path.write_bytes(plan)
    with pytest.raises(EngineError, match="damaged or was replaced"):
        open_session(folder)


@pytest.mark.parametrize("name", FLAVOR_NAMES)
def test_stripped_engine_runs_again_when_it_is_refitted(engine, reference, ids, name, tmp_path):
    stripped = engine(name, strip_weights=True)
    whole = refit_engine(stripped.path, tmp_path / "graph", tmp_path / "whole")
    with open_session(whole) as session:
        np.testing.assert_allclose(
            session.forward(ids), reference.forward(ids), atol=TOLERANCE["fp32"]
        )


@pytest.mark.tensorrt
@pytest.mark.skipif(not is_installed(FLAVORS["tensorrt"]), reason="TensorRT is not installed")
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_plugins_take_every_custom_op_and_give_the_same_logits(engine, reference, ids, dtype):
    folder = engine("tensorrt", dtype=dtype, plugins="on")
    assert folder.sidecar["custom_ops"] == {
        "AndreaAddLayerNorm": {"plugin": 4},
        "AndreaBiasGelu": {"plugin": 2},
        "AndreaLayerNorm": {"plugin": 1},
    }
    with open_session(folder) as session:
        found = session.forward(ids)
    np.testing.assert_allclose(found, reference.forward(ids), atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.tensorrt
@pytest.mark.skipif(not is_installed(FLAVORS["tensorrt"]), reason="TensorRT is not installed")
def test_timing_cache_is_kept_and_used_again(engine, tmp_path):
    path = tmp_path / "timing.cache"
    engine("tensorrt", timing_cache=path)
    first = path.stat().st_size
    engine("tensorrt", timing_cache=path)
    assert path.stat().st_size >= first > 0

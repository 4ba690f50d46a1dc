"""How ONNX Runtime runs a cached graph: as the model of the file in its own op, or as it is."""

import os

import numpy as np
import onnx
import pytest

from andrea_export.errors import BackendError
from andrea_export.graph import open_graph
from andrea_export.session.onnx_session import CachedOnnxSession
from andrea_export.session.runtime_form import runtime_form
from andrea_model import AndreaConfig

pytest.importorskip("onnxruntime")
CONFIG = AndreaConfig(vocab_size=97, context_length=300, d_model=40, n_layer=2, n_head=5)


@pytest.fixture
def cached(export):
    """An exported folder of CONFIG with a cache, and whatever options."""

    def make(config=CONFIG, **options):
        return export(config, kv_cache=True, **options)[1]

    return make


def node(model, name):
    return next(node for node in model.graph.node if node.name == name)


def attribute(of, name, value):
    of.attribute.append(onnx.helper.make_attribute(name, value))


def leak(model):
    node(model, "mask").op_type = "Less"


def scale(model):
    attribute(node(model, "blocks.1.attn.context"), "scale", 0.34)


def drop_residual(model):
    node(model, "blocks.0.attn.o").input[1] = "blocks.0.attn.q.weight"


def other_epsilon(model):
    for function in model.functions:
        for inner in function.node:
            for found in inner.attribute:
                if found.name == "epsilon":
                    found.CopyFrom(onnx.helper.make_attribute("epsilon", 1e-3))
    for outer in model.graph.node:
        for found in outer.attribute:
            if found.name == "epsilon":
                found.f = 1e-3


def shift_positions(model):
    constant = node(model, "constants.last_position")
    constant.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array(7)))


def initializer(model, name):
    return next(each for each in model.graph.initializer if each.name == name)


def swap_weights(model):
    q = initializer(model, "blocks.0.attn.q.weight")
    k = initializer(model, "blocks.0.attn.k.weight")
    q.name, k.name = k.name, q.name


def weight_elsewhere(model):
    first = initializer(model, "blocks.0.mlp.fc1.weight")
    other = initializer(model, "blocks.1.mlp.fc1.weight")
    for mine, its in zip(first.external_data, other.external_data, strict=True):
        mine.CopyFrom(its)


@pytest.mark.parametrize("ops", ["plugin", "standard"])
@pytest.mark.parametrize("logits", ["all", "last"])
def test_graph_as_it_was_written_has_a_form_with_one_op_for_attention(cached, ops, logits):
    kinds = [node.op_type for node in runtime_form(cached(ops=ops, logits=logits)).graph.node]
    assert kinds.count("GroupQueryAttention") == CONFIG.n_layer
    assert not {"Attention", "TensorScatter"} & set(kinds)


@pytest.mark.parametrize("fault", [leak, scale, drop_residual, other_epsilon, shift_positions])
def test_graph_that_was_changed_runs_as_it_is(cached, fault):
    folder = cached()
    model = onnx.load(folder.model_path, load_external_data=False)
    fault(model)
    onnx.save(model, folder.model_path)
    assert runtime_form(open_graph(folder.path)) is None


@pytest.mark.parametrize("fault", [swap_weights, weight_elsewhere])
def test_weights_are_those_that_the_file_points_at(cached, fault):
    folder = cached()
    model = onnx.load(folder.model_path, load_external_data=False)
    fault(model)
    onnx.save(model, folder.model_path)
    ids = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 9))
    changed = open_graph(folder.path)
    with CachedOnnxSession(changed) as fast, CachedOnnxSession(changed, as_exported=True) as plain:
        np.testing.assert_allclose(fast.forward(ids), plain.forward(ids), atol=1e-5)


@pytest.mark.parametrize("other", [{"n_layer": 3}, {"n_layer": 1}, {"tied_head": False}])
def test_graph_of_another_model_than_its_config_runs_as_it_is(cached, other):
    folder = cached()
    (folder.path / "config.json").write_text(CONFIG.replace(**other).to_json(), "utf-8")
    assert runtime_form(open_graph(folder.path)) is None


def no_name(weight):
    weight.name = ""


def no_number(weight):
    next(entry for entry in weight.external_data if entry.key == "offset").value = "abc"


def no_type(weight):
    weight.data_type = 99


@pytest.mark.parametrize("fault", [no_name, no_number, no_type])
def test_damaged_weights_are_told_in_the_words_of_onnx_runtime(cached, fault):
    folder = cached()
    model = onnx.load(folder.model_path, load_external_data=False)
    fault(initializer(model, "blocks.0.norm1.weight"))
    onnx.save(model, folder.model_path)
    with pytest.raises(BackendError, match="ONNX Runtime cannot load it"):
        CachedOnnxSession(open_graph(folder.path))


def linked(folder, target, names):
    """The files `names` of a folder as links to where they really lie, under other names."""
    target.mkdir()
    for name in names:
        (folder.path / name).rename(target / f"{name}-blob")
        (folder.path / name).symlink_to(target / f"{name}-blob")
    return open_graph(folder.path)


def test_folder_of_links_as_a_cache_of_downloads_makes_them_runs_fused(cached, tmp_path):
    ids = np.arange(12).reshape(2, 6)
    folder = linked(cached(), tmp_path / "blobs", ["model.onnx", "model.onnx.data"])
    with CachedOnnxSession(folder) as fast, CachedOnnxSession(folder, as_exported=True) as plain:
        assert "fused" in fast.label
        np.testing.assert_allclose(fast.forward(ids), plain.forward(ids), atol=1e-5)
        assert fast.first_nonfinite(ids) is None  # it runs over a model in memory as well


@pytest.mark.parametrize("as_exported", [False, True])
def test_weights_that_lead_out_of_the_folder_alone_are_refused(cached, tmp_path, as_exported):
    folder = linked(cached(), tmp_path / "blobs", ["model.onnx.data"])
    with pytest.raises(BackendError, match="escapes model directory"):
        CachedOnnxSession(folder, as_exported=as_exported)


def test_path_that_is_not_utf8_is_refused_readably(cached):
    folder = cached()
    path = folder.path.rename(folder.path.parent / os.fsdecode(b"caf\xe9"))
    with pytest.raises(BackendError, match="ONNX Runtime cannot load it"):
        CachedOnnxSession(open_graph(path))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (CONFIG, {"dtype": "fp16"}),
        (CONFIG.replace(d_model=30), {}),  # heads of 6, which the op refuses
    ],
)
def test_graph_that_the_op_cannot_take_runs_as_it_is(cached, config, options):
    folder = cached(config, **options)
    assert runtime_form(folder) is None
    with CachedOnnxSession(folder) as session:
        session.prefill(np.zeros((1, 3), np.int64))
        assert "fused" not in session.label


def test_graph_without_a_cache_has_no_such_form(tiny_folder):
    assert runtime_form(open_graph(tiny_folder)) is None


def test_both_forms_agree_over_prompts_of_all_lengths_and_growing_caches(cached):
    ids = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (3, 300))
    folder = cached()
    with CachedOnnxSession(folder) as fast, CachedOnnxSession(folder, as_exported=True) as plain:
        for session in (fast, plain):
            session.prefill(ids[:, :120], np.array([1, 77, 120]))
        for step in range(120, 270):
            active = np.array([True, step % 3 > 0, True])
            for session in (fast, plain):
                session.step(ids[:, step], active)
            np.testing.assert_allclose(fast.logits[active], plain.logits[active], atol=2e-6)

"""Swapping parts for exact ones: what is put in, what it brings back, and what it costs."""

import numpy as np
import onnx
import planted_faults as faults
import pytest

from andrea_export.graph import GraphOptions, export_graph, open_graph
from andrea_export.report.bisect import bisect_candidate
from andrea_export.report.swapping import KINDS, Part, Swapper, part_of
from andrea_export.report.torch_models import reference_session
from andrea_export.session import open_session
from andrea_model import AndreaConfig

CONFIG = AndreaConfig(vocab_size=97, context_length=24, d_model=40, n_layer=3, n_head=5)
IDS = np.random.default_rng(0).integers(0, 97, (1, 20))


@pytest.fixture(scope="module")
def checkpoint():
    return faults.lively(CONFIG)


@pytest.fixture(scope="module")
def place(checkpoint, tmp_path_factory):
    place = tmp_path_factory.mktemp("bisect")
    for name, options in (
        ("fp32", {}),
        ("fp16", {"dtype": "fp16"}),
        ("bf16", {"dtype": "bf16", "ops": "standard"}),
        ("cache", {"dtype": "fp16", "kv_cache": True}),
        ("op", {"opset": 23}),
    ):
        export_graph(checkpoint, place / name, GraphOptions(**options))
    return place


def bisect(checkpoint, folder, target=1e-5):
    with reference_session(checkpoint) as reference:
        return bisect_candidate(checkpoint, folder, IDS, reference, target)


def best(result, kind):
    return next(swap["part"] for swap in result["swaps"] if swap["kind"] == kind)


@pytest.mark.parametrize(
    ("fault", "kind", "block"),
    [
        (faults.erf_gelu(1), "activation", "blocks.1"),
        (faults.norm_epsilon("blocks.2.norm1", 1e-2), "norm", "blocks.2"),
        (faults.attention_scale(0, 1.1), "attention", "blocks.0"),
        (faults.transposed(2, "v"), "projection", "blocks.2"),
    ],
    ids=str,
)
def test_the_part_with_the_fault_brings_the_model_back(
    checkpoint, place, tmp_path, fault, kind, block
):
    graph = open_graph(place / "fp32")
    faults.spoiled(graph, tmp_path / "bad", fault.plant)
    result = bisect(checkpoint, tmp_path / "bad")
    assert (best(result, "op kind"), best(result, "block")) == (kind, block)
    first = result["swaps"][0]
    assert first["share"] < 0.01
    assert f"brings the model back for {kind}" in result["sentence"]


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "cache", "op"])
def test_all_parts_together_are_the_float32_model(checkpoint, place, name):
    swapper = Swapper(checkpoint, open_graph(place / name))
    logits = swapper.run(IDS, Part(frozenset(KINDS)))
    exact = open_session(checkpoint, dtype="fp64").forward(IDS)
    assert np.abs(logits - exact).max() < 2e-5 * np.abs(exact).max()


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "cache", "op"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_part_in_its_own_dtype_changes_nothing(checkpoint, place, name, kind):
    graph = open_graph(place / name)
    swapper = Swapper(checkpoint, graph)
    before = swapper.run(IDS)
    after = swapper.run(IDS, Part(frozenset({kind})), graph.options.dtype)
    tolerance = 1e-5 if graph.options.dtype == "fp32" else 0
    assert np.abs(after - before).max() <= tolerance


@pytest.mark.parametrize("kind", ["norm", "attention", "projection", "activation"])
def test_a_part_in_float32_leaves_less_error_in_half_precision(checkpoint, place, kind):
    result = bisect(checkpoint, place / "bf16")
    (swap,) = (each for each in result["swaps"] if each["part"] == kind and each["dtype"] == "fp32")
    assert swap["share"] < 1.1


def test_the_set_for_a_target_reaches_it_and_nothing_in_it_is_spare(checkpoint, place):
    whole = bisect(checkpoint, place / "fp16")["rms_error"]
    target = whole / 3
    result = bisect(checkpoint, place / "fp16", target)
    kept = result["keep_float32"]
    swapper = Swapper(checkpoint, open_graph(place / "fp16"))
    exact = open_session(checkpoint, dtype="fp64").forward(IDS)

    def error(kinds):
        difference = swapper.run(IDS, Part(frozenset(kinds))) - exact
        return np.sqrt((difference**2).mean() / (exact**2).mean())

    assert kept["rms_error"] == pytest.approx(error(kept["kinds"]), rel=1e-6)
    assert kept["rms_error"] <= target < whole
    for spare in kept["kinds"]:
        assert error([kind for kind in kept["kinds"] if kind != spare]) > target


def test_the_cost_is_two_bytes_a_weight_and_a_share_of_the_multiplications(checkpoint, place):
    swapper = Swapper(checkpoint, open_graph(place / "fp16"))
    d, layers = 40, 3
    per_block = 4 * d * d + 2 * 4 * d * d
    bytes_more, share = swapper.cost(Part(frozenset({"projection"})))
    biases = 4 * d + d
    assert bytes_more == 2 * layers * (per_block + biases)
    assert share == pytest.approx(layers * per_block / (layers * per_block + 97 * d))
    assert swapper.cost(Part(frozenset({"activation"}))) == (0, 0.0)
    one, _ = swapper.cost(Part(frozenset(KINDS), frozenset({1})))
    assert one == 2 * (per_block + biases + 4 * d)


def test_a_target_that_is_met_already_needs_nothing(checkpoint, place):
    result = bisect(checkpoint, place / "fp16", 0.5)
    assert result["keep_float32"]["kinds"] == []
    assert "Nothing needs float32" in result["sentence"]


def test_a_target_beyond_float32_has_no_set(checkpoint, place):
    result = bisect(checkpoint, place / "fp16", 1e-12)
    assert result["keep_float32"] is None


def test_an_overflow_is_brought_back_by_its_part(checkpoint, place, tmp_path):
    faults.spoiled(open_graph(place / "fp16"), tmp_path / "bad", faults.overflow(1).plant)
    result = bisect(checkpoint, tmp_path / "bad")
    assert result["rms_error"] is None
    assert best(result, "block") == "blocks.1"
    assert best(result, "op kind") == "projection"


def test_a_graph_without_the_names_is_left_alone_with_a_reason(checkpoint, place, tmp_path):
    def rename(graph):
        for node in graph.graph.node:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == "blocks.1.attn_sum":
                        names[index] = "other"

    faults.spoiled(open_graph(place / "fp32"), tmp_path / "odd", rename)
    result = bisect(checkpoint, tmp_path / "odd")
    assert result["sentence"].startswith("Not possible: ")
    assert result["swaps"] == []


def test_every_node_of_every_form_has_a_kind_or_is_a_shape(place):
    shapes = {"Shape", "Squeeze", "Unsqueeze", "Range", "Constant", "Min", "Add", "LessOrEqual"}
    for name in ("fp32", "bf16", "cache", "op"):
        model = onnx.load(place / name / "model.onnx", load_external_data=False)
        for node in model.graph.node:
            kind, _ = part_of(node.output[0])
            assert kind in KINDS or (kind is None and node.op_type in shapes), node.name

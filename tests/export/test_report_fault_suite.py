"""A report catches every planted fault, names its place, and cries wolf over no honest export."""

import dataclasses
import itertools

import numpy as np
import planted_faults as faults
import pytest

from andrea_export.graph import GraphOptions, export_graph
from andrea_export.report.candidates import CandidateSpec
from andrea_export.report.make import ReportOptions, make_report
from andrea_model import AndreaConfig

CONFIG = AndreaConfig(vocab_size=97, context_length=24, d_model=40, n_layer=3, n_head=5)
# One position of the context stays free, so that positions can be shifted.
TEXT = ReportOptions(windows=2, tokens=23)

BLOCKS = range(CONFIG.n_layer)
NORMS = ["blocks.0.norm1", "blocks.1.norm2", "blocks.2.norm1", "norm_f"]
RESIDUALS = [(0, "blocks.0.norm2", "attn_sum"), (0, "blocks.1.norm1", "mlp_sum"),
             (2, "blocks.2.norm2", "attn_sum"), (2, "norm_f", "mlp_sum")]  # fmt: skip
GRAPH_FAULTS = [
    *(faults.erf_gelu(i) for i in BLOCKS),
    *(faults.norm_epsilon(norm, eps) for norm in NORMS for eps in (1e-3, 1.2e-4)),
    *(faults.swapped_gamma_and_beta(norm) for norm in NORMS),
    *(faults.unbiased_variance(norm, CONFIG.d_model) for norm in NORMS),
    *(faults.dropped_residual(*where) for where in RESIDUALS),
    faults.shifted_positions(),
    faults.leaking_mask(),
    *(faults.transposed(i, leaf) for i, leaf in ((0, "q"), (1, "k"), (1, "o"), (2, "v"))),
    *(faults.attention_scale(i, factor) for i in BLOCKS for factor in (1.02, 1.001)),
    faults.last_layer_skipped(CONFIG.n_layer),
]
WEIGHT_FAULTS = [
    *(
        (f"embedding row 40 times {factor}", faults.wrong_row(40, factor), "embedding")
        for factor in (0.0, 0.99, 0.9999)
    ),
    *(
        (f"block {i} rounded to fp8", faults.fp8_weights(i), f"blocks.{i}.attn.q")
        for i in (0, CONFIG.n_layer - 1)
    ),
]
SUITE = [*map(str, GRAPH_FAULTS), *(name for name, *_ in WEIGHT_FAULTS), "another checkpoint"]
# Half precision is simulated, and slower: each fault in the last block alone.
EARLIER = ("block 0", "block 1", "blocks.0", "blocks.1")
FP16_SUITE = [name for name in SUITE if not any(each in name for each in EARLIER)]
PLACES = {each.name: each.place for each in GRAPH_FAULTS}
PLACES |= {name: place for name, _, place in WEIGHT_FAULTS}
PLACES["another checkpoint"] = "embedding"

# What half precision hides: alone, each moves what its own module gives by less than rounding to
# fp16 does (the test of these proves it), so no look at this graph could tell it from rounding.
HIDDEN_IN_FP16 = {
    *(f"erf GELU in block {i}" for i in BLOCKS),
    *(f"epsilon 0.00012 in {norm}" for norm in NORMS[1:]),
    *(f"attention scale times 1.001 in block {i}" for i in BLOCKS),
    "embedding row 40 times 0.9999",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """For a dtype: fault → its result in one report over all faults."""
    made = {}

    def get(dtype):
        if dtype not in made:
            place = tmp_path_factory.mktemp(dtype)
            checkpoint = faults.lively(CONFIG)
            folder = export_graph(checkpoint, place / "honest", GraphOptions(dtype=dtype))
            names = SUITE if dtype == "fp32" else FP16_SUITE
            for number, fault in enumerate(GRAPH_FAULTS):
                if fault.name in names:
                    faults.spoiled(folder, place / str(number), fault.plant)
            for number, (name, change, _) in enumerate(WEIGHT_FAULTS, len(GRAPH_FAULTS)):
                if name in names:
                    faults.with_weights(folder, place / str(number), change)
            other = faults.lively(CONFIG, seed=4)
            export_graph(other, place / str(len(SUITE) - 1), GraphOptions(dtype=dtype))
            specs = [CandidateSpec(str(place / str(SUITE.index(name)))) for name in names]
            report = make_report(checkpoint, specs, TEXT)
            made[dtype] = dict(zip(names, report.candidates, strict=True))
        return made[dtype]

    return get


@pytest.mark.parametrize("fault", SUITE)
def test_every_fault_in_fp32_is_caught_and_named_to_its_module(reports, fault):
    result = reports("fp32")[fault]
    assert result.status == "out of tolerance"
    assert result.ways[0].layers.departure.name == PLACES[fault]
    assert PLACES[fault] in result.sentence


@pytest.mark.parametrize("fault", [name for name in FP16_SUITE if name not in HIDDEN_IN_FP16])
def test_a_fault_above_the_noise_of_fp16_is_caught_there(reports, fault):
    result = reports("fp16")[fault]
    assert result.status == "out of tolerance"
    departure = result.ways[0].layers.departure
    assert departure is None or blocks_before(departure.name) >= blocks_before(PLACES[fault])


def blocks_before(name):
    """The order of a place: a fault never shows before the block where it is."""
    if name == "embedding":
        return -1
    return int(name.split(".")[1]) if name.startswith("blocks.") else CONFIG.n_layer


@pytest.mark.parametrize("fault", sorted(HIDDEN_IN_FP16 & set(FP16_SUITE)))
def test_what_fp16_hides_is_smaller_than_the_rounding_at_its_place(reports, fault):
    alone = row_at(reports("fp32")[fault], PLACES[fault])
    noise = row_at(reports("fp16")[fault], PLACES[fault])
    assert reports("fp16")[fault].status == "within tolerance"
    assert 0 < alone.rms_error < noise.baseline


def row_at(result, place):
    (row,) = (row for row in result.ways[0].layers.rows if row.name == place)
    return row


def test_no_fault_that_changes_a_top_token_anywhere_passes(reports):
    changed = {
        fault
        for fault, result in reports("fp32").items()
        if any(each.figures.top1_disagreement > 0 for each in result.ways[0].sets)
    }
    # The suite goes down to faults that change none, and those above are caught.
    assert 0 < len(changed) < len(SUITE)
    assert all(reports("fp32")[fault].status == "out of tolerance" for fault in changed)


@pytest.mark.parametrize("fault", faults.SIZED)
def test_a_fault_is_caught_below_the_smallest_size_that_changes_a_token(fault, tmp_path):
    """Down from 30 % by factors of 10, to where no token anywhere changes, and further."""
    checkpoint = faults.lively(CONFIG)
    folder = export_graph(checkpoint, tmp_path / "honest")
    sizes = [0.3, 0.03, 3e-3, 3e-4, 3e-5]
    for number, size in enumerate(sizes):
        faults.spoiled(folder, tmp_path / str(number), faults.SIZED[fault](size))
    specs = [CandidateSpec(str(tmp_path / str(number))) for number in range(len(sizes))]
    results = make_report(checkpoint, specs, TEXT).candidates
    caught = [result.status == "out of tolerance" for result in results]
    changes = [
        any(each.figures.top1_disagreement > 0 for each in result.ways[0].sets)
        for result in results
    ]
    assert changes[0], "the largest must matter"
    assert caught.count(True) > changes.count(True)
    assert caught == sorted(caught, reverse=True)


def test_a_stale_slot_shows_only_in_steps_and_is_caught_there(tmp_path):
    checkpoint = faults.lively(CONFIG)
    folder = export_graph(checkpoint, tmp_path / "honest", GraphOptions(kv_cache=True))
    faults.spoiled(folder, tmp_path / "bad", faults.stale_slot().plant)
    specs = [CandidateSpec(str(tmp_path / name)) for name in ("honest", "bad")]
    honest, bad = make_report(checkpoint, specs, TEXT).candidates
    assert honest.status == "within tolerance"
    assert bad.status == "out of tolerance"
    assert {each.data for each in bad.ways[0].sets if each.failures} == {"greedy texts"}
    assert bad.ways[0].layers.departure is None
    assert "its cache" in bad.sentence


@pytest.mark.parametrize("block", BLOCKS)
def test_an_overflow_in_fp16_is_caught_on_a_cpu_and_named(block, tmp_path):
    checkpoint = faults.lively(CONFIG)
    folder = export_graph(checkpoint, tmp_path / "honest", GraphOptions(dtype="fp16"))
    faults.spoiled(folder, tmp_path / "bad", faults.overflow(block).plant)
    report = make_report(checkpoint, [CandidateSpec(str(tmp_path / "bad"))], TEXT)
    simulated, runtime = report.candidates[0].ways
    assert report.exit_code == 1
    assert simulated.layers.departure.name == f"blocks.{block}.mlp.activation"
    assert "NaN or Inf" in simulated.layers.departure.message
    assert runtime.status == "within tolerance"
    assert not runtime.executes_dtype


HONEST = [
    ({}, {"dtype": dtype, "ops": ops}) for dtype, ops in itertools.product(
        ["fp32", "fp16", "bf16"], ["plugin", "standard"]
    )
] + [
    ({}, {"dtype": dtype, "kv_cache": True}) for dtype in ["fp32", "fp16", "bf16"]
] + [
    ({}, {"dtype": "fp32", "opset": 23}),
    ({}, {"dtype": "bf16", "kv_cache": True, "ops": "standard"}),
] + [
    (variant, {"dtype": dtype})
    for variant, dtype in itertools.product(
        [
            {"norm_position": "post"},
            {"norm": "rmsnorm", "activation": "swiglu", "bias": "none", "tied_head": False},
            {"norm_affine": "none", "activation": "relu", "n_layer": 6},
        ],
        ["fp32", "fp16", "bf16"],
    )
]  # fmt: skip


def test_twenty_honest_exports_raise_no_alarm(tmp_path):
    assert len(HONEST) == 20
    by_variant = {}
    for number, (variant, options) in enumerate(HONEST):
        by_variant.setdefault(repr(variant), (variant, []))[1].append((number, options))
    for variant, members in by_variant.values():
        checkpoint = faults.lively(CONFIG.replace(**variant))
        for number, options in members:
            export_graph(checkpoint, tmp_path / str(number), GraphOptions(**options))
        specs = [CandidateSpec(str(tmp_path / str(number))) for number, _ in members]
        report = make_report(checkpoint, specs, dataclasses.replace(TEXT, tokens=None))
        alarms = [each.sentence for each in report.candidates if each.status != "within tolerance"]
        assert not alarms, (variant, alarms)
        for way in (way for each in report.candidates for way in each.ways):
            assert way.layers is not None
            assert np.isfinite([row.rms_error for row in way.layers.rows]).all()

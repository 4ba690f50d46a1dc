"""The exported graph computes the model, by an independent float64 opinion."""

import numpy as np
import numpy_model
import onnxruntime as ort
import pytest

from andrea_model import PRESETS, random_checkpoint

VARIANTS = [
    {},
    {"norm_position": "post"},
    {"norm": "rmsnorm"},
    {"norm": "rmsnorm", "norm_affine": "scale", "norm_position": "post"},
    {"norm": "rmsnorm", "norm_affine": "none"},
    {"norm_affine": "scale"},
    {"norm_affine": "none"},
    {"activation": "gelu_erf", "bias": "all"},
    {"activation": "gelu_erf", "bias": "none"},
    {"activation": "relu"},
    {"activation": "swiglu", "bias": "all"},
    {"activation": "swiglu", "bias": "none", "tied_head": False},
    {"tied_head": False, "mlp_ratio": 2.5, "norm_eps": 1e-3},
]


def run(folder, ids):
    session = ort.InferenceSession(folder.model_path, providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"input_ids": ids})[0]


def relative_error(candidate, reference):
    assert candidate.shape == reference.shape
    return np.abs(candidate - reference).max() / np.sqrt((reference**2).mean())


@pytest.mark.parametrize("ops", ["plugin", "standard"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_agrees_with_the_formulas(tiny, export, ids, variant, ops):
    checkpoint, folder = export(tiny.config.replace(**variant), ops=ops)
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, ids)
    logits = run(folder, ids)
    assert logits.dtype == np.float32
    assert relative_error(logits, expected) < 1e-4


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_half_precision_agrees_within_its_rounding(tiny, export, ids, variant):
    checkpoint, folder = export(tiny.config.replace(**variant), dtype="fp16")
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, ids)
    assert relative_error(run(folder, ids), expected) < 1e-2


@pytest.mark.parametrize("opset", [20, 21, 22, 23, 24])
def test_every_opset_gives_the_same_model(tiny, export, ids, opset):
    checkpoint, folder = export(tiny.config, opset=opset)
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, ids)
    assert relative_error(run(folder, ids), expected) < 1e-4


@pytest.mark.parametrize(("batch", "sequence"), [(1, 1), (1, 24), (5, 2), (3, 11)])
def test_batch_and_sequence_are_dynamic(tiny, export, batch, sequence):
    checkpoint, folder = export(tiny.config)
    ids = np.random.default_rng(1).integers(0, 97, (batch, sequence))
    expected = numpy_model.logits(checkpoint.config, checkpoint.tensors, ids)
    assert relative_error(run(folder, ids), expected) < 1e-4


def test_a_later_token_changes_nothing_before_it(tiny_folder, ids):
    from andrea_export.graph import open_graph

    folder = open_graph(tiny_folder)
    other = ids.copy()
    other[:, 9] = (other[:, 9] + 1) % 97
    before, after = run(folder, ids), run(folder, other)
    np.testing.assert_allclose(before[:, :9], after[:, :9], rtol=0, atol=1e-5)
    assert np.abs(before[:, 9] - after[:, 9]).max() > 1e-2


@pytest.mark.slow
def test_andrea_120m_from_a_bin_agrees_with_the_formulas(tmp_path):
    from andrea_export.graph import export_graph
    from andrea_model.checkpoint import open_checkpoint, write_bin

    drawn = random_checkpoint("andrea-120m", 11)
    path = tmp_path / "step_000012.bin"
    write_bin(drawn.config, drawn.tensors, path, step=12, optimizer_state=False)
    folder = export_graph(open_checkpoint(path), tmp_path / "out")
    assert folder.config == PRESETS["andrea-120m"]
    ids = np.random.default_rng(2).integers(0, 8449, (2, 48))
    expected = numpy_model.logits(drawn.config, drawn.tensors, ids)
    assert relative_error(run(folder, ids), expected) < 1e-4

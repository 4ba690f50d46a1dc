"""What a validation says about candidates, checkpoints and texts that are not as they should be."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import numpy_model
import onnx
import pytest

from andrea_export.errors import GraphError, InputError
from andrea_export.graph import GraphOptions, export_graph, open_graph
from andrea_export.report import ValidateOptions, validate
from andrea_export.report.torch_models import BaselineSession
from andrea_export.session.torch_session import TorchSession
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.tokenizer import HarrisTokenizer

SIZE = ValidateOptions(windows=2, tokens=16)
CONFIG = AndreaConfig(259, 24, 32, 2, 4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """With a tokenizer, and not labelled as random."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    HarrisTokenizer(["the ", "and "]).save(path)
    made = random_checkpoint("andrea-nano", 5, config=CONFIG)
    return dataclasses.replace(made, tokenizer_path=path, format="andrea")


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory):
    return export_graph(checkpoint, tmp_path_factory.mktemp("validate") / "out")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder.path, tmp_path / "copy")


def test_perplexity_is_that_of_an_independent_float64_model(checkpoint, folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat and the dog")
    validation = validate(checkpoint, folder, ValidateOptions(text=text, windows=1))
    ids = np.array([checkpoint.open_tokenizer().encode("the cat and the dog")])
    logits = numpy_model.logits(checkpoint.config, checkpoint.tensors, ids)[0, :-1]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.exp(-log_probs[np.arange(len(logits)), ids[0, 1:]].mean())
    assert validation.reference_perplexity == pytest.approx(expected, rel=1e-9)
    assert validation.rows[0].figures.perplexity == pytest.approx(expected, rel=1e-5)


def test_a_perplexity_no_better_than_guessing_is_pointed_out(checkpoint, folder):
    (warning,) = validate(checkpoint, folder, SIZE).warnings
    assert "no better than guessing among 259 tokens" in warning
    assert "info CKPT --probe" in warning


def test_random_weights_are_named_and_their_perplexity_not_held_against_them(folder):
    random = random_checkpoint("andrea-nano", 5, config=CONFIG)
    warnings = validate(random, folder, SIZE).warnings
    assert any("random weights" in warning for warning in warnings)
    assert not any("guessing" in warning for warning in warnings)


def test_half_precision_shows_what_rounding_the_weights_alone_does(checkpoint, tmp_path):
    candidate = export_graph(checkpoint, tmp_path / "half", GraphOptions(dtype="bf16"))
    validation = validate(checkpoint, candidate, SIZE)
    share, whole = validation.rounded_weights.rms_error, validation.baseline.rms_error
    ids = np.stack([np.arange(16)])
    rounded = {
        name: (np.asarray(each).view(np.uint32) + 0x7FFF + (each.view(np.uint32) >> 16 & 1)
               & 0xFFFF0000).view(np.float32)
        for name, each in checkpoint.tensors.items()
    }  # fmt: skip
    exact = numpy_model.logits(CONFIG, checkpoint.tensors, ids)
    error = numpy_model.logits(CONFIG, rounded, ids) - exact
    independent = np.sqrt((error**2).mean() / (exact**2).mean())
    assert 0 < share < whole
    assert share == pytest.approx(independent, rel=0.3)  # on other ids


def test_fp32_has_no_rounded_weights_to_speak_of(checkpoint, folder):
    assert validate(checkpoint, folder, SIZE).rounded_weights is None


def test_the_fp16_baseline_is_what_torch_computes_itself(checkpoint):
    ids = np.random.default_rng(0).integers(0, 259, (2, 20))
    exact = TorchSession(checkpoint, "fp64").forward(ids)
    own = TorchSession(checkpoint, "fp16").forward(ids) - exact
    ours = BaselineSession(checkpoint, "fp16").forward(ids) - exact
    assert np.sqrt((ours**2).mean()) == pytest.approx(np.sqrt((own**2).mean()), rel=0.1)


def test_the_result_is_json_without_nan(checkpoint, folder):
    result = json.loads(json.dumps(validate(checkpoint, folder, SIZE).to_dict(), allow_nan=False))
    assert result["schema"] == {"name": "andrea-export.validation", "version": 1}
    assert result["exit_code"] == 0
    assert result["data"]["windows"] == 2
    assert result["rows"][0]["figures"]["rms_error"] > 0
    assert result["rows"][0]["ratios"]["rms_error"] > 0
    assert set(result["tolerance"]) <= set(result["baseline"])


def test_progress_ends_when_all_passes_are_done(checkpoint, folder):
    seen = []
    validate(checkpoint, folder, SIZE, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(1, 7)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 300}, r"vocab_size 300 \(checkpoint: 259\)"),
        ({"n_layer": 3, "n_head": 8}, r"n_layer 3 \(checkpoint: 2\), n_head 8 \(checkpoint: 4\)"),
        ({"norm_eps": 1e-3}, r"norm_eps 0.001 \(checkpoint: 1e-05\)"),
    ],
)
def test_a_candidate_of_another_model_is_refused_with_the_numbers(
    checkpoint, tmp_path, changes, said
):
    other = random_checkpoint("andrea-nano", 5, config=CONFIG.replace(**changes))
    with pytest.raises(GraphError, match=said):
        validate(checkpoint, export_graph(other, tmp_path / "other"), SIZE)


def test_a_graph_changed_after_the_export_is_judged_and_named(checkpoint, copy):
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    model.doc_string = "harmless"
    onnx.save(model, copy / "model.onnx")
    validation = validate(checkpoint, open_graph(copy), SIZE)
    assert validation.exit_code == 0
    assert any("model.onnx was changed after the export" in each for each in validation.warnings)


def test_a_graph_that_cannot_be_loaded_could_not_be_judged(checkpoint, copy):
    (copy / "model.onnx.data").write_bytes(b"not the weights")
    validation = validate(checkpoint, open_graph(copy), SIZE)
    assert (validation.status, validation.exit_code) == ("could not judge", 2)
    assert "cannot load it" in validation.sentence
    assert validation.rows[0].figures is None


def test_a_graph_that_crashes_could_not_be_judged(checkpoint, copy):
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    (merge,) = (node for node in model.graph.node if node.name == "constants.merge_heads")
    merge.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array([0, 0, 31])))
    onnx.save(model, copy / "model.onnx")
    validation = validate(checkpoint, open_graph(copy), SIZE)
    assert (validation.status, validation.exit_code) == ("could not judge", 2)


def test_logits_of_another_shape_could_not_be_judged(checkpoint, copy, tmp_path):
    smaller = random_checkpoint("andrea-nano", 5, config=CONFIG.replace(vocab_size=258))
    other = export_graph(smaller, tmp_path / "smaller").path
    shutil.copy(copy / "config.json", other / "config.json")
    no_tokenizer = dataclasses.replace(checkpoint, tokenizer_path=None)
    validation = validate(no_tokenizer, open_graph(other), SIZE)
    # An id of the larger vocabulary may stop the graph first.
    assert validation.exit_code == 2
    assert "(1, 16, 258), not (1, 16, 259)" in validation.sentence or "258" in validation.sentence


def test_a_model_that_torch_cannot_run_in_the_dtype_leaves_nothing_to_judge(tmp_path):
    checkpoint = random_checkpoint("andrea-nano", 5, config=CONFIG)
    huge = {
        name: np.asarray(each) * np.float32(1e5 if "fc2.weight" in name else 1)
        for name, each in checkpoint.tensors.items()
    }
    huge["blocks.0.mlp.fc1.weight"] = huge["blocks.0.mlp.fc1.weight"] * np.float32(1e3)
    checkpoint = dataclasses.replace(checkpoint, tensors=huge)
    candidate = export_graph(checkpoint, tmp_path / "out", GraphOptions(dtype="fp16"))
    validation = validate(checkpoint, candidate, SIZE)
    assert validation.exit_code == 2
    assert "in fp16 torch as well" in validation.sentence
    assert any("this model does not fit fp16" in each for each in validation.warnings)


def test_a_checkpoint_that_gives_nan_itself_is_no_reference(checkpoint, folder):
    spoiled = {name: np.array(each) for name, each in checkpoint.tensors.items()}
    spoiled["norm_f.weight"][3] = np.nan
    with pytest.raises(InputError, match="gives NaN or Inf in float64"):
        validate(dataclasses.replace(checkpoint, tensors=spoiled), folder, SIZE)


def test_without_onnxruntime_fp16_is_judged_by_simulation_alone(checkpoint, tmp_path, monkeypatch):
    candidate = export_graph(checkpoint, tmp_path / "half", GraphOptions(dtype="fp16"))
    module = sys.modules["andrea_export.report.validate"]  # the package shows the function
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    validation = validate(checkpoint, candidate, SIZE)
    assert validation.exit_code == 0
    assert len(validation.rows) == 1
    assert any("onnxruntime is not installed" in each for each in validation.warnings)

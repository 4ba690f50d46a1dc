"""What a report contains: figures from independent maths, its schema, and bad input as rows."""

import dataclasses
import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import numpy_model
import onnx
import planted_faults as faults
import pytest

from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import BackendError, InputError
from andrea_export.graph import GraphOptions, export_graph, open_graph
from andrea_export.layer_names import tap_names
from andrea_export.report import candidates
from andrea_export.report.assembling import Assembler
from andrea_export.report.candidates import CandidateSpec, Way
from andrea_export.report.comparison import Contender
from andrea_export.report.datasets import stress_sets
from andrea_export.report.detail import PlacedWindow
from andrea_export.report.inside import Inside
from andrea_export.report.make import ReportOptions, make_report
from andrea_export.report.markdown import render_markdown
from andrea_export.report.rounding_executor import RoundingSession
from andrea_export.report.tolerance import BUILT_IN
from andrea_export.report.values import text_result
from andrea_export.session import open_session
from andrea_export.session.onnx_session import OnnxSession
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.checkpoint import save_folder
from andrea_model.demo import heldout_text
from andrea_model.tokenizer import HarrisTokenizer

CONFIG = AndreaConfig(259, 24, 32, 2, 4)
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report-schema.json").read_text())
SMALL = ReportOptions(windows=2, tokens=20)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Exports of one checkpoint by name, and other things that are no export of it."""
    place = tmp_path_factory.mktemp("report")
    HarrisTokenizer(["the ", "and "]).save(place / "tokenizer.json")
    for name, options in (
        ("fp32", {}),
        ("fp16", {"dtype": "fp16"}),
        ("bf16", {"dtype": "bf16"}),
        ("cache", {"kv_cache": True}),
    ):
        export_graph(base(), place / name, GraphOptions(**options))
    deeper = random_checkpoint("andrea-nano", 5, config=CONFIG.replace(n_layer=3, vocab_size=300))
    export_graph(deeper, place / "deeper")
    shutil.copytree(place / "fp32", place / "damaged")
    (place / "damaged" / "model.onnx").write_bytes(b"not an onnx file")
    return place


def base():
    return random_checkpoint("andrea-nano", 5, config=CONFIG)


@pytest.fixture(scope="module")
def checkpoint(place):
    """With a tokenizer, and not labelled as random."""
    return dataclasses.replace(base(), tokenizer_path=place / "tokenizer.json", format="andrea")


@pytest.fixture(scope="module")
def report(checkpoint, place):
    """Three dtypes, a cache, torch itself, another model, a damaged file and nothing at all."""
    names = ["fp32", "fp16", "bf16", "cache", "deeper", "damaged", "nothing"]
    specs = [CandidateSpec(str(place / name)) for name in names]
    return make_report(checkpoint, specs, SMALL)


def result(report, name):
    (found,) = (each for each in report.candidates if Path(each.name).name == name)
    return found


def test_the_json_fits_the_published_schema(report):
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(values, SCHEMA)


def test_the_schema_refuses_what_is_no_report(report):
    for spoil in (
        lambda values: values.pop("verdict"),
        lambda values: values["candidates"].clear(),
        lambda values: values["candidates"][0].update(status="fine"),
        lambda values: values["candidates"][0]["ways"][0]["sets"][0].update(extra=1),
    ):
        values = json.loads(json.dumps(report.to_dict()))
        spoil(values)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(values, SCHEMA)


def test_the_figures_are_those_of_independent_float64_maths(report, checkpoint, place):
    """numpy's model in float64 against ONNX Runtime, over the very windows that the report used."""
    session = open_session(open_graph(place / "fp32"), "onnx")
    own = result(report, "fp32").ways[0].sets[0]
    ids = text_windows(checkpoint)
    exact = numpy_model.logits(CONFIG, checkpoint.tensors, ids)[:, :-1].reshape(-1, 259)
    seen = session.forward(ids[:, :-1]).astype(np.float64).reshape(-1, 259)
    targets = ids[:, 1:].reshape(-1)
    p, q = softmax(exact), softmax(seen)
    kl = (p * (np.log(p) - np.log(q))).sum(-1)
    assert own.figures.positions == len(exact) == 40
    rms = np.sqrt(((seen - exact) ** 2).mean() / (exact**2).mean())
    assert own.figures.rms_error == pytest.approx(rms, rel=0.02)
    loss = -np.log(q[np.arange(40), targets])
    assert own.figures.perplexity == pytest.approx(np.exp(loss.mean()), rel=1e-5)
    assert own.details.kl_p99 == pytest.approx(np.percentile(kl, 99), rel=0.5, abs=1e-13)
    cosine = (seen * exact).sum() / np.linalg.norm(seen) / np.linalg.norm(exact)
    assert own.details.cosine == pytest.approx(cosine, abs=1e-12)
    low, high = own.details.perplexity_interval
    assert low < own.figures.perplexity < high


def text_windows(checkpoint):
    """The two windows of 20 tokens at the text's ends, with the token after each."""
    ids = np.array(checkpoint.open_tokenizer().encode(heldout_text().read_text("utf-8")))
    return np.stack([ids[:21], ids[-21:]])


def softmax(logits):
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def test_honest_exports_pass_beside_candidates_that_cannot_be_judged(report):
    for name in ("fp32", "fp16", "bf16", "cache"):
        assert result(report, name).status == "within tolerance"
    for name in ("deeper", "damaged", "nothing"):
        assert result(report, name).status == "could not judge"
    assert report.exit_code == 2


def test_another_models_numbers_are_named(report):
    assert "vocab_size 300 (checkpoint: 259), n_layer 3 (checkpoint: 2)" in (
        result(report, "deeper").sentence
    )


def test_every_vocabulary_id_is_fed_once_and_rows_differ_in_length(report):
    data = {each["name"]: each for each in report.header["data"]}
    assert list(data) == [
        "text", "one token", "one token repeated", "random ids", "every vocabulary id",
        "rows of different lengths", "greedy texts",
    ]  # fmt: skip
    assert data["every vocabulary id"]["positions"] == 264  # 11 rows of the context's 24
    assert data["one token"]["positions"] == 1
    assert data["rows of different lengths"]["rows"] == 4
    assert data["rows of different lengths"]["positions"] < 4 * 24


def test_no_two_rows_of_different_lengths_begin_alike(checkpoint):
    ids = np.array(checkpoint.open_tokenizer().encode(heldout_text().read_text("utf-8")))
    sets = {each.name: each for each in stress_sets(CONFIG, ids)}
    (batch,) = sets["rows of different lengths"].batches
    assert batch.lengths.tolist() == [1, 8, 16, 24]
    starts = [row[:8].tolist() for row in batch.ids]
    assert len({tuple(start) for start in starts}) == 4
    for number, (row, length) in enumerate(zip(batch.ids, batch.lengths, strict=True)):
        np.testing.assert_array_equal(row[:length], ids[24 * number : 24 * number + length])


def test_flips_are_not_counted_against_a_candidate_where_positions_are_alike():
    """A tie of two logits that flips at every position of one token repeated is one flip."""
    inside = Inside()
    assembler = Assembler(("text", "one token repeated"), BUILT_IN, inside, {})
    random = np.random.default_rng(0)
    logits = np.repeat(random.normal(0, 1, (1, 50)), 200, axis=0)
    logits[:, 7] = logits[:, 9] = 5.0
    logits[:, 7] += 1e-9
    other = logits.copy()
    other[:, 9] += 2e-9
    way, baseline = Way(Contender("way")), Way(Contender("baseline"))
    index = np.arange(200)
    for name in ("text", "one token repeated"):
        window = PlacedWindow(logits, None, 0, np.zeros(200, int), index)
        way.gathered(name).add(window, other)
        baseline.gathered(name).add(window, logits)
    (failure,) = assembler.failures(way, baseline, "text", "fp16")
    assert failure.figure == "top1_disagreement"
    assert assembler.failures(way, baseline, "one token repeated", "fp16") == ()


def test_the_same_inputs_give_the_same_report(report, checkpoint, place):
    again = make_report(checkpoint, [CandidateSpec(str(place / "fp16"))], SMALL)
    first, second = (
        json.loads(json.dumps(result(each, "fp16").ways[0].to_dict(lambda token: token.kl)))
        for each in (report, again)
    )
    first.pop("seconds"), second.pop("seconds")
    assert first == second


def test_a_cached_graph_is_stepped_and_others_run_at_once(report):
    for name in ("fp32", "cache"):
        (greedy,) = (
            each for each in result(report, name).ways[0].sets if each.data == "greedy texts"
        )
        assert greedy.figures.rms_error < 1e-5
        assert result(report, name).ways[0].partings == (None,) * 8


def test_torch_itself_is_its_own_baseline(checkpoint, tmp_path):
    save_folder(base(), tmp_path / "copy")
    spec = CandidateSpec.parse(f"{tmp_path / 'copy'},dtype=bf16")
    report = make_report(checkpoint, [spec], SMALL)
    (way,) = report.candidates[0].ways
    assert way.sets[0].ratios["rms_error"] == 1.0
    assert {row.ratio for row in way.layers.rows} == {1.0}
    assert "another file than the reference's" in report.candidates[0].warnings[0]


def test_nan_from_a_candidate_is_a_row_and_exit_1(checkpoint, place, monkeypatch):
    def nan(_, input_ids):
        return np.full((*input_ids.shape, 259), np.nan, np.float32)

    monkeypatch.setattr(RoundingSession, "_forward", nan)
    specs = [CandidateSpec(str(place / name)) for name in ("bf16", "fp32")]
    report = make_report(checkpoint, specs, SMALL)
    assert report.exit_code == 1
    assert result(report, "bf16").ways[0].sets[0].failures[0].kind == "nonfinite"
    assert result(report, "fp32").status == "within tolerance"
    jsonschema.validate(json.loads(json.dumps(report.to_dict(), allow_nan=False)), SCHEMA)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_checkpoint_with_nan_is_judged_and_named_to_the_layer(checkpoint, tmp_path, dtype):
    tensors = {name: np.array(array) for name, array in base().tensors.items()}
    tensors["blocks.1.attn.v.weight"][3, 5] = np.nan
    save_folder(dataclasses.replace(base(), tensors=tensors), tmp_path / "nan")
    specs = [CandidateSpec(str(tmp_path / "nan"), dtype=dtype)]
    report = make_report(checkpoint, specs, SMALL)
    (candidate,) = report.candidates
    assert report.exit_code == 1
    assert candidate.ways[0].layers.departure.name == "blocks.1.attn.v"
    assert any("'blocks.1.attn.v.weight' holds 1 NaN" in each for each in candidate.warnings)
    jsonschema.validate(json.loads(json.dumps(report.to_dict(), allow_nan=False)), SCHEMA)


def test_a_crash_while_running_is_a_row_and_exit_1(checkpoint, place, tmp_path):
    """Positions one too far leave the table of 24 where the whole context is fed."""
    graph = open_graph(place / "fp32")
    faults.spoiled(graph, tmp_path / "crash", faults.shifted_positions().plant)
    specs = [CandidateSpec(str(tmp_path / "crash")), CandidateSpec(str(place / "fp32"))]
    report = make_report(checkpoint, specs, SMALL)
    assert report.exit_code == 1
    crash = result(report, "crash").ways[0]
    assert any("failed while running" in failure for failure in crash.failures)
    assert crash.layers.departure.name == "embedding"
    assert result(report, "fp32").status == "within tolerance"


def test_whatever_a_candidate_raises_is_its_row(checkpoint, place, monkeypatch):
    def fail(_, input_ids):
        raise RuntimeError(f"no room for {input_ids.shape}")

    monkeypatch.setattr(RoundingSession, "_forward", fail)
    specs = [CandidateSpec(str(place / name)) for name in ("bf16", "fp32")]
    report = make_report(checkpoint, specs, SMALL)
    assert report.exit_code == 1
    failed = result(report, "bf16").ways[0]
    assert failed.crashed
    assert "RuntimeError('no room for (1, 20)')" in failed.error
    assert result(report, "fp32").status == "within tolerance"


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_logits_of_another_size_are_a_row_that_says_so(checkpoint, place, tmp_path, dtype):
    def double(graph):
        graph.nodes["logits"].output[0] = "once"
        graph.graph.node.append(
            onnx.helper.make_node("Concat", ["once", "once"], ["logits"], axis=2)
        )

    faults.spoiled(open_graph(place / dtype), tmp_path / "double", double)
    specs = [CandidateSpec(str(tmp_path / "double")), CandidateSpec(str(place / dtype))]
    report = make_report(checkpoint, specs, dataclasses.replace(SMALL, bisect=True))
    doubled, honest = report.candidates
    assert (doubled.status, honest.status) == ("out of tolerance", "within tolerance")
    assert "logits of shape (1, 20, 518), not (1, 20, 259)" in doubled.sentence
    assert "logits has shape (1, 10, 518), not (1, 10, 259)" in doubled.ways[0].no_layers
    assert "Not possible: logits of shape" in doubled.bisection["sentence"]


def test_a_crash_in_whole_windows_alone_is_named_to_its_place_too(checkpoint, place, tmp_path):
    """Windows of the context length all crash: half of one shows where."""
    graph = open_graph(place / "fp32")
    faults.spoiled(graph, tmp_path / "crash", faults.shifted_positions().plant)
    specs = [CandidateSpec(str(tmp_path / "crash")), CandidateSpec(str(place / "fp32"))]
    report = make_report(checkpoint, specs, ReportOptions(windows=2))
    (crash,) = result(report, "crash").ways
    assert crash.crashed
    assert (crash.layers.departure.name, crash.layers.positions) == ("embedding", 2 * 12)
    assert crash.no_layers is None
    honest = result(report, "fp32").ways[0]
    assert honest.layers.positions == report.baselines["fp32"].layers.positions == 2 * 24
    assert result(report, "fp32").status == "within tolerance"


def test_an_engine_without_a_gpu_could_not_be_judged(checkpoint, place, monkeypatch):
    """Its row has the reason; the other candidates are judged all the same."""
    names = ("version", "compute_capabilities", "sha256", "options", "custom_ops")
    sidecar = dict.fromkeys(names) | {"flavor": "rtx", "precision": "fp16"}
    engine = EngineFolder(place / "engine", sidecar, CONFIG)
    real = candidates.open_source
    monkeypatch.setattr(
        candidates, "open_source", lambda path: engine if path == "ENGINE" else real(path)
    )

    def refuse(source, backend="auto", **options):
        if source is engine:
            raise BackendError("no GPU was found")
        return open_session(source, backend, **options)

    monkeypatch.setattr(candidates, "open_session", refuse)
    specs = [CandidateSpec("ENGINE"), CandidateSpec(str(place / "fp32"))]
    report = make_report(checkpoint, specs, SMALL)
    assert [each.status for each in report.candidates] == ["could not judge", "within tolerance"]
    assert report.exit_code == 2
    assert "no GPU was found" in report.candidates[0].sentence


def test_an_fp16_row_that_computes_in_float32_is_no_proof(checkpoint, place, monkeypatch):
    """Here the float32 logits come from what says it executes fp16: the error gives it away."""

    def wide(_, input_ids):
        return numpy_model.logits(CONFIG, rounded_weights(), input_ids).astype(np.float32)

    monkeypatch.setattr(RoundingSession, "_forward", wide)
    report = make_report(checkpoint, [CandidateSpec(str(place / "fp16"))], SMALL)
    simulated = report.candidates[0].ways[0]
    assert not simulated.executes_dtype
    assert any("not running in this dtype" in note for note in simulated.notes)
    assert report.exit_code == 2


def rounded_weights():
    return {
        name: np.asarray(each).astype(np.float16).astype(np.float32)
        for name, each in base().tensors.items()
    }


def test_a_text_shorter_than_one_window_is_used_and_said(checkpoint, place, tmp_path):
    (tmp_path / "short.txt").write_text("the cat")
    options = dataclasses.replace(SMALL, text=tmp_path / "short.txt")
    report = make_report(checkpoint, [CandidateSpec(str(place / "fp32"))], options)
    assert report.exit_code == 0
    assert any("1 of 2 windows" in warning for warning in report.warnings)


def test_no_candidate_is_an_error(checkpoint):
    with pytest.raises(InputError, match="no candidate"):
        make_report(checkpoint, [])


@pytest.mark.parametrize("text", ["x,dtype", "x,colour=red", "x,dtype=fp16,y"])
def test_a_candidate_with_an_unknown_setting_is_refused(text):
    with pytest.raises(InputError, match="is not one of dtype=VALUE, provider=VALUE"):
        CandidateSpec.parse(text)


def test_a_path_may_hold_commas(tmp_path):
    (tmp_path / "a,b").mkdir()
    for given, wanted in (
        ("a,b", CandidateSpec("a,b")),
        ("a,b,dtype=fp16", CandidateSpec("a,b", dtype="fp16")),
        ("a,provider=cuda,dtype=bf16", CandidateSpec("a", "bf16", "cuda")),
    ):
        parsed = CandidateSpec.parse(f"{tmp_path}/{given}")
        assert parsed == dataclasses.replace(wanted, path=f"{tmp_path}/{wanted.path}")
        assert CandidateSpec.parse(str(parsed)) == parsed


@pytest.mark.parametrize(("text", "said"), [("", "has no path"), ("a\udcff", "is not UTF-8")])
def test_no_path_and_one_that_no_file_can_hold_are_refused(text, said):
    with pytest.raises(InputError, match=said):
        CandidateSpec.parse(text)


def test_a_setting_that_does_not_fit_is_a_reason_and_not_ignored(checkpoint, place, tmp_path):
    save_folder(base(), tmp_path / "copy")
    specs = [
        CandidateSpec(str(place / "fp32"), dtype="fp16"),
        CandidateSpec(str(tmp_path / "copy"), provider="cuda"),
        CandidateSpec(str(place / "fp16"), dtype="fp16"),
    ]
    report = make_report(checkpoint, specs, dataclasses.replace(SMALL, layers=False))
    graph, torch_itself, same = report.candidates
    assert graph.status == torch_itself.status == "could not judge"
    assert "dtype=fp16 was asked for, and the graph is fp32" in graph.sentence
    assert "provider=cuda was asked for: a checkpoint, which torch runs, has none" in (
        torch_itself.sentence
    )
    assert same.status == "within tolerance"


def test_an_engine_refuses_settings_that_are_not_its_own(checkpoint, place, monkeypatch):
    sidecar = {"flavor": "rtx", "precision": "fp32"}
    engine = EngineFolder(place / "engine", sidecar, CONFIG)
    monkeypatch.setattr(candidates, "open_source", lambda _: engine)
    for settings, said in (
        ({"dtype": "fp16"}, "dtype=fp16 was asked for, and the engine is fp32"),
        ({"provider": "cuda"}, "provider=cuda was asked for: an engine has none"),
    ):
        candidate = candidates.open_candidate(CandidateSpec("ENGINE", **settings), checkpoint)
        assert said in candidate.error


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_the_layers_of_a_graph_of_last_logits_are_seen(checkpoint, tmp_path, dtype):
    options = GraphOptions(dtype=dtype, kv_cache=True, logits="last")
    export_graph(base(), tmp_path / "last", options)
    specs = [CandidateSpec(str(tmp_path / "last"))]
    report = make_report(checkpoint, specs, dataclasses.replace(SMALL, bisect=True))
    for way in report.candidates[0].ways:
        assert [row.name for row in way.layers.rows] == tap_names(CONFIG)
        assert way.layers.departure is None
    assert report.candidates[0].bisection["swaps"]
    assert report.exit_code == 0


def test_ids_that_the_tokenizer_lacks_are_told_by_number(place, tmp_path):
    """A vocabulary padded to a round size, as GPT-2's often is."""
    config = CONFIG.replace(vocab_size=320)
    padded = random_checkpoint("andrea-nano", 5, config=config)
    export_graph(padded, tmp_path / "out")
    padded = dataclasses.replace(padded, tokenizer_path=place / "tokenizer.json", format="andrea")
    report = make_report(padded, [CandidateSpec(str(tmp_path / "out"))], SMALL).to_dict()
    tokens = report["candidates"][0]["ways"][0]["worst_tokens"]
    choices = [choice for token in tokens for choice in token["reference"]]
    unknown = [choice for choice in choices if choice["id"] >= 259]
    assert unknown
    assert all(choice["text"] == f"#{choice['id']}" for choice in unknown)
    assert all(token["context"] and "#" not in token["context"] for token in tokens)


def test_without_the_text_nothing_is_within_tolerance(checkpoint, place, monkeypatch):
    """An engine for windows of at most 8 tokens: what else it ran is shown, and is no verdict."""
    forward = OnnxSession.forward

    def narrow(session, ids):
        if ids.shape[1] > 8:
            raise InputError(f"no profile takes 1x{ids.shape[1]}")
        return forward(session, ids)

    monkeypatch.setattr(OnnxSession, "forward", narrow)
    specs = [CandidateSpec(str(place / "fp32"))]
    report = make_report(checkpoint, specs, dataclasses.replace(SMALL, layers=False))
    (way,) = report.candidates[0].ways
    assert [each.data for each in way.sets] == ["one token"]
    assert report.exit_code == 2
    assert "windows of text were left out (--tokens N makes shorter ones)" in report.sentence
    values = json.loads(json.dumps(report.to_dict()))
    assert text_result(values, values["candidates"][0]["ways"][0]) is None
    (row,) = (line for line in render_markdown(values).splitlines() if "| ONNX Runtime (CPU" in line
              and "could not judge" in line)  # fmt: skip
    assert row.count("–") == 5


def test_a_provider_that_is_not_there_is_a_reason(checkpoint, place):
    spec = CandidateSpec.parse(f"{place / 'fp32'},provider=cuda")
    report = make_report(checkpoint, [spec], SMALL)
    assert report.exit_code == 2
    assert "no cuda provider" in report.candidates[0].sentence


def test_progress_never_falls_back_and_ends_at_its_total(checkpoint, place):
    seen = []
    make_report(
        checkpoint,
        [CandidateSpec(str(place / "fp16"))],
        SMALL,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_a_contender_that_gives_another_shape_gives_up():
    contender = Contender("odd", session=object())
    contender.close = lambda: setattr(contender, "session", None)
    assert contender.run(lambda _: np.zeros((1, 2)), (1, 3)) is None
    assert contender.crashed
    assert "(1, 2), not (1, 3)" in contender.error

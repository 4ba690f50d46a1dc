"""The benchmark from end to end on tiny models, and the command. No test looks at a time."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from andrea_export.bench import BenchOptions, SourceSpec, bench, worker
from andrea_export.bench.page import write_page
from andrea_export.bench.pipe import Child
from andrea_export.bench.run import _unprofiled as unprofiled
from andrea_export.cli import run
from andrea_export.engine.sidecar import EngineFolder
from andrea_export.errors import BackendError, CheckpointError, InputError, OutputError
from andrea_export.graph import GraphOptions, export_graph
from andrea_model.checkpoint import save_folder

QUICK = BenchOptions(batches=(1, 2), contexts=(8,), rounds=1, tokens=3, prefills=1)
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The children's torch: threads that wait for each other are slow on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def place(tiny, tmp_path_factory):
    """One model as a checkpoint, as a graph with a cache, and as one without."""
    place = tmp_path_factory.mktemp("bench")
    save_folder(tiny, place / "ckpt")
    export_graph(tiny, place / "cached", GraphOptions(kv_cache=True, logits="last"))
    export_graph(tiny, place / "plain")
    return place


@pytest.fixture(scope="module")
def result(place):
    """All three side by side, with profiles."""
    specs = [SourceSpec(str(place / name)) for name in ("cached", "plain", "ckpt")]
    options = BenchOptions(**{**QUICK.to_dict(), "profile_ops": True})
    return bench(specs, options)


def test_bench_has_a_row_for_every_workload_and_source(result):
    found = [(row.workload.phase, row.workload.batch, row.workload.context, row.source)
             for row in result.rows]  # fmt: skip
    assert found == [
        (phase, batch, 8, source)
        for batch in (1, 2)
        for phase in ("prefill", "decode")
        for source in ("cached", "plain", "ckpt")
    ]


def test_bench_rows_hold_one_turn_of_samples_for_each_round(result):
    for row in result.rows:
        assert [len(turn) for turn in row.rounds] == [1 if row.workload.phase == "prefill" else 3]
        assert min(row.seconds) > 0
        assert row.first_call_seconds > 0
        assert row.percent_of_floor > 0


def test_engines_are_named_as_having_no_profile_by_ops(tmp_path):
    (tmp_path / "engine.json").touch()
    engine = SourceSpec(str(tmp_path))
    (note,) = unprofiled([SourceSpec("andrea-nano"), engine], ["andrea-nano", "fast"])
    assert note.startswith("fast: no profile by ops")
    assert unprofiled([SourceSpec("andrea-nano")], ["andrea-nano"]) == []


def test_bench_says_what_ran_each_source_and_how_much_memory_it_had(result):
    assert [source.label for source in result.sources] == [
        "onnx (CPU, fp32, cache, fused)",
        "onnx (CPU, fp32)",
        "torch (CPU, fp32)",
    ]
    for source in result.sources:
        assert source.peak_rss_bytes > 10e6
        assert source.cold_first_token_seconds > source.first_call_seconds > 0


def test_bench_memory_is_each_sources_own(result):
    # importing torch alone takes more than ONNX Runtime with a tiny model
    cached, _, torch = (source.peak_rss_bytes for source in result.sources)
    assert torch > cached * 1.3


def test_profile_names_the_ops_that_each_runtime_runs(result):
    named = {}
    for profile in result.profiles:
        named.setdefault(profile.source, set()).update(op.op for op in profile.ops)
    assert {"MatMul", "GroupQueryAttention"} <= named["cached"]
    assert "MatMul" in named["plain"]
    assert "GroupQueryAttention" not in named["plain"]
    assert any(op.startswith("aten::") for op in named["ckpt"])


def test_profile_counts_the_calls_of_one_step(result):
    # TINY has 3 blocks, with attention once in each
    profile = next(each for each in result.profiles if each.source == "cached")
    (calls,) = (op.calls for op in profile.ops if op.op == "GroupQueryAttention")
    assert calls == 3


def test_result_as_json_has_the_schema_the_formulas_and_plain_numbers(result):
    found = json.loads(json.dumps(result.to_dict()))
    assert found["schema"] == {"name": "andrea-export.bench", "version": 1}
    assert found["formulas"]["floor"].startswith("max(bytes / read rate")
    first = found["rows"][0]
    assert first["floor"]["bytes"] == (
        first["floor"]["weight_bytes"]
        + first["floor"]["cache_bytes"]
        + first["floor"]["logit_bytes"]
    )
    assert first["p50_seconds"] <= first["p90_seconds"] <= first["p99_seconds"]


def test_bench_without_a_source_is_refused():
    with pytest.raises(InputError, match="at least one"):
        bench([])


def test_errors_of_a_source_come_back_by_their_class(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        bench([SourceSpec(str(tmp_path / "nothing"))])


def test_a_process_that_dies_is_told_with_its_last_words(tmp_path, monkeypatch):
    (tmp_path / "dies.py").write_text("import sys; sys.exit('no more memory')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with (
        Child("dies", "the model") as child,
        pytest.raises(BackendError, match=r"the model: its process died .*1\): no more memory"),
    ):
        child.ask("open")


@pytest.fixture
def command(capsys):
    """Runs the command with quick options; gives exit code, stdout and stderr."""

    def call(*arguments, quick=True):
        few = ("--rounds", 1, "--tokens", 2, "--context", "8") if quick else ()
        code = run(["bench", *(str(each) for each in (*arguments, *few))])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_command_prints_a_table_and_tells_the_same_source_twice_apart(place, command, tmp_path):
    page = tmp_path / "page.html"
    code, out, err = command(place / "cached", place / "cached", "--html", page)
    assert code == 0
    for word in ("prefill", "decode", "p50 ms", "tokens/s", "of floor", "peak MB"):
        assert word in out
    assert {"cached (1)", "cached (2)"} <= set(re.findall(r"cached \(\d\)", out))
    assert re.search(r"This machine reads memory at \d+ to \d+ GB/s", out)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert "page.html" in err


def test_command_with_json_prints_json_alone_also_of_a_preset_with_random_weights(command):
    code, out, _ = command(
        "andrea-nano", "--random-weights", 1, "--set", "n_layer=1", "--set", "d_model=32", "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert {row["phase"] for row in found["rows"]} == {"prefill", "decode"}
    # 2305 tokens and 256 positions of 32 numbers, and one block
    assert 2561 * 32 < found["sources"][0]["parameters"] < 2561 * 32 + 20_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "1,x"), "--batch takes whole numbers"),
        (("--context", "0"), "--context takes whole numbers"),
        (("--context", "8,25"), "context 25 is beyond cached, which takes 24 tokens"),
        (("--rounds", "0"), "rounds must be at least 1"),
        (("--backend", "tflite"), "backend 'tflite' is not one of"),
        (("--backend", "torch"), "the torch backend runs checkpoints"),
        (("--set", "d_model"), "KEY=VALUE"),
        (("--html", "/no/such/folder/page.html"), "is not a folder"),
    ],
)
def test_command_refuses_with_its_own_message(place, command, arguments, message):
    folder = "ckpt" if "--set" in arguments else "cached"
    code, out, err = command(place / folder, *arguments, quick=False)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "n_layer=1"), "--set is for checkpoints"),
        (("--random-weights", 1), "--random-weights is for checkpoints"),
        (("--dtype", "fp16"), "--dtype is for checkpoints"),
    ],
)
def test_command_refuses_options_that_none_of_its_sources_takes(place, command, arguments, message):
    code, out, err = command(place / "cached", place / "plain", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "plain is no checkpoint" in err


def test_command_prints_its_figures_even_if_the_page_cannot_be_written(
    place, command, tmp_path, monkeypatch
):
    def full(*_, **__):
        raise OutputError("page.html cannot be written: No space left on device")

    monkeypatch.setattr("andrea_export.bench.page.write_page", full)
    code, out, err = command(place / "cached", "--html", tmp_path / "page.html")
    assert code == 2
    assert "tokens/s" in out
    assert "No space left" in err


@pytest.mark.parametrize(
    ("profiles", "limit"),
    [
        ([{"input_ids": {"max": [8, 1]}}, {"input_ids": {"max": [8, 12]}}], 12),
        ([{"input_ids": {"max": [8, 4096]}}], 24),  # the context length
        ([], 24),
    ],
)
def test_an_engine_takes_no_more_tokens_than_its_widest_profile(
    tiny, tmp_path, monkeypatch, profiles, limit
):
    engine = EngineFolder(tmp_path, {"profiles": profiles}, tiny.config)
    monkeypatch.setattr(worker, "_opened", lambda _: engine)
    assert worker.Worker().open({"source": str(tmp_path)})["limit"] == limit


def test_command_without_a_source_says_what_to_give(command):
    code, _, err = command()
    assert code == 2
    assert "give at least one checkpoint" in err


class Page(HTMLParser):
    """Tags of a page, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [
            value
            for name, value in attrs
            if name.split(":")[-1] in ("src", "href") and not value.startswith("#")
        ]


def test_page_has_plots_and_loads_nothing(result, tmp_path):
    write_page(result, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Page(text)
    assert page.loads == []
    assert page.tags.count("svg") == 2 * 2 + 2  # phases × batches, rounds, ops
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "url(http" not in text
    for name in ("cached", "plain", "ckpt", "share of a step"):
        assert name in text


def test_page_escapes_what_people_named(result, tmp_path):
    strange = dataclasses.replace(result, notes=("<script>alert(1)</script>",))
    write_page(strange, tmp_path / "page.html")
    assert "script" not in Page((tmp_path / "page.html").read_text("utf-8")).tags


def test_page_that_exists_is_replaced_only_by_force(result, place, command, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    code, _, err = command(place / "cached", "--html", page)
    assert (code, page.read_text()) == (2, "mine")
    assert "--force" in err
    write_page(result, page, force=True)
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_page_without_matplotlib_names_the_extra_before_any_work(place, command, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "matplotlib" else find_spec(name, *rest),
    )
    code, _, err = command(place / "cached", "--html", "page.html")
    assert code == 2
    assert "andrea-export[report]" in err


def test_decode_gpu_script_runs_dry_without_a_gpu():
    script = [sys.executable, "benchmarks/decode_gpu.py", "--dry-run", "--tokens", "2"]
    done = subprocess.run(script, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["missing"] == {}
    assert {row["contestant"] for row in found["rows"]} == {
        "native_engine",
        "plugin_engine",
        "torch_eager",
        "torch_compile",
    }

"""Refitting: what is refused before a GPU is needed."""

import json

import pytest

from andrea_export.cli import run
from andrea_export.engine import EngineOptions, build_engine, open_engine
from andrea_export.engine.refit import check_refit, refit_engine
from andrea_export.engine.source import open_source
from andrea_export.errors import BackendError, EngineError

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")


@pytest.fixture
def engine(tiny_folder, tmp_path):
    """A real engine of the tiny model, whose sidecar says whether it was stripped."""

    def make(stripped):
        options = EngineOptions(flavor="rtx", compute_capability="8.9")
        path = build_engine(tiny_folder, tmp_path / "engine", options, force=True).path
        sidecar = json.loads((path / "engine.json").read_text())
        sidecar["options"]["strip_weights"] = stripped
        (path / "engine.json").write_text(json.dumps(sidecar))
        return path

    return make


def test_engine_that_has_its_weights_is_refused(engine, tiny_folder):
    with pytest.raises(EngineError, match="has its weights: only --strip-weights leaves them out"):
        check_refit(open_engine(engine(False)), open_source(tiny_folder))


def test_graph_of_the_engine_is_accepted_and_any_other_refused(engine, tiny_folder, export):
    stripped = open_engine(engine(True))
    check_refit(stripped, open_source(tiny_folder))
    other = export(stripped.config, dtype="fp16")[1].path
    with pytest.raises(EngineError, match=r"is not the graph that .* model.onnx is another file"):
        check_refit(stripped, open_source(other))


def test_machine_that_cannot_open_the_engine_is_told_and_nothing_is_written(
    engine, tiny_folder, tmp_path, capsys
):
    path = engine(True)
    with pytest.raises(BackendError, match="cannot be opened here: there is no NVIDIA driver"):
        refit_engine(path, tiny_folder, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    assert run(["refit", str(path), str(tiny_folder), "-o", str(tmp_path / "whole")]) == 2
    assert "cannot be opened here" in capsys.readouterr().err

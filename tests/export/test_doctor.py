"""What doctor says of a machine, and what it concludes."""

import json

import pytest

from andrea_export.cli import run
from andrea_export.doctor import Finding
from andrea_export.doctor.diagnosis import JOBS, judge
from andrea_export.doctor.findings import PROBES, _onnxruntime, _rtx, _tensorrt, _torch_on_gpu
from andrea_export.engine.gpus import Machine

NAMES = {name for job in JOBS for way in job.ways for name in way}


def findings(*there):
    return tuple(Finding(name, name in there, "", "", "") for name in sorted(NAMES))


def test_machine_with_everything_can_do_every_job():
    diagnosis = judge(findings(*NAMES))
    assert diagnosis.can_do_main_job
    assert not any(diagnosis.missing.values())


@pytest.mark.parametrize("lost", ["torch", "onnx", "onnxruntime"])
def test_main_job_cannot_be_done_without_torch_onnx_or_onnxruntime(lost):
    diagnosis = judge(findings(*NAMES - {lost}))
    assert not diagnosis.can_do_main_job
    assert diagnosis.missing["compare an export with PyTorch"] == (lost,)


def test_machine_without_a_gpu_does_the_main_job_and_builds_with_rtx():
    diagnosis = judge(findings("torch", "torch-gpu", "onnx", "onnxruntime", "rtx"))
    assert diagnosis.can_do_main_job
    assert diagnosis.missing["build an engine"] == ()
    assert diagnosis.missing["run an engine"] == ("driver", "gpu")


def test_full_tensorrt_without_a_gpu_builds_nothing():
    missing = judge(findings("torch", "onnx", "onnxruntime", "tensorrt")).missing
    assert missing["build an engine"] == ("rtx",)


def test_engine_does_not_run_with_a_cpu_build_of_torch():
    missing = judge(findings(*NAMES - {"torch-gpu"})).missing
    assert missing == {**dict.fromkeys(missing, ()), "run an engine": ("torch-gpu",)}


@pytest.mark.parametrize(
    ("cuda", "gpus", "available", "found"),
    [
        (None, (), False, False),
        ("13.0", (), False, True),
        ("13.0", ("a GPU",), False, False),
        ("13.0", ("a GPU",), True, True),
    ],
)
def test_build_of_torch_is_told_from_what_it_can_use(monkeypatch, cuda, gpus, available, found):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr("andrea_export.doctor.findings.machine", lambda: Machine(gpus, "13.0"))
    assert _torch_on_gpu().found is found


def test_plugins_are_of_no_use_to_rtx():
    missing = judge(findings(*NAMES - {"tensorrt"})).missing
    assert missing["use the plugins in an engine"] == ("tensorrt",)


def test_every_job_asks_for_things_that_are_looked_for():
    assert {probe().name for probe in PROBES} >= NAMES


def test_both_packages_of_onnxruntime_at_once_are_noticed(tmp_path, monkeypatch):
    folder = tmp_path / "onnxruntime_gpu-1.32.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: onnxruntime-gpu\nVersion: 1.32.0\n")
    pytest.importorskip("onnxruntime")
    assert "both packages" not in _onnxruntime().detail
    monkeypatch.syspath_prepend(tmp_path)
    assert "onnxruntime-gpu 1.32.0" in _onnxruntime().detail
    assert "both packages are installed: pip uninstall one of them" in _onnxruntime().detail


def test_tensorrt_that_does_not_load_is_not_found_and_says_why(tmp_path, monkeypatch):
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.11: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    finding = _tensorrt()
    assert not finding.found
    assert "does not load: ImportError: libnvinfer.so.11: no such file" in finding.detail
    assert "andrea-export[gpu]" in finding.install


def test_rtx_that_is_installed_is_found_with_its_version():
    rtx = pytest.importorskip("tensorrt_rtx")
    finding = _rtx()
    assert finding.found
    assert rtx.__version__ in finding.detail


def test_json_has_findings_and_jobs_and_the_exit_code_follows(capsys):
    pytest.importorskip("onnxruntime")
    assert run(["doctor", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True
    assert set(result["findings"][0]) == {"name", "found", "detail", "enables", "install"}
    assert result["jobs"]["export a checkpoint to ONNX"] == {"possible": True, "missing": []}


def test_exit_code_is_1_when_the_main_job_cannot_be_done(capsys, monkeypatch):
    lacking = judge(findings("torch", "onnx"))
    monkeypatch.setattr("andrea_export.doctor.diagnose", lambda: lacking)
    assert run(["doctor"]) == 1
    assert "lacks onnxruntime" in capsys.readouterr().out

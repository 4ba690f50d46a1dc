"""`make gpu-check` without a GPU: its dry run goes through every line that needs no driver.

nvcc is a script here that hands out the host libraries; everything else is the real thing.
"""

import importlib.util
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check import build, engines, numerics, timing
from benchmarks.gpu_check.device import CudaDevice, HostDevice
from benchmarks.gpu_check.ops import DTYPES, OPS, Launchers
from tests.plugins.host_library import SOURCES, build_host_library

# The idle library is the one whose sources lie in the check's own folder.
FAKE_NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0 ;;
  --list-gpu-code) echo "sm_90"; exit 0 ;;
esac
for last; do :; done
case "$*" in
  *-shared*idle-sources*) cp {idle} "$last" ;;
  *-shared*) cp {library} "$last" ;;
  *) echo object > "$last" ;;
esac
"""


@pytest.fixture(scope="module")
def idle_library(tmp_path_factory: pytest.TempPathFactory, host_library: Path) -> Path:
    assert host_library.exists()
    return build_host_library(build._idle_sources(tmp_path_factory.mktemp("idle") / "sources"))


def fake_nvcc(folder: Path, library: Path, idle: Path) -> Path:
    path = folder / "nvcc"
    path.write_text(FAKE_NVCC.format(library=library, idle=idle))
    path.chmod(0o755)
    return path


@pytest.fixture
def dry_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host_library: Path,
    idle_library: Path,
) -> list[str]:
    monkeypatch.setenv("CUDACXX", str(fake_nvcc(tmp_path, host_library, idle_library)))
    return ["--dry-run", "--arch", "90", "--output", str(tmp_path / "out")]


def test_a_dry_run_finds_no_fault_and_writes_every_part_of_its_report(
    dry_run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_check.main(dry_run) == 0, capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "gpu-check.json").read_text())
    assert report["faults"] == []
    assert isinstance(report["seed"], int)
    assert report["checks"]["launchers"] > 1000
    assert report["checks"]["plugins"] == 6 * 3 * 3 * 2 + 3 * 3 * 2
    assert report["sanitizer"]["host"].startswith("exit code 0: ")
    measured = {(row["op"], row["dtype"], *row["shape"]) for row in report["measurements"]}
    assert len(measured) == 6 * 3 * len(timing.DRY.shapes)
    assert all(row["us"] > 0 and row["torch_us"] > 0 for row in report["measurements"])
    assert {"what", "wanted", "seen", "is_met"} == set(report["targets"][0])
    printed = capsys.readouterr().out
    if importlib.util.find_spec("tensorrt_rtx"):
        assert [sight["form"] for sight in report["layers"]] == ["unfused", "named", "outputs"]
        assert all(sight["taps"] == 47 for sight in report["layers"])
        assert "layers of rtx fp16 named: seen " in printed
    assert "an enqueue that does nothing: seen" in printed
    assert "% copy" in printed


def test_a_library_that_does_nothing_is_a_fault(
    dry_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_library: Path
) -> None:
    monkeypatch.setenv("CUDACXX", str(fake_nvcc(tmp_path, idle_library, idle_library)))
    monkeypatch.setattr(gpu_check, "check_engine_layers", lambda *_, **__: [])
    assert gpu_check.main(dry_run) == 1
    faults = json.loads((tmp_path / "out" / "gpu-check.json").read_text())["faults"]
    assert any("AndreaLayerNorm float32" in fault for fault in faults)


def test_a_mutant_that_passes_is_a_fault(
    dry_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host_library: Path
) -> None:
    monkeypatch.setenv("CUDACXX", str(fake_nvcc(tmp_path, host_library, host_library)))
    monkeypatch.setattr(gpu_check, "check_engine_layers", lambda *_, **__: [])
    assert gpu_check.main(dry_run) == 1
    faults = json.loads((tmp_path / "out" / "gpu-check.json").read_text())["faults"]
    assert faults == ["an enqueue that does nothing passes as right"]


def test_a_seed_gives_the_same_data_again() -> None:
    torch = pytest.importorskip("torch")
    seed = gpu_check.set_seed(None)
    first = torch.randn(8)
    assert gpu_check.set_seed(None) != seed
    assert gpu_check.set_seed(seed) == seed
    assert torch.equal(torch.randn(8), first)


def test_wrong_numbers_and_writes_outside_are_found(host_library: Path) -> None:
    class Wrong(Launchers):
        def run(self, op, inputs, outputs, stream):  # type: ignore[no-untyped-def]
            super().run(op, inputs, outputs, stream)
            if op.label == "GELU erf" and outputs[0].shape == (3, 768):
                outputs[0].memory[outputs[0].inside.stop] = 0
            if op.label == "LayerNorm" and outputs[0].shape == (3, 33):
                outputs[0].memory[outputs[0].inside.start + 3] ^= 0x11

    found = numerics.check_launchers(Wrong(str(host_library)), HostDevice(), numerics.SMALL)
    assert sum("wrote outside" in text for text in found.wrong) == 3 * 3
    assert any(text.startswith("LayerNorm float32 [3, 33]") for text in found.wrong)


def test_a_missing_gpu_ends_the_check_with_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert gpu_check.main([]) == 2
    assert "torch sees no GPU" in capsys.readouterr().err


def test_prepared_headers_serve_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "PREPARED", tmp_path / "include")
    assert gpu_check.main(["--prepare"]) == 0
    assert str(tmp_path / "include") in capsys.readouterr().out
    assert build.prepared_headers() is None
    monkeypatch.setattr(build, "find_tensorrt_include", lambda: None)
    assert build.prepared_headers() == tmp_path / "include"
    assert build._build_harness(tmp_path / "harness.so", build.prepared_headers()).exists()
    assert gpu_check.main(["--prepare"]) == 2


def test_targets_are_judged_by_their_own_rule() -> None:
    large = timing.Measurement("AddLayerNorm", "float16", (65536, 768), 100.0, 4000.0, 91.0)
    large.compile_us, large.add_then_norm_us = 90.0, 120.0
    decode = timing.Measurement("GELU tanh", "bfloat16", (1, 768), 2.5, 1.0, 0.1)
    other = timing.Measurement("GELU tanh", "float32", (65536, 768), 1.0, 1.0, 0.1)
    assert [
        (target.wanted, target.is_met) for target in timing.targets([large, decode, other])
    ] == [
        (">= 90 % of a copy", True),
        (">= 1.0x torch.compile", False),
        ("<= 0.85x add + LayerNorm", True),
        ("<= 3 us in a CUDA graph", True),
    ]


def test_a_compiler_that_is_missing_leaves_the_column_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")

    def no_compiler(*_arguments: object, **_options: object) -> object:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", no_compiler)
    said: list[str] = []
    buffers = timing.Buffers.make(OPS[0], (2, 8), torch.float32, HostDevice(), 2)
    assert timing.compiled_us(OPS[0], buffers, HostDevice(), timing.DRY, 2, said.append) is None
    assert said == ["torch.compile of LayerNorm: RuntimeError: no compiler here"]
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)
    timed = timing.compiled_us(OPS[0], buffers, HostDevice(), timing.DRY, 2, said.append)
    assert timed is not None


@pytest.mark.parametrize("dtype_name", ["float32", "float16"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_the_graphs_for_engines_run_as_functions(op, dtype_name: str) -> None:  # type: ignore[no-untyped-def]
    """What TensorRT gets to parse is a valid model that computes the op."""
    torch = pytest.importorskip("torch")
    onnxruntime = pytest.importorskip("onnxruntime")
    dtype = DTYPES[dtype_name]
    engines.make_graph(op, dtype, as_plugin=True)
    session = onnxruntime.InferenceSession(
        engines.make_graph(op, dtype, as_plugin=False), providers=["CPUExecutionProvider"]
    )
    values = numerics.draw(op, *engines.SHAPE, dtype, HostDevice())
    names = engines.INPUT_NAMES[op.plugin]
    feed = {name: value.numpy() for name, value in zip(names, values, strict=True)}
    outputs = session.run(None, feed)
    for output, (expected, _) in zip(outputs, op.expected(*values), strict=True):
        torch.testing.assert_close(
            torch.from_numpy(output).double(), expected, rtol=2e-3, atol=2e-3
        )


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_the_graphs_for_engines_are_parsed_as_functions(op, dtype_name: str) -> None:  # type: ignore[no-untyped-def]
    trt = pytest.importorskip("tensorrt_rtx")
    logger = trt.Logger(trt.Logger.ERROR)
    graph = engines.make_graph(op, DTYPES[dtype_name], as_plugin=False)
    builder = trt.Builder(logger)
    network = engines.parse_graph(trt, builder, logger, graph)
    assert [network.get_output(i).name for i in range(network.num_outputs)] == ["Y", "S"][
        : op.outputs
    ]
    with pytest.raises(RuntimeError, match="cannot parse the graph"):
        engines.parse_graph(trt, builder, logger, b"no graph")


@pytest.fixture
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """torch.cuda as an object that takes every call that the real one has, and no other."""
    torch = pytest.importorskip("torch")
    cuda = MagicMock(spec=torch.cuda)
    cuda.get_device_properties.return_value = MagicMock(L2_cache_size=1 << 20)
    cuda.get_device_properties.return_value.name = "pretended"
    cuda.current_stream.return_value.cuda_stream = 7
    cuda.Event.return_value.elapsed_time.return_value = 2.0
    monkeypatch.setattr(torch, "cuda", cuda)
    return cuda


def test_the_cuda_device_makes_only_calls_that_torch_has(pretended_cuda: MagicMock) -> None:
    device = CudaDevice()
    work = MagicMock()
    replay = device.capture(work)
    assert work.call_count == 2  # once to warm up, once into the graph
    assert device.times(replay, 3) == [0.002] * 3
    assert device.stream() == 7
    device.synchronize()
    pretended_cuda.CUDAGraph.return_value.replay.assert_called()


@pytest.mark.usefixtures("pretended_cuda")
def test_engines_make_only_calls_that_tensorrt_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TensorRT-RTX has the same Python interface: its names are what the pretended one takes."""
    trt = MagicMock(spec=pytest.importorskip("tensorrt_rtx"))
    trt.init_libnvinfer_plugins = MagicMock()  # full TensorRT alone has it
    trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED = 0
    inspector = trt.Runtime.return_value.deserialize_cuda_engine.return_value
    inspector.create_engine_inspector.return_value.get_engine_information.return_value = (
        '{"LayerType": "PluginV3"}'
    )
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    found = engines.check_engines(tmp_path / "library.so", HostDevice())
    outputs = sum(op.outputs for op in OPS)
    assert found.checked == 2 * 3 * (len(OPS) + outputs)
    # Nothing was computed, and every layer says that it is a plugin: both are noticed.
    assert len(found.wrong) == 3 * (len(OPS) + 2 * outputs)


def test_the_sources_still_have_the_line_that_the_idle_library_drops() -> None:
    assert (SOURCES / "trt" / "plugin.cpp").read_text().count(build.LAUNCH) == 1

"""The parts of the engine stage that need no TensorRT."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from andrea_export.engine import binding
from andrea_export.engine.build import _check_plugins, _plugin_library
from andrea_export.engine.child import Child
from andrea_export.engine.compute_capability import from_member, parse_capabilities, to_member
from andrea_export.engine.flavors import FLAVORS, choose_flavor, is_installed
from andrea_export.engine.gpus import find_gpus
from andrea_export.engine.network_record import (
    LayerRecord,
    TensorRecord,
    forms_of_ops,
    node_of,
    tensor_types,
)
from andrea_export.engine.onnx_nodes import custom_nodes
from andrea_export.engine.options import EngineOptions, parse_bytes
from andrea_export.engine.precision import check_precision, precision_of
from andrea_export.engine.progress import BuildProgress
from andrea_export.engine.read_back import check_engine, summarize
from andrea_export.engine.source import open_source
from andrea_export.errors import BackendError, EngineError, InputError, MissingDependencyError

KNOWN = ("7.5", "8.9", "12.0")


def layer(type_, dtype="HALF", name="l", node="", function="", caller=""):
    return LayerRecord(
        name, type_, node, function, caller, (), (TensorRecord(f"{name}.out", dtype, (-1, 4)),)
    )


# Compute capabilities


def test_capabilities_are_read_in_the_order_given():
    assert parse_capabilities("12.0, 8.9", KNOWN) == ("12.0", "8.9")


@pytest.mark.parametrize("text", ["9.0", "89", "8.9.1", "", "8.9,", "sm_89"])
def test_unknown_capability_is_refused_with_the_known_ones(text):
    with pytest.raises(EngineError, match=r"not one that TensorRT-RTX builds for: 7.5, 8.9, 12.0"):
        parse_capabilities(text, KNOWN)


def test_capability_given_twice_is_refused():
    with pytest.raises(EngineError, match=r"compute capability 8.9 is given twice"):
        parse_capabilities("8.9,8.9", KNOWN)


@pytest.mark.parametrize(("text", "member"), [("8.9", "SM89"), ("12.0", "SM120"), ("7.5", "SM75")])
def test_capability_and_its_name_in_tensorrt_translate_both_ways(text, member):
    assert to_member(text) == member
    assert from_member(member) == text


def test_members_that_name_no_capability_are_none():
    assert from_member("CURRENT") is None


# Flavors


@pytest.fixture
def installed(monkeypatch):
    """Pretend which modules are installed: installed("tensorrt", ...)."""

    def pretend(*modules):
        monkeypatch.setattr(
            "andrea_export.engine.flavors.is_installed", lambda flavor: flavor.module in modules
        )

    return pretend


@pytest.mark.parametrize(
    ("modules", "gpu", "chosen"),
    [
        (("tensorrt", "tensorrt_rtx"), True, "tensorrt"),
        (("tensorrt", "tensorrt_rtx"), False, "rtx"),
        (("tensorrt_rtx",), True, "rtx"),
        (("tensorrt",), True, "tensorrt"),
    ],
)
def test_auto_takes_full_tensorrt_only_where_it_can_build(installed, modules, gpu, chosen):
    installed(*modules)
    assert choose_flavor("auto", gpu=lambda: gpu).name == chosen


def test_missing_flavor_names_the_extra(installed):
    installed()
    with pytest.raises(MissingDependencyError, match=r"andrea-export\[gpu\].*andrea-export\[rtx\]"):
        choose_flavor("auto", gpu=lambda: True)
    with pytest.raises(MissingDependencyError, match=r"TensorRT-RTX is not .*andrea-export\[rtx\]"):
        choose_flavor("rtx", gpu=lambda: True)


def test_full_tensorrt_without_a_gpu_is_refused(installed):
    installed("tensorrt")
    with pytest.raises(BackendError, match=r"TensorRT builds on the GPU .* --flavor rtx"):
        choose_flavor("tensorrt", gpu=lambda: False)


def test_unknown_flavor_is_refused():
    with pytest.raises(EngineError, match="flavor 'lean' is not one of auto, tensorrt, rtx"):
        choose_flavor("lean", gpu=lambda: False)


def test_folder_of_type_stubs_is_not_an_installed_tensorrt(tmp_path, monkeypatch):
    (tmp_path / "tensorrt").mkdir()
    (tmp_path / "tensorrt" / "__init__.pyi").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed(FLAVORS["tensorrt"])


def test_module_that_cannot_be_loaded_is_told_with_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvonnxparser.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(binding._chosen, "module", None)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    with pytest.raises(BackendError, match=r"TensorRT is installed but cannot .*libnvonnxparser"):
        binding.use_flavor("tensorrt")


@pytest.mark.parametrize(
    ("flavor", "option", "message"),
    [
        ("rtx", {"plugins": "on"}, "does not take --plugins on: it has no interface for user"),
        ("rtx", {"plugin_library": "x"}, "does not take --plugin-library: it has no interface"),
        ("rtx", {"timing_cache": "x"}, "does not take --timing-cache: it times no kernels"),
        ("rtx", {"version_compatible": True}, "does not take --version-compatible"),
        ("rtx", {"hardware_compatible": True}, "name several GPUs with --compute-capability"),
        ("tensorrt", {"compute_capability": "8.9"}, "it builds for the GPU that it runs on"),
    ],
)
def test_option_that_a_flavor_lacks_is_refused_with_the_reason(flavor, option, message):
    with pytest.raises(EngineError, match=message):
        EngineOptions(**option).check_flavor(FLAVORS[flavor])


# Options


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("4G", 4 << 30), ("1 MiB", 1 << 20), ("2kb", 2048)]
)
def test_sizes_are_read_in_powers_of_1024(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "4T", "1.5G"])
def test_size_is_refused_when_it_is_none(text):
    with pytest.raises(EngineError, match="a size is a number with K, M or G"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype 'int8' is not one of fp32, fp16, bf16"),
        ({"plugins": "maybe"}, "plugins 'maybe' is not one of auto, on, off"),
        ({"optimization_level": 6}, "from 0 to 5, not 6"),
        ({"capacity": 0}, "capacity must be at least 1, not 0"),
        ({"workspace_bytes": 0}, "workspace must be at least 1 byte"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(EngineError, match=message):
        EngineOptions(**options)


# The network


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("[ONNX Layer: blocks.0.attn.q]", ("blocks.0.attn.q", "", "")),
        (
            "[ONNX Layer: Y/x | blocks.0.norm1 (AndreaLayerNorm)]",
            ("Y/x", "AndreaLayerNorm", "blocks.0.norm1"),
        ),
        ("", ("", "", "")),
    ],
)
def test_onnx_node_is_read_from_what_the_parser_writes_at_a_layer(metadata, expected):
    assert node_of(metadata) == expected


def test_layer_survives_being_written_and_read():
    record = layer("CAST", node="Y/x", function="AndreaGelu", caller="blocks.0.mlp.activation")
    assert LayerRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_tensor_types_are_counted():
    layers = [layer("CAST"), layer("CAST"), layer("CAST", "FLOAT")]
    assert tensor_types(layers) == {"HALF": 2, "FLOAT": 1}


def test_forms_count_nodes_not_layers():
    layers = [
        layer("CAST", function="AndreaGelu", caller="a"),
        layer("ACTIVATION", function="AndreaGelu", caller="a"),
        layer("ACTIVATION", function="AndreaGelu", caller="b"),
        layer("PLUGIN_V3", node="c"),
        layer("PLUGIN_V3", node="d"),
    ]
    ops = {"c": "AndreaGelu", "d": "AndreaLayerNorm"}
    assert forms_of_ops(layers, ops, {"AndreaGelu": 3, "AndreaLayerNorm": 1}) == {
        "AndreaGelu": {"function": 2, "plugin": 1},
        "AndreaLayerNorm": {"plugin": 1},
    }


def test_node_that_took_neither_form_is_counted_as_unknown():
    layers = [layer("CAST", function="AndreaGelu", caller="a")]
    assert forms_of_ops(layers, {}, {"AndreaGelu": 3, "AndreaLayerNorm": 1}) == {
        "AndreaGelu": {"function": 1, "unknown": 2},
        "AndreaLayerNorm": {"unknown": 1},
    }


# Precision


@pytest.mark.parametrize(
    ("types", "precision"),
    [(["HALF"], "fp16"), (["BF16", "BF16"], "bf16"), (["FLOAT", "HALF"], "mixed"), ([], "none")],
)
def test_precision_is_what_all_matrix_products_compute_in(types, precision):
    layers = [layer("MATRIX_MULTIPLY", type_) for type_ in types]
    assert precision_of([*layers, layer("NORMALIZATION", "FLOAT")]) == precision


def test_shape_arithmetic_is_no_matrix_product():
    assert precision_of([layer("MATRIX_MULTIPLY"), layer("EINSUM", "INT64")]) == "fp16"


def test_asking_fp16_and_getting_fp32_is_an_error():
    layers = [layer("MATRIX_MULTIPLY", "FLOAT", node="blocks.0.attn.q")] * 2
    check_precision(layers, "fp32")
    with pytest.raises(EngineError, match=r"fp16 was asked .*: 2 FLOAT, 1 HALF .*blocks.0.attn.q"):
        check_precision([*layers, layer("MATRIX_MULTIPLY")], "fp16")


# Shape of the inspector's JSON: TensorRT's developer guide, "Engine Inspector".
INSPECTED = json.dumps(
    {
        "Layers": [
            {
                "Name": "fc1",
                "LayerType": "gemm",
                "Outputs": [{"Name": "a", "Format/Datatype": "Row major linear FP16 format"}],
            },
            {
                "Name": "norm",
                "LayerType": "kgen",
                "Outputs": [
                    {"Name": "b", "Format/Datatype": "Half"},
                    {"Name": "c", "Format/Datatype": "Float"},
                ],
            },
        ],
        "Bindings": ["input_ids", "logits"],
    }
)


def test_types_of_a_built_engine_are_counted_from_the_inspector():
    summary = summarize(INSPECTED)
    assert summary["tensor_types"] == {"HALF": 2, "FLOAT": 1}
    assert summary["layer_types"] == {"gemm": 1, "kgen": 1}
    check_engine(summary, "fp16")


def many_layers(words):
    """The inspector's JSON of an engine of twelve layers."""
    output = {"Name": "a", "Format/Datatype": words}
    return json.dumps({"Layers": [{"LayerType": "gemm", "Outputs": [output]}] * 12})


def test_built_engine_without_any_half_tensor_is_refused():
    with pytest.raises(EngineError, match=r"fp16 was asked for, .* no HALF tensor: 12 FLOAT"):
        check_engine(summarize(many_layers("Float")), "fp16")
    check_engine(summarize(many_layers("Float")), "fp32")
    check_engine(summarize(many_layers("Half")), "fp16")


def test_engine_fused_into_a_few_nodes_is_no_evidence():
    fused = {"LayerType": "Myelin", "Outputs": [{"Name": "logits", "Format/Datatype": "Float"}]}
    check_engine(summarize(json.dumps({"Layers": [fused]})), "fp16")


def test_unreadable_description_of_an_engine_is_told():
    with pytest.raises(EngineError, match="description of the engine is not readable"):
        summarize("no JSON")


# Progress


def test_nested_phases_give_one_growing_fraction():
    progress = BuildProgress()
    progress.start("build", None, 4)
    progress.step("build", 0)
    assert progress.fraction == pytest.approx(0.25)
    progress.start("tactics", "build", 10)
    progress.step("tactics", 4)
    assert progress.fraction == pytest.approx(0.25 + 0.5 / 4)
    progress.finish("tactics")
    progress.step("build", 1)
    assert progress.fraction == pytest.approx(0.5)
    progress.finish("build")
    assert progress.fraction == 1.0


def test_fraction_never_shrinks_when_a_phase_starts_over():
    progress = BuildProgress()
    progress.start("a", None, 2)
    progress.step("a", 0)
    progress.start("a", None, 2)
    progress.step("a", -1)
    assert progress.fraction == pytest.approx(0.5)


# The child process


def child(code):
    return Child((sys.executable, "-c", "import json, os, sys, time\n" + code))


SEND = "events = os.fdopen(int(sys.argv[1]), 'w')\n"


def test_result_of_the_child_is_returned_and_its_progress_reported():
    seen = []
    code = (
        SEND + "sys.stdin.readline()\n"
        "print(json.dumps({'event': 'progress', 'fraction': 0.5}), file=events)\n"
        "print(json.dumps({'event': 'done', 'answer': 42}), file=events)"
    )
    result = child(code).run("{}", "x.onnx", lambda *pair: seen.append(pair))
    assert result == {"answer": 42}
    assert seen == [(500, 1000)]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os.abort()", r"x.onnx: TensorRT's process died while starting \(signal SIGABRT\)"),
        ("os.kill(os.getpid(), 9)", r"\(signal SIGKILL\); the system may be out of memory"),
        ("print('last words'); sys.exit(3)", r"\(exit code 3\): last words"),
        (
            SEND + 'print(\'{"event": "stage", "name": "parsing"}\', file=events, flush=True)'
            "\nos.abort()",
            r"died while parsing \(signal SIGABRT\)",
        ),
    ],
)
def test_death_of_the_child_is_told_with_its_signal_and_last_words(code, message):
    with pytest.raises(EngineError, match=message):
        child(code).run("{}", "x.onnx")


def test_error_of_the_child_keeps_its_class():
    code = SEND + (
        "print(json.dumps({'event': 'error', 'kind': 'InputError', 'message': 'm'}), file=events)"
    )
    with pytest.raises(InputError, match=r"^m$"):
        child(code).run("{}", "x.onnx")


def test_child_stops_when_its_input_closes():
    waiting = child("sys.stdin.read()")
    waiting.close()
    assert waiting._process.returncode == 0


def test_child_stops_when_its_parent_is_killed(tmp_path):
    code = f"""
import os, sys
from andrea_export.engine.child import Child
inner = "import sys; sys.stdin.read(); open({str(tmp_path / "stopped")!r}, 'w').close()"
Child((sys.executable, "-c", inner))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    deadline = time.monotonic() + 10
    while not (tmp_path / "stopped").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "stopped").exists()


# The GPU


DRIVER = """
#include <string.h>
int cuDriverGetVersion(int *v) { *v = 13010; return 0; }
int cuInit(unsigned flags) { return STATUS; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, device ? "B" : "A", size);
    return 0;
}
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 6000000000ul; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 + device : attribute == 76 ? 6 : -1;
    return 0;
}
"""


def driver(folder, status):
    """A driver library with two GPUs, whose cuInit returns `status` (see cuda.h)."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source, library = folder / "cuda.c", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    command = ["cc", "-shared", "-fPIC", f"-DSTATUS={status}", "-o", library, source]
    subprocess.run(command, check=True)
    return str(library)


def test_gpus_are_read_from_the_driver(tmp_path):
    machine = find_gpus(driver(tmp_path, 0))
    assert machine.cuda == "13.1"
    assert [gpu.name for gpu in machine.gpus] == ["A", "B"]
    assert [gpu.compute_capability for gpu in machine.gpus] == ["8.6", "9.6"]
    assert machine.gpus[0].memory_bytes == 6_000_000_000


def test_driver_that_finds_no_gpu_is_told_apart_from_no_driver(tmp_path):
    machine = find_gpus(driver(tmp_path, 100))
    assert (machine.gpus, machine.cuda) == ((), "13.1")
    assert machine.problem == "the driver finds no usable GPU (CUDA error 100)"


def test_machine_without_a_driver_has_no_gpus(tmp_path):
    machine = find_gpus(str(tmp_path / "libcuda.so.1"))
    assert machine.gpus == ()
    assert machine.cuda is None
    assert "no NVIDIA driver" in machine.problem


# Plugins, as far as they go without TensorRT


@pytest.fixture
def no_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))


@pytest.mark.usefixtures("no_library")
def test_no_plugin_library_is_a_note_unless_plugins_are_insisted_on():
    notes = []
    assert _plugin_library(FLAVORS["tensorrt"], EngineOptions(), notes.append) is None
    assert any("custom ops use their definitions inside the graph" in line for line in notes)
    with pytest.raises(InputError, match="andrea-export plugins build"):
        _plugin_library(FLAVORS["tensorrt"], EngineOptions(plugins="on"), notes.append)


@pytest.mark.usefixtures("no_library")
def test_plugins_off_and_rtx_never_look_for_a_library():
    notes = []
    for flavor, plugins in (("tensorrt", "off"), ("rtx", "auto")):
        options = EngineOptions(plugins=plugins)
        assert _plugin_library(FLAVORS[flavor], options, notes.append) is None
    assert notes == []


def test_library_of_someone_else_is_refused(tmp_path):
    other = driver(tmp_path, 0)
    options = EngineOptions(plugin_library=Path(other))
    with pytest.raises(InputError, match="not one of andrea-export's"):
        _plugin_library(FLAVORS["tensorrt"], options, print)


def test_insisting_on_plugins_fails_when_no_node_became_one(tiny_folder):
    graph = open_source(tiny_folder)
    _check_plugins(graph, {"AndreaGelu": {"function": 1}, "AndreaLayerNorm": {"plugin": 1}})
    with pytest.raises(EngineError, match=r"--plugins on, but no node of .* \(AndreaGelu\)"):
        _check_plugins(graph, {"AndreaGelu": {"function": 1}})


def test_names_of_custom_nodes_tell_their_ops(tiny_folder):
    nodes = custom_nodes(tiny_folder / "model.onnx")
    assert nodes["blocks.1.mlp.activation"] == "AndreaBiasGelu"
    assert nodes["norm_f"] == "AndreaAddLayerNorm"
    assert "blocks.0.attn.q" not in nodes

"""The compiled library as a file: symbols, machine code, and what a process that loads it sees."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from andrea_export.plugins import ALL_ARCHITECTURES, BuiltLibrary, read_library
from andrea_export.plugins.toolchain import find_nvcc
from benchmarks.gpu_check.v3_harness import Harness, HarnessError, TensorSpec
from tests.plugins.host_library import SOURCES

EXPORTED = {
    "getCreators",
    "setLoggerFinder",
    "andrea_layer_norm",
    "andrea_add_layer_norm",
    "andrea_gelu",
    "andrea_bias_gelu",
    "andrea_status_string",
    "andrea_library_info",
}
# librt, libpthread and libdl became part of libc with glibc 2.34; before, cudart needs them.
ALLOWED_LIBRARIES = {
    *("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"),
    *("ld-linux-aarch64.so.1", "librt.so.1", "libpthread.so.0", "libdl.so.2"),
}
ALLOWED_VERSIONS = ("GLIBC_", "GLIBCXX_", "CXXABI_", "GCC_")
# Left undefined on purpose: instrumentation hooks that are used only where they exist.
WEAK = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
WEAK |= {"__cxa_finalize"}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("AndreaLayerNorm", {"epsilon": 1e-5}),
    ("AndreaAddLayerNorm", {"epsilon": 1e-6}),
    ("AndreaGelu", {"approximate": "tanh"}),
    ("AndreaBiasGelu", {"approximate": "none"}),
]
BAD_CASES: list[tuple[str, dict[str, Any], str]] = [
    ("AndreaLayerNorm", {}, "the attribute 'epsilon' is missing"),
    ("AndreaAddLayerNorm", {"epsilon": -1.0}, "epsilon must be positive and finite, got -1"),
    ("AndreaGelu", {"approximate": "fast"}, "must be 'tanh' or 'none', got 'fast'"),
    ("AndreaBiasGelu", {"approximate": 3}, "approximate must be a string, got field type 5"),
]


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_nothing_is_left_undefined_but_the_c_and_cpp_libraries(built: BuiltLibrary) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", built.library))
    assert set(needed) <= ALLOWED_LIBRARIES
    for line in output_of("nm", "-D", "--undefined-only", built.library).splitlines():
        symbol, _, version = line.split()[-1].partition("@")
        assert version.startswith(ALLOWED_VERSIONS) or symbol in WEAK, line


def test_only_the_interface_is_exported(built: BuiltLibrary) -> None:
    lines = output_of("nm", "-D", "--defined-only", built.library).splitlines()
    assert {line.split()[-1] for line in lines} == EXPORTED


def test_every_kernel_of_every_architecture_stays_in_registers(built: BuiltLibrary) -> None:
    log = built.log.read_text()
    entry = r"Compiling entry function '(\w+)' for 'sm_(\d+)'"
    memory = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    kernels = dict.fromkeys(ALL_ARCHITECTURES, 0)
    for part in re.split(r"(?=ptxas info\s*: Compiling entry)", log)[1:]:
        kernel, architecture = re.search(entry, part).groups()  # type: ignore[union-attr]
        used = re.findall(memory, part)
        assert used, f"ptxas does not say what {kernel} uses"
        assert all(numbers == ("0", "0", "0") for numbers in used), part
        assert "lmem" not in part, part
        kernels[architecture] += 1
    assert len(set(kernels.values())) == 1
    assert kernels["75"] > 80


def test_kernels_move_16_bytes_at_a_time(tmp_path: Path) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    for source in sorted((SOURCES / "kernels").glob("*.cu")):
        if source.name == "status.cu":
            continue
        ptx = tmp_path / "kernel.ptx"
        flags = ("-std=c++17", "-arch=compute_90", f"-I{SOURCES / 'include'}")
        output_of(nvcc, "-ptx", *flags, source, "-o", ptx)
        text = ptx.read_text()
        for entry in text.split(".visible .entry")[1:]:
            wide = re.findall(r"(?:ld|st)\.global\.v4\.[uf]32", entry)
            narrow = re.findall(r"(?:ld|st)\.global\.(?:u16|f32|u32)\b", entry)
            # The tail of GELU is the one place where a vector kernel moves single elements.
            assert not (wide and narrow) or "gelu_kernel" in entry, source
            assert wide or narrow, source
        assert ".local" not in text, source


def test_the_library_says_what_it_contains(built: BuiltLibrary) -> None:
    contents = read_library(built.library)
    assert contents.architectures == ALL_ARCHITECTURES
    assert contents.types == ("float32", "float16", "bfloat16")
    assert [plugin.name for plugin in contents.plugins] == [name for name, _ in CASES]
    assert {(plugin.version, plugin.namespace) for plugin in contents.plugins} == {("1", "andrea")}
    assert [plugin.outputs for plugin in contents.plugins] == [1, 2, 1, 1]
    assert contents.plugins[0].fields == {"epsilon": "float32"}
    assert contents.plugins[3].fields == {"approximate": "string"}


@pytest.fixture(scope="module")
def registry(built: BuiltLibrary) -> dict[str, Any]:
    """What TensorRT's own registry makes of the library, and what its logger heard."""
    if find_spec("tensorrt_rtx") is None:
        pytest.skip("tensorrt_rtx is not installed")
    cases = json.dumps(CASES + [(name, attributes) for name, attributes, _ in BAD_CASES])
    probe = Path(__file__).with_name("registry_probe.py")
    result = subprocess.run(
        [sys.executable, probe, built.library, cases], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == "", "a message went past TensorRT's logger"
    return dict(json.loads(result.stdout))


def test_the_registry_finds_every_creator(registry: dict[str, Any]) -> None:
    found = registry["found"]
    assert set(found) == {name for name, _ in CASES}
    assert {creator["version"] for creator in found.values()} == {"1"}
    assert {creator["interface"] for creator in found.values()} == {"PLUGIN CREATOR_V3ONE"}
    assert found["AndreaLayerNorm"]["fields"] == {"epsilon": "FLOAT32"}
    assert found["AndreaGelu"]["fields"] == {"approximate": "CHAR"}


def test_the_registry_finds_nothing_under_another_name_version_or_namespace(
    registry: dict[str, Any],
) -> None:
    assert registry["missing"] == [True, True, True]


def test_the_registry_creates_plugins_from_fields(registry: dict[str, Any]) -> None:
    created = registry["created"][: len(CASES)]
    assert [plugin["name"] for plugin in created] == [name for name, _ in CASES]
    assert [plugin["outputs"] for plugin in created] == [1, 2, 1, 1]
    assert {(plugin["version"], plugin["namespace"]) for plugin in created} == {("1", "andrea")}


def test_the_registry_gets_no_plugin_from_wrong_fields_and_its_logger_hears_why(
    registry: dict[str, Any],
) -> None:
    assert registry["created"][len(CASES) :] == [None] * len(BAD_CASES)
    heard = [message for message in registry["messages"] if message.startswith("Andrea")]
    for (name, _, message), said in zip(BAD_CASES, heard, strict=True):
        assert said.startswith(f"{name}: ")
        assert message in said


def test_the_registry_can_unload_the_library(registry: dict[str, Any]) -> None:
    assert registry["left"] == []


@pytest.mark.parametrize(
    ("label", "attribute", "value", "message"),
    [
        (
            "LayerNorm",
            "epsilon",
            -0.5,
            "AndreaLayerNorm: epsilon must be positive and finite, got -0.5",
        ),
        ("BiasGELU tanh", "approximate", "fast", "AndreaBiasGelu: .* 'tanh' or 'none', got 'fast'"),
        (
            "GELU erf",
            "approximate",
            3,
            "AndreaGelu: approximate must be a string, got field type 5",
        ),
    ],
)
def test_attributes_of_a_graph_reach_the_plugin_as_fields(
    built: BuiltLibrary, label: str, attribute: str, value: float | str, message: str
) -> None:
    if find_spec("tensorrt_rtx") is None:
        pytest.skip("tensorrt_rtx is not installed")
    command = [sys.executable, "-m", "tests.plugins.parser_probe", str(built.library)]
    result = subprocess.run(
        [*command, label, attribute, json.dumps(value)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    heard = json.loads(result.stdout)
    assert heard["is_parsed"] is False
    assert any(re.fullmatch(message, said) for said in heard["messages"]), heard


def test_the_c_interface_is_plain_c() -> None:
    header = SOURCES / "include" / "andrea_kernels.h"
    flags = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-xc")
    subprocess.run(["gcc", *flags, header], check=True)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU here")
def test_without_a_driver_every_launch_is_refused_with_the_reason(
    built: BuiltLibrary, harness: Path
) -> None:
    """The real library, everything up to the launch itself."""
    shape = (2, 768)
    vectors = {"AndreaLayerNorm": 2, "AndreaAddLayerNorm": 2, "AndreaGelu": 0, "AndreaBiasGelu": 1}
    v3 = Harness(harness)
    for name, attributes in CASES:
        is_add = name == "AndreaAddLayerNorm"
        inputs = [TensorSpec("bfloat16", shape, (0,))] * (1 + is_add)
        inputs += [TensorSpec("bfloat16", (768,))] * vectors[name]
        plugin = v3.open(built.library, name, attributes, inputs, 1 + is_add)
        with pytest.raises(
            HarnessError, match=f"error: {name}: .* for 2 x 768 bfloat16: .*(driver|device)"
        ):
            plugin.enqueue([4096] * len(inputs), [4096] * (1 + is_add))
        plugin.close()

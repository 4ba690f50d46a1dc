"""The plugins through TensorRT's V3 interfaces alone: what is accepted, refused, and computed."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea_export.plugins.toolchain import find_cuda_include, find_tensorrt_include
from benchmarks.gpu_check.v3_harness import Harness, HarnessError, Plugin, TensorSpec
from tests.plugins import reference
from tests.plugins.host_library import SOURCES
from tests.plugins.kernel_calls import Tensor
from tests.plugins.kernel_checks import assert_close
from tests.plugins.reference import DTYPES

EPSILON = 1e-5
OPS = ("AndreaLayerNorm", "AndreaAddLayerNorm", "AndreaGelu", "AndreaBiasGelu")
ACTIVATIONS = {"AndreaLayerNorm": 1, "AndreaAddLayerNorm": 2, "AndreaGelu": 1, "AndreaBiasGelu": 1}
VECTORS = {"AndreaLayerNorm": 2, "AndreaAddLayerNorm": 2, "AndreaGelu": 0, "AndreaBiasGelu": 1}
OUTPUTS = {"AndreaLayerNorm": 1, "AndreaAddLayerNorm": 2, "AndreaGelu": 1, "AndreaBiasGelu": 1}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "AndreaLayerNorm": {"epsilon": EPSILON},
    "AndreaAddLayerNorm": {"epsilon": EPSILON},
    "AndreaGelu": {"approximate": "tanh"},
    "AndreaBiasGelu": {"approximate": "none"},
}
SHAPE = (2, 3, 768)

Array = np.ndarray


@pytest.fixture(scope="session")
def v3(harness: Path) -> Harness:
    return Harness(harness)


def specs(op: str, dtype: str = "float16", shape: tuple[int, ...] = SHAPE) -> list[TensorSpec]:
    leading = tuple(range(len(shape) - 1))
    activations = [TensorSpec(dtype, shape, dynamic=leading)] * ACTIVATIONS[op]
    return activations + [TensorSpec(dtype, shape[-1:])] * VECTORS[op]


def replaced(tensors: list[TensorSpec], index: int, tensor: TensorSpec) -> list[TensorSpec]:
    return [*tensors[:index], tensor, *tensors[index + 1 :]]


def expected_outputs(op: str, attributes: dict[str, Any], inputs: list[Array]) -> list[Any]:
    """(expected, size of its terms) for each output, from float64."""
    x, *others = [value.astype(np.float64) for value in inputs]
    if op == "AndreaLayerNorm":
        return [reference.layer_norm(x, *others, attributes["epsilon"])]
    if op == "AndreaAddLayerNorm":
        total = reference.add(*inputs[:2]).astype(np.float64)
        return [
            reference.layer_norm(total, *others[1:], attributes["epsilon"]),
            (total, np.zeros_like(total)),
        ]
    total = (x + others[0]).astype(np.float32).astype(np.float64) if others else x
    return [reference.gelu(total, attributes["approximate"])]


def run(plugin: Plugin, op: str, dtype: str, shape: tuple[int, ...]) -> tuple[Any, list[Tensor]]:
    rng = np.random.default_rng(4)
    values = [
        rng.standard_normal(spec.shape).astype(DTYPES[dtype]) for spec in specs(op, dtype, shape)
    ]
    inputs = [Tensor.of(value) for value in values]
    outputs = [Tensor(shape, dtype) for _ in range(OUTPUTS[op])]
    plugin.enqueue([t.address for t in inputs], [t.address for t in outputs])
    assert all(tensor.canaries_are_intact() for tensor in (*inputs, *outputs))
    return values, outputs


@pytest.mark.parametrize("shape", [SHAPE, (5, 33), (768,), (1, 2, 1, 2, 1, 2, 1, 40), (0, 64)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_plugin_built_and_restored_computes_its_op(
    v3: Harness, host_library: Path, op: str, dtype: str, shape: tuple[int, ...]
) -> None:
    for attributes in (ATTRIBUTES[op], OTHER_ATTRIBUTES[op]):
        plugin = v3.open(host_library, op, attributes, specs(op, dtype, shape), OUTPUTS[op])
        values, outputs = run(plugin, op, dtype, shape)
        for output, expected in zip(outputs, expected_outputs(op, attributes, values), strict=True):
            assert_close(output.array, *expected)
        plugin.close()
    assert v3.take_log() == ""


# Different enough that a plugin that loses its attribute on the way gives other numbers.
OTHER_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "AndreaLayerNorm": {"epsilon": 0.5},
    "AndreaAddLayerNorm": {"epsilon": 0.5},
    "AndreaGelu": {"approximate": "none"},
    "AndreaBiasGelu": {"approximate": "tanh"},
}


@pytest.mark.parametrize("op", OPS)
def test_a_plugin_after_a_shape_change_computes_the_new_shape(
    v3: Harness, host_library: Path, op: str
) -> None:
    plugin = v3.open(host_library, op, ATTRIBUTES[op], specs(op), OUTPUTS[op])
    plugin.reshape(specs(op, shape=(1, 1, 768)))
    values, outputs = run(plugin, op, "float16", (1, 1, 768))
    for output, expected in zip(outputs, expected_outputs(op, ATTRIBUTES[op], values), strict=True):
        assert_close(output.array, *expected)
    plugin.close()


def test_gelu_with_a_dynamic_last_axis_is_accepted(v3: Harness, host_library: Path) -> None:
    inputs = [TensorSpec("float16", (4, 10), dynamic=(0, 1))]
    v3.open(host_library, "AndreaGelu", {"approximate": "tanh"}, inputs).close()


@pytest.mark.parametrize("op", OPS)
def test_timing_ids_tell_attributes_apart(v3: Harness, host_library: Path, op: str) -> None:
    identities = set()
    for attributes in (ATTRIBUTES[op], OTHER_ATTRIBUTES[op]):
        plugin = v3.open(host_library, op, attributes, specs(op), OUTPUTS[op])
        identities.add(plugin.identity)
        plugin.close()
    assert len(identities) == 2


@pytest.mark.parametrize("op", OPS)
def test_lookup_attributes_are_ignored_and_unknown_ones_are_named(
    v3: Harness, host_library: Path, op: str
) -> None:
    lookup = {"plugin_namespace": "andrea", "plugin_version": "1"}
    v3.open(host_library, op, ATTRIBUTES[op] | lookup, specs(op), OUTPUTS[op]).close()
    assert v3.take_log() == ""
    v3.open(host_library, op, ATTRIBUTES[op] | {"eps": 1.0}, specs(op), OUTPUTS[op]).close()
    assert f"warning: {op}: ignoring the unknown attribute 'eps'" in v3.take_log()


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("AndreaLayerNorm", {}, "the attribute 'epsilon' is missing"),
        ("AndreaLayerNorm", {"eps": 1e-5}, "the attribute 'epsilon' is missing"),
        ("AndreaLayerNorm", {"epsilon": 0.0}, "epsilon must be positive and finite, got 0"),
        ("AndreaAddLayerNorm", {"epsilon": -1e-5}, "positive and finite, got -1e-05"),
        ("AndreaAddLayerNorm", {"epsilon": float("nan")}, "positive and finite, got nan"),
        ("AndreaLayerNorm", {"epsilon": float("inf")}, "positive and finite, got inf"),
        ("AndreaLayerNorm", {"epsilon": "1e-5"}, "epsilon must be one float32"),
        ("AndreaLayerNorm", {"epsilon": 1}, "epsilon must be one float32"),
        ("AndreaLayerNorm", {"epsilon": [1e-5, 1e-5]}, "got 2 value"),
        ("AndreaLayerNorm", {"epsilon": []}, "got 0 value"),
        ("AndreaGelu", {}, "the attribute 'approximate' is missing"),
        ("AndreaGelu", {"approximate": "fast"}, "must be 'tanh' or 'none', got 'fast'"),
        ("AndreaGelu", {"approximate": ""}, "must be 'tanh' or 'none', got ''"),
        ("AndreaGelu", {"approximate": "tanhx"}, "got 'tanhx'"),
        ("AndreaBiasGelu", {"approximate": "x" * 5000}, "got 'xxxxxxxxxx"),
        ("AndreaBiasGelu", {"approximate": 1}, "approximate must be a string"),
    ],
)
def test_attributes_missing_or_wrong_are_refused_by_name(
    v3: Harness, host_library: Path, op: str, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(HarnessError) as refusal:
        v3.open(host_library, op, attributes, specs(op), OUTPUTS[op])
    assert f"error: {op}: " in str(refusal.value)
    assert message in str(refusal.value)
    assert "failed at: createPlugin (build)" in str(refusal.value)


def test_a_string_with_a_terminator_counted_in_is_accepted(v3: Harness, host_library: Path) -> None:
    v3.open(host_library, "AndreaGelu", {"approximate": "tanh\0"}, specs("AndreaGelu")).close()


@pytest.mark.parametrize(
    ("op", "index", "tensor", "message"),
    [
        ("AndreaLayerNorm", 1, TensorSpec("float16", (767,)), "must be [768]"),
        ("AndreaLayerNorm", 2, TensorSpec("float16", (1, 768)), "got 2 dimension(s)"),
        ("AndreaLayerNorm", 2, TensorSpec("float16", (768,), dynamic=(0,)), "must be [768]"),
        (
            "AndreaLayerNorm",
            1,
            TensorSpec("float32", (768,)),
            "X is float16 and input 1 is float32",
        ),
        ("AndreaAddLayerNorm", 1, TensorSpec("float16", (2, 4, 768)), "axis 1 is 3 and 4"),
        ("AndreaAddLayerNorm", 1, TensorSpec("float16", (3, 768)), "got 3 and 2 dimensions"),
        ("AndreaAddLayerNorm", 1, TensorSpec("bfloat16", SHAPE), "input 1 is bfloat16"),
        ("AndreaBiasGelu", 1, TensorSpec("float16", (3072,)), "must be [768]"),
        ("AndreaBiasGelu", 0, TensorSpec("float16", SHAPE, (2,)), "got a dynamic one"),
        ("AndreaLayerNorm", 0, TensorSpec("float16", SHAPE, (0, 2)), "got a dynamic one"),
        ("AndreaLayerNorm", 0, TensorSpec("float16", ()), "got a scalar"),
        ("AndreaLayerNorm", 0, TensorSpec("int32", SHAPE), "got another type"),
        ("AndreaGelu", 0, TensorSpec("int32", SHAPE), "got another type"),
        ("AndreaGelu", 0, TensorSpec("float16", (1,) * 9), "up to 8 dimensions, got 9"),
        ("AndreaBiasGelu", 0, TensorSpec("float16", (*(1,) * 8, 768)), "up to 8 dimensions, got 9"),
    ],
)
def test_tensors_outside_the_contract_are_refused_with_what_was_seen(
    v3: Harness, host_library: Path, op: str, index: int, tensor: TensorSpec, message: str
) -> None:
    static = [TensorSpec(spec.dtype, spec.shape) for spec in specs(op)]
    with pytest.raises(HarnessError) as refusal:
        v3.open(host_library, op, ATTRIBUTES[op], replaced(static, index, tensor), OUTPUTS[op])
    assert f"error: {op}: " in str(refusal.value)
    assert message in str(refusal.value)


@pytest.mark.parametrize("width", [0, 65537])
def test_a_width_outside_the_limits_is_refused(v3: Harness, host_library: Path, width: int) -> None:
    with pytest.raises(HarnessError, match=f"1 to 65536 wide, got {width}"):
        v3.open(
            host_library,
            "AndreaBiasGelu",
            {"approximate": "tanh"},
            specs("AndreaBiasGelu", shape=(2, width)),
        )


@pytest.mark.parametrize("op", OPS)
def test_a_wrong_number_of_inputs_is_refused(v3: Harness, host_library: Path, op: str) -> None:
    for inputs in (specs(op)[:-1] or [], [*specs(op), specs(op)[-1]]):
        if not inputs:
            continue
        with pytest.raises(HarnessError, match=rf"{op}: needs \d input.*got {len(inputs)}"):
            v3.open(host_library, op, ATTRIBUTES[op], inputs, OUTPUTS[op])


def test_a_shape_change_outside_the_contract_is_refused(v3: Harness, host_library: Path) -> None:
    plugin = v3.open(
        host_library, "AndreaLayerNorm", {"epsilon": EPSILON}, specs("AndreaLayerNorm")
    )
    with pytest.raises(HarnessError, match=r"must be \[64\] like the last axis"):
        plugin.reshape([TensorSpec("float16", (2, 64)), *specs("AndreaLayerNorm")[1:]])
    plugin.close()


def test_a_launch_that_fails_is_reported_with_its_shape(v3: Harness, host_library: Path) -> None:
    plugin = v3.open(host_library, "AndreaGelu", {"approximate": "tanh"}, specs("AndreaGelu"))
    x = Tensor(SHAPE, "float16")
    with pytest.raises(
        HarnessError, match=r"error: AndreaGelu: .* for 6 x 768 float16: misaligned address"
    ):
        plugin.enqueue([x.address + 1], [x.address])
    plugin.close()


@pytest.mark.parametrize(
    ("version", "is_versioned", "is_heard"),
    [
        ((10, 0), False, True),
        ((10, 16), False, True),
        ((11, 4), True, True),
        ((1, 7), True, True),  # TensorRT-RTX
        ((9, 3), False, False),
        ((1, 0), False, False),
    ],
)
def test_messages_reach_the_logger_of_each_known_tensorrt_and_stderr_otherwise(
    host_library: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    version: tuple[int, int],
    is_versioned: bool,
    is_heard: bool,
) -> None:
    """TensorRT 10 and 11 differ in how a logger is called, and headers are often of the other."""
    fake = tmp_path / "libnvinfer.so"
    source = SOURCES / "harness" / "fake_tensorrt.cpp"
    defines = [f"-DMAJOR={version[0]}", f"-DMINOR={version[1]}", f"-DVERSIONED={int(is_versioned)}"]
    includes = ["-isystem", str(find_tensorrt_include()), "-isystem", str(find_cuda_include())]
    command = ["g++", "-std=c++17", "-shared", "-fPIC", *defines, *includes, str(source)]
    subprocess.run([*command, "-ldl", "-o", str(fake)], check=True)
    complain = ctypes.CDLL(str(fake)).complaint
    complain.restype = ctypes.c_char_p
    said = complain(str(host_library).encode()).decode()
    message = "AndreaLayerNorm: the attribute 'epsilon' is missing"
    assert said == (message if is_heard else "")
    printed = capfd.readouterr().err
    assert printed == ("" if is_heard else f"andrea_plugins: {message}\n")

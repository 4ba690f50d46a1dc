"""The code that only full TensorRT runs is held to that library's real API."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
import tensorrt_names

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")

RECORD = json.loads(tensorrt_names.RECORD.read_text())
OLDEST, NEWEST = RECORD["versions"][0], RECORD["versions"][-1]
STUBS = "tensorrt-stubs==10.13.0.35.1"

# Names that not every supported version has, and why no older one stumbles over them.
DETECTED = {
    "ATTENTION_INPUT": "looked up in LayerType before use: without it there are no such layers",
    "IAttentionInputLayer": "reached only where a layer is of type ATTENTION_INPUT",
    "attention": "as IAttentionInputLayer",
    "decomposable": "as IAttentionInputLayer",
    "KV_CACHE_UPDATE": "looked up in LayerType: a graph with a cache is refused without it",
    "ComputeCapability": "TensorRT-RTX alone has it: looked up in the module before use",
    "num_compute_capabilities": "as ComputeCapability",
    "set_compute_capability": "as ComputeCapability",
    "CudaGraphStrategy": "TensorRT-RTX alone has it: looked up in the module before use",
    "WHOLE_GRAPH_CAPTURE": "as CudaGraphStrategy",
    "cuda_graph_strategy": "as CudaGraphStrategy",
    "DISABLED": "as CudaGraphStrategy",
}


def test_every_name_that_is_used_is_on_record():
    api = tensorrt_names.names_of_rtx()
    used = tensorrt_names.used_names()
    missing = {
        name: place
        for name, place in used.items()
        if name in api and name not in tensorrt_names.SHARED and name not in RECORD["names"]
    }
    assert missing == {}, "run tests/tensorrt_names.py again"


def test_record_holds_no_name_that_is_used_no_more():
    assert set(RECORD["names"]) <= set(tensorrt_names.used_names())


def test_every_name_occurs_in_the_oldest_and_the_newest_tensorrt():
    lacking = {
        name for name, versions in RECORD["names"].items() if not {OLDEST, NEWEST} <= set(versions)
    }
    assert lacking == set(DETECTED)


def test_newest_tensorrt_lacks_only_what_rtx_alone_has():
    lacking = {name for name, versions in RECORD["names"].items() if NEWEST not in versions}
    assert lacking == {name for name, why in DETECTED.items() if "RTX" in why} | {
        "num_compute_capabilities",
        "set_compute_capability",
        "WHOLE_GRAPH_CAPTURE",
        "cuda_graph_strategy",
        "DISABLED",
    }


def test_removed_precision_flags_are_not_used():
    used = set(tensorrt_names.used_names())
    assert not used & {"FP16", "BF16", "INT8", "FP8", "set_calibration_profile", "int8_calibrator"}


def test_oldest_version_on_record_is_the_one_that_the_package_asks_for():
    project = tomllib.loads((tensorrt_names.ROOT / "pyproject.toml").read_text())
    (asked,) = (
        re.fullmatch(r"tensorrt-cu13>=([\d.]+)", requirement)[1]
        for requirement in project["project"]["optional-dependencies"]["gpu"]
        if requirement.startswith("tensorrt-cu13")
    )
    assert OLDEST.startswith(asked)


@pytest.mark.parametrize(
    ("name", "since"),
    [
        ("IAttentionInputLayer", "10.14"),
        ("KV_CACHE_UPDATE", "10.15"),
        ("STRONGLY_TYPED", "10.13"),
        ("mark_unfused_tensors_as_debug_tensors", "10.13"),
    ],
)
def test_versions_that_the_manual_states_are_those_on_record(name, since):
    assert RECORD["names"][name][0].startswith(since)
    assert since in (tensorrt_names.ROOT / "docs" / "trt.md").read_text()


@pytest.mark.slow
def test_code_fits_the_type_stubs_of_full_tensorrt(pytestconfig):
    folder = pytestconfig.cache.mkdir("tensorrt-stubs")
    if not list(folder.glob("*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        if subprocess.run([*pip, STUBS], capture_output=True).returncode:
            pytest.skip(f"{STUBS} cannot be downloaded")
    (wheel,) = folder.glob("*.whl")
    assert tensorrt_names.check_types(wheel) == ""

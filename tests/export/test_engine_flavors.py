"""Flavors, capabilities and options: what may be asked of which TensorRT."""

import sys
from pathlib import Path

import pytest

from andrea_export.engine import binding
from andrea_export.engine.compute_capability import from_member, parse_capabilities, to_member
from andrea_export.engine.flavors import FLAVORS, choose_flavor, is_installed
from andrea_export.engine.options import EngineOptions, parse_bytes
from andrea_export.errors import BackendError, EngineError, MissingDependencyError

KNOWN = ("7.5", "8.9", "12.0")


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
    ("text", "size"), [("512", 512), ("4G", 4 << 30), ("1 MiB", 1 << 20), ("2kb", 2048), ("7B", 7)]
)
def test_sizes_are_read_in_powers_of_1024(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "4T", "1.5G", "4iB"])
def test_size_is_refused_when_it_is_none(text):
    with pytest.raises(EngineError, match="a size is a number with K, M or G"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype 'int8' is not one of fp32, fp16, bf16"),
        ({"plugins": "maybe"}, "plugins 'maybe' is not one of auto, on, off"),
        ({"plugins": "off", "plugin_library": Path("x.so")}, "what --plugins off leaves out"),
        ({"optimization_level": 6}, "from 0 to 5, not 6"),
        ({"capacity": 0}, "capacity must be at least 1, not 0"),
        ({"workspace_bytes": 0}, "workspace must be at least 1 byte"),
        ({"workspace_bytes": 1 << 63}, "9,223,372,036,854,775,808 bytes is more than any GPU has"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(EngineError, match=message):
        EngineOptions(**options)

"""`plugins build` and `plugins list`: the cache, what is missing, and what goes wrong.

The compiler here is a script that writes empty files, so that these tests take no time; the real
one is used once for all tests, in test_library.py.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from andrea_export.cli import run
from andrea_export.errors import AndreaExportError, BackendError, InputError
from andrea_export.plugins import (
    ALL_ARCHITECTURES,
    BuildOptions,
    build_plugins,
    parse_architectures,
    toolchain,
)
from tests.plugins.host_library import SOURCES

FAKE_NVCC = """#!/bin/sh
echo "$@" >> "{calls}"
case "$1" in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0 ;;
  --list-gpu-code) echo "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"; exit 0 ;;
esac
case "$*" in *{broken}*) echo "gelu.cu(1): error: it is broken" >&2; exit 1 ;; esac
for last; do :; done
echo built > "$last"
"""


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def nvcc(tmp_path: Path, calls: Path) -> Path:
    return fake_nvcc(tmp_path / "nvcc", calls)


def fake_nvcc(path: Path, calls: Path, broken: str = "nothing-is-broken") -> Path:
    path.write_text(FAKE_NVCC.format(calls=calls, broken=broken))
    path.chmod(0o755)
    return path


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    return fake_headers(tmp_path / "include", 10)


def fake_headers(folder: Path, major: int) -> Path:
    folder.mkdir()
    (folder / "NvInferRuntime.h").touch()
    (folder / "NvInferVersion.h").write_text(
        f"#define TRT_MAJOR_ENTERPRISE {major}\n#define NV_TENSORRT_MAJOR TRT_MAJOR_ENTERPRISE\n"
        "#define NV_TENSORRT_MINOR 14\n#define NV_TENSORRT_PATCH 1\n"
    )
    return folder


@pytest.fixture
def options(nvcc: Path, headers: Path, tmp_path: Path) -> BuildOptions:
    return BuildOptions(nvcc=nvcc, tensorrt_include=headers, cache=tmp_path / "cache")


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No compiler, no headers, nothing from pip, and a cache of its own."""
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH", "TENSORRT_INCLUDE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(toolchain, "CUDA_HOMES", ())
    monkeypatch.setattr(toolchain, "SYSTEM_INCLUDES", ())
    monkeypatch.setattr(toolchain, "_site_packages", lambda: tmp_path / "site-packages")


def without(options: BuildOptions, **changes: object) -> BuildOptions:
    return BuildOptions(**{**options.__dict__, **changes})


def test_the_same_build_twice_compiles_once(options: BuildOptions, calls: Path) -> None:
    first = build_plugins(options)
    compilations = calls.read_text().count(" -c ")
    second = build_plugins(options)
    assert (first.cached, second.cached) == (False, True)
    assert first.library == second.library
    assert first.sha256 == second.sha256
    sources = [*SOURCES.glob("kernels/*.cu"), *SOURCES.glob("trt/*.cpp")]
    assert calls.read_text().count(" -c ") == compilations == len(sources)
    kept = sorted(path.name for path in first.library.parent.iterdir())
    assert kept == ["build.json", "build.log", "libandrea_plugins.so"]


def test_every_architecture_gets_machine_code_and_the_newest_ptx(
    options: BuildOptions, calls: Path
) -> None:
    build_plugins(options)
    kernel = next(line for line in calls.read_text().splitlines() if "layer_norm.cu" in line)
    for name in ALL_ARCHITECTURES:
        assert f"arch=compute_{name},code=sm_{name}" in kernel
    assert re.findall(r"code=compute_\d+", kernel) == ["code=compute_120"]


@pytest.mark.parametrize("change", ["source", "header", "flags", "architectures", "headers"])
def test_another_input_is_another_build(options: BuildOptions, tmp_path: Path, change: str) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(SOURCES, sources)
    options = without(options, sources=sources)
    first = build_plugins(options)
    if change == "architectures":
        options = without(options, architectures=("90",))
    elif change == "headers":
        options = without(options, tensorrt_include=fake_headers(tmp_path / "newer", 11))
    else:
        files = {"source": "trt/op.cpp", "header": "kernels/row.cuh", "flags": "nvcc.options"}
        with (sources / files[change]).open("a") as file:
            file.write("\n")
    second = build_plugins(options)
    assert not second.cached
    assert second.library != first.library


def test_the_same_sources_in_another_place_are_the_same_build(
    options: BuildOptions, tmp_path: Path
) -> None:
    first = build_plugins(options)
    shutil.copytree(SOURCES, tmp_path / "elsewhere")
    assert build_plugins(without(options, sources=tmp_path / "elsewhere")).cached
    assert first.architectures == ALL_ARCHITECTURES


@pytest.mark.parametrize("damage", ["library", "record", "no record"])
def test_a_damaged_cache_entry_is_built_again(options: BuildOptions, damage: str) -> None:
    built = build_plugins(options)
    record = built.library.with_name("build.json")
    if damage == "library":
        built.library.write_text("half")
    elif damage == "record":
        record.write_text("{")
    else:
        record.unlink()
    again = build_plugins(options)
    assert not again.cached
    assert again.sha256 == built.sha256


def test_a_compiler_error_is_shown_and_nothing_is_left_half_built(
    options: BuildOptions, tmp_path: Path, calls: Path
) -> None:
    broken = fake_nvcc(tmp_path / "broken-nvcc", calls, broken="/gelu.cu")
    with pytest.raises(BackendError, match=r"gelu.cu\(1\): error: it is broken") as error:
        build_plugins(without(options, nvcc=broken))
    assert options.cache is not None
    (log,) = options.cache.iterdir()
    assert log.name.endswith(".failed.log")
    assert str(log) in str(error.value)


def test_progress_reaches_its_total(options: BuildOptions) -> None:
    seen: list[tuple[int, int]] = []
    build_plugins(options, progress=lambda done, total: seen.append((done, total)))
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)


@pytest.mark.usefixtures("bare_machine")
def test_a_missing_compiler_is_named_with_what_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plugins", "build"]) == 2
    message = capsys.readouterr().err
    assert "needs nvcc" in message
    assert "install the CUDA toolkit" in message


@pytest.mark.usefixtures("bare_machine")
def test_missing_headers_are_named_with_what_to_install(
    nvcc: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: f"/usr/bin/{Path(name).name}")
    assert run(["plugins", "build", "--nvcc", str(nvcc)]) == 2
    message = capsys.readouterr().err
    assert "NvInferRuntime.h" in message
    assert "pip install 'andrea-export[plugins]'" in message


@pytest.mark.usefixtures("bare_machine")
def test_a_missing_host_compiler_is_named(
    nvcc: Path, headers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--nvcc", str(nvcc), "--tensorrt-include", str(headers)]
    assert run(["plugins", "build", *arguments]) == 2
    assert "apt install g++" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["option", "variable"])
def test_a_folder_without_headers_is_refused(
    options: BuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "variable":
        monkeypatch.setenv("TENSORRT_INCLUDE_DIR", str(tmp_path))
    explicit = tmp_path if source == "option" else None
    with pytest.raises(InputError, match=r"has no NvInferRuntime\.h"):
        build_plugins(without(options, tensorrt_include=explicit))


def test_headers_that_are_too_old_are_refused(options: BuildOptions, tmp_path: Path) -> None:
    old = fake_headers(tmp_path / "old", 8)
    with pytest.raises(InputError, match=r"has TensorRT 8\.14\.1; .* 10\.0 or newer"):
        build_plugins(without(options, tensorrt_include=old))


def test_headers_without_a_version_are_refused(options: BuildOptions, headers: Path) -> None:
    (headers / "NvInferVersion.h").write_text("#pragma once\n")
    with pytest.raises(InputError, match="does not define NV_TENSORRT_MAJOR"):
        build_plugins(options)


def test_headers_of_another_major_version_than_the_runtime_are_warned_about(
    options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain.metadata, "version", lambda _name: "11.4.0")
    (warning,) = build_plugins(options).warnings
    assert "headers of TensorRT 10, but tensorrt-cu13 11.4.0" in warning


def test_a_path_that_is_no_compiler_is_refused(options: BuildOptions, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(InputError, match="is not a program"):
        build_plugins(without(options, nvcc=tmp_path / "text"))


def test_a_cache_folder_that_cannot_be_written_is_reported(
    options: BuildOptions, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AndreaExportError, match="cannot be written: Not a directory"):
        build_plugins(without(options, cache=tmp_path / "file" / "cache"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_folder_without_permission_is_reported(
    options: BuildOptions, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(AndreaExportError, match="cannot be written: Permission denied"):
        build_plugins(without(options, cache=closed / "cache"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ALL_ARCHITECTURES),
        ("90", ("90",)),
        ("120, 80", ("80", "120")),
        ("sm_90;8.6;compute_75", ("75", "86", "90")),
        ("80,80", ("80",)),
    ],
)
def test_architectures_may_be_written_in_any_usual_way(
    text: str, expected: tuple[str, ...]
) -> None:
    assert parse_architectures(text) == expected


@pytest.mark.parametrize("text", ["", "hopper", "9", "90,", "sm90", "1234"])
def test_architectures_that_cannot_be_are_refused(text: str) -> None:
    if text == "90,":
        assert parse_architectures(text) == ("90",)
        return
    with pytest.raises(InputError, match="--arch"):
        parse_architectures(text)


def test_an_architecture_that_nvcc_does_not_know_is_refused(options: BuildOptions) -> None:
    with pytest.raises(InputError, match=r"cannot compile for 55; it knows 75, 80"):
        build_plugins(without(options, architectures=("55", "90")))


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU here")
def test_native_without_a_gpu_is_refused() -> None:
    with pytest.raises(BackendError, match="--arch native needs"):
        parse_architectures("native")


def test_build_prints_its_result_as_json(
    nvcc: Path,
    headers: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    arguments = ["--nvcc", str(nvcc), "--tensorrt-include", str(headers), "--arch", "80,90"]
    assert run(["plugins", "build", "--json", *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert Path(result["library"]).is_relative_to(tmp_path / "xdg" / "andrea-export" / "plugins")
    assert result["architectures"] == ["80", "90"]
    assert result["cached"] is False
    assert run(["plugins", "build", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == result["library"]
    assert "for sm_80, sm_90; from the cache" in printed.err

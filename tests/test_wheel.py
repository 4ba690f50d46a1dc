"""The wheel is complete: installed alone, in an empty folder, it does the whole job."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEMO = {"config.json", "model.safetensors", "tokenizer.json", "heldout.txt", "training.json"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, ROOT], check=True)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs a command of the installed wheel in an empty folder: installed(*arguments)."""
    site, work = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("work")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", site, wheel], check=True)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=work,
            env=os.environ | {"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )

    found = run("-c", "import andrea_export, andrea_model; print(andrea_model.__file__)")
    assert found.stdout.startswith(str(site)), found
    return run


def test_wheel_carries_the_demo_checkpoint_and_the_plugin_sources(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"andrea_model/andrea_nano/{name}" for name in DEMO} <= names
    sources = {
        str(path.relative_to(ROOT / "plugins"))
        for path in (ROOT / "plugins").rglob("*")
        if path.suffix in {".cu", ".cuh", ".h", ".cpp"} or path.name == "CMakeLists.txt"
    }
    assert sources
    assert {f"andrea_export/plugin_sources/{name}" for name in sources} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "build/"))]


def test_installed_wheel_does_the_whole_job_on_the_demo_checkpoint(installed):
    info = installed("-m", "andrea_export", "info", "andrea-nano", "--json")
    assert json.loads(info.stdout)["parameters"] == 1_119_104
    export = installed("-m", "andrea_export", "onnx", "andrea-nano", "-o", "out", "--no-check")
    assert export.returncode == 0, export.stderr
    judged = installed("-m", "andrea_export", "validate", "andrea-nano", "--candidate", "out")
    assert judged.returncode == 0, judged.stderr
    assert "Within tolerance" in judged.stdout
    text = installed(
        "-m", "andrea_export", "generate", "out", "--prompt", "PROSPERO.", "--max-new-tokens", "20"
    )
    assert text.returncode == 0, text.stderr
    assert text.stdout.strip()
    assert "20 tokens in" in text.stderr

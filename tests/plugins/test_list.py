"""`plugins list`: what a library says of itself."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from andrea_export.cli import run
from andrea_export.plugins import BuiltLibrary


def test_list_shows_the_plugins_of_a_library(
    built: BuiltLibrary, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plugins", "list", str(built.library)]) == 0
    text = capsys.readouterr().out
    assert "for sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_120" in text
    assert re.search(r"AndreaAddLayerNorm +1 +andrea +X, R, gamma, beta +2 +epsilon", text)
    assert run(["plugins", "list", str(built.library), "--json"]) == 0
    contents = json.loads(capsys.readouterr().out)
    assert contents["plugins"][2]["fields"] == {"approximate": "string"}


def test_list_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = subprocess.run(["gcc", "-print-file-name=libm.so.6"], capture_output=True, text=True)
    (tmp_path / "text.so").write_text("no library")
    for arguments, message in (
        ([], "make one with andrea-export plugins build"),
        ([str(tmp_path / "none.so")], "is not a file"),
        ([str(tmp_path / "text.so")], "cannot be loaded"),
        ([other.stdout.strip()], "not one of andrea-export's"),
    ):
        assert run(["plugins", "list", *arguments]) == 2
        assert message in capsys.readouterr().err

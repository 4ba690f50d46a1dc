"""Files of torch.save that are no checkpoint: another content, code in the pickle, damage."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from andrea_model.checkpoint import open_checkpoint
from andrea_model.errors import CheckpointError, ConfigError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"wte.weight": torch.ones(2)}, "a torch file with 'wte.weight', wanted nanoGPT's 'model'"),
        ([1, 2], "a torch file with a list, wanted nanoGPT's dict"),
        ({"model": {}, "model_args": 3}, "(model_args): is int, wanted a dict"),
        ({"model": {"a": 3}, "model_args": {}}, "(model): 'a' is int, not a tensor"),
        ({"model": {}, "model_args": {"n_head": 2}}, "(model_args): vocab_size is missing"),
    ],
)
def test_torch_file_when_it_is_not_nanogpts_then_what_it_holds_is_named(
    tmp_path: Path, content: object, message: str
) -> None:
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises((CheckpointError, ConfigError), match=re.escape(message)):
        open_checkpoint(tmp_path / "ckpt.pt")


class Payload:
    """Unpickling this would make a folder."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.mkdir, (self.target,)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "pickle"])
@pytest.mark.parametrize("kind", ["nanogpt", "folder"])
def test_torch_file_when_its_pickle_carries_code_then_it_is_refused_and_never_runs(
    tmp_path: Path, kind: str, zipped: bool
) -> None:
    target = tmp_path / "made by the pickle"
    source = path = tmp_path / "ckpt.pt"
    if kind == "folder":
        sizes = {"vocab_size": 5, "n_positions": 4, "n_embd": 2, "n_layer": 1, "n_head": 1}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"} | sizes))
        source, path = tmp_path, tmp_path / "pytorch_model.bin"
    content = {"model": {}, "model_args": Payload(target)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"refused: its pickle asks for \w+\.mkdir") as caught:
        open_checkpoint(source)
    assert str(path) in str(caught.value)
    assert not target.exists()


def test_torch_file_when_it_is_truncated_then_it_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    torch.save({"model": {"wte.weight": torch.zeros(5000)}, "model_args": {}}, path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"ckpt.pt: .*damaged"):
        open_checkpoint(path)


def test_torch_file_when_bytes_are_wrong_then_no_other_error_comes_out(tmp_path: Path) -> None:
    """Torch's unpickler answers damage with nearly every kind of exception."""
    path, dice = tmp_path / "ckpt.pt", random.Random(0)
    content = {"model": {"wte.weight": torch.ones(3)}, "model_args": {"n_head": 2}}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        path.write_bytes(damaged)
        with pytest.raises((CheckpointError, ConfigError)):
            open_checkpoint(path)

"""Files of torch.save that are no checkpoint: another content, code in the pickle, damage."""

import json
import pickle
import random
import re
import time
import traceback
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from andrea_model.checkpoint import open_checkpoint
from andrea_model.checkpoint.pickle_names import MOST_PICKLES, first_code_name
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


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "pickle"])
@pytest.mark.parametrize("kind", ["nanogpt", "folder"])
def test_torch_file_when_its_pickle_carries_code_then_it_is_refused_and_never_runs(
    tmp_path: Path, kind: str, zipped: bool, protocol: int
) -> None:
    target = tmp_path / "made by the pickle"
    source = path = tmp_path / "ckpt.pt"
    if kind == "folder":
        sizes = {"vocab_size": 5, "n_positions": 4, "n_embd": 2, "n_layer": 1, "n_head": 1}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"} | sizes))
        source, path = tmp_path, tmp_path / "pytorch_model.bin"
    content = {"model": {}, "model_args": Payload(target)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    message = refusal(source)
    assert re.search(r"refused: its pickle asks for (posix|nt)\.mkdir, so it holds code", message)
    assert str(path) in message
    assert not target.exists()


def refusal(source: Path) -> str:
    """The message, which is not torch's advice to load the file without protection."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(source)
    everything = "".join(traceback.format_exception(caught.value))
    assert not re.search(r"weights[ _]only.*set|arbitrary code|safe_globals", everything)
    return str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ["ckpt.pt", "model.bin", "model"])
def test_torch_file_when_it_is_a_bare_pickle_with_code_then_it_is_refused(
    tmp_path: Path, name: str, protocol: int
) -> None:
    target = tmp_path / "made by the pickle"
    (tmp_path / name).write_bytes(pickle.dumps([Payload(target)] * 2, protocol))
    assert re.search(r"refused: its pickle asks for \w+\.mkdir", refusal(tmp_path / name))
    assert not target.exists()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        (b"(S'true'\nios\nsystem\n.", "os.system"),
        (b"\x80\x02\x82\x05)R.", "copyreg extension 5"),
        (b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93.", "os.system"),
        (b"\x80\x02c\x1b[2Jos\nsystem\n.", r"\x1b[2Jos.system"),
    ],
    ids=["global", "inst", "extension", "stack global of memos", "terminal codes"],
)
def test_torch_file_when_its_code_is_named_in_an_odd_way_then_the_name_is_found(
    tmp_path: Path, code: bytes, name: str
) -> None:
    path = tmp_path / "ckpt.pt"
    path.write_bytes(code)
    assert f"refused: its pickle asks for {name}, so it holds code" in refusal(path)


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "pickle"])
def test_torch_file_when_it_holds_only_tensors_in_a_late_protocol_then_that_is_said(
    tmp_path: Path, protocol: int, zipped: bool
) -> None:
    """Torch's unpickler does not know these protocols: no code, but not readable either."""
    content = {"model": {"wte.weight": torch.ones(2)}, "model_args": {}}
    path = tmp_path / "ckpt.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    assert f"its pickle is of protocol {protocol}, which torch cannot read" in refusal(path)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_torch_file_when_it_is_a_script_then_it_is_refused_as_code(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.ReLU()).save(tmp_path / "ckpt.pt")
    assert "refused: its pickle asks for __torch__." in refusal(tmp_path / "ckpt.pt")


def test_code_names_when_a_file_is_made_to_take_long_then_the_work_is_bounded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ckpt.pt"
    contents = {
        "opcodes": b"\x80\x04" + b"N0" * (20 << 20),
        "text": b"\x80\x04X\xff\xff\xff\x7f" + bytes(40 << 20),
        "number": b"\x80\x04L" + b"9" * (40 << 20),
        "pickles": b"\x80\x04N." * (10 << 20),
    }
    for content in contents.values():
        path.write_bytes(content)
        start = time.process_time()
        assert first_code_name(path) is None
        assert time.process_time() - start < 5
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(40):
            archive.writestr(f"{i}/data.pkl", b"\x80\x04" + b"N0" * (1 << 19))
    start = time.process_time()
    assert first_code_name(path) is None
    assert time.process_time() - start < 5 * MOST_PICKLES


def test_torch_file_when_it_is_truncated_then_it_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    torch.save({"model": {"wte.weight": torch.zeros(5000)}, "model_args": {}}, path)
    whole = path.read_bytes()
    for length in (4, 100, 5000, len(whole) - 30):
        path.write_bytes(whole[:length])
        assert "damaged" in refusal(path)
    torch.save({"model": {}}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:60])
    assert "ckpt.pt: damaged torch file" in refusal(path)


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
        with pytest.raises((CheckpointError, ConfigError)) as caught:
            open_checkpoint(path)
        assert "weights_only" not in str(caught.value)

"""Telling formats apart, our own folder, and every way a source can be wrong."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from andrea_model.checkpoint import (
    Layout,
    load_model,
    open_checkpoint,
    random_checkpoint,
)
from andrea_model.config import AndreaConfig
from andrea_model.errors import CheckpointError, ConfigError, NonFiniteWeightsError, TokenizerError
from andrea_model.tokenizer import HarrisTokenizer

TINY = AndreaConfig(vocab_size=300, context_length=6, d_model=8, n_layer=1, n_head=2)


def tiny() -> dict[str, np.ndarray]:
    return dict(random_checkpoint("andrea-nano", 9, config=TINY).tensors)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Our own folder, written by the safetensors library."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(TINY.to_json())
    safetensors.numpy.save_file(tiny(), path / "model.safetensors")
    return path


def rewrite(folder: Path, **changes: np.ndarray | None) -> None:
    tensors = {name: array for name, array in (tiny() | changes).items() if array is not None}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def assert_refused(source: Path, message: str, kind: type[Exception] = CheckpointError) -> None:
    with pytest.raises(kind, match=re.escape(message)) as caught:
        open_checkpoint(source)
    assert str(source) in str(caught.value)


def test_own_folder_when_opened_then_tensors_are_views_in_canonical_order(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.format, checkpoint.config, checkpoint.step) == ("andrea", TINY, None)
    assert list(checkpoint.tensors) == list(tiny())
    for name, array in tiny().items():
        np.testing.assert_array_equal(checkpoint.tensors[name], array)
        assert not checkpoint.tensors[name].flags.owndata
        assert not checkpoint.tensors[name].flags.writeable
    content = (folder / "model.safetensors").read_bytes()
    assert checkpoint.sha256() == hashlib.sha256(content).hexdigest()
    assert (checkpoint.tokenizer_path, checkpoint.open_tokenizer()) == (None, None)


def test_own_folder_when_a_tokenizer_lies_beside_then_it_is_found(
    folder: Path, tmp_path: Path
) -> None:
    HarrisTokenizer(["the", "and"]).save(folder / "tokenizer.json")
    HarrisTokenizer(["other"]).save(tmp_path / "given.json")
    assert open_checkpoint(folder).tokenizer_path == folder / "tokenizer.json"
    found, given = (
        open_checkpoint(folder),
        open_checkpoint(folder, tokenizer=tmp_path / "given.json"),
    )
    assert found.open_tokenizer().vocab_size == 259
    assert given.open_tokenizer().vocab_size == 258


def test_own_folder_when_settings_are_given_then_they_win_over_config_json(folder: Path) -> None:
    config = open_checkpoint(folder, settings={"norm_eps": "1e-6", "activation": "relu"}).config
    assert config == TINY.replace(norm_eps=1e-6, activation="relu")
    with pytest.raises(
        CheckpointError, match=r"'wpe.weight' has shape \(6, 8\), .* wants \(7, 8\)"
    ):
        open_checkpoint(folder, settings={"context_length": "7"})


def test_load_model_when_the_type_is_stored_then_memory_is_shared_and_safe_to_write(
    folder: Path,
) -> None:
    checkpoint = open_checkpoint(folder)
    model = load_model(checkpoint)
    weight = model.wte.weight
    assert (model.training, weight.requires_grad, weight.dtype) == (False, False, torch.float32)
    assert weight.data_ptr() == checkpoint.tensors["wte.weight"].ctypes.data
    weight.fill_(3.0)  # a private page: the file keeps its own
    assert np.array_equal(open_checkpoint(folder).tensors["wte.weight"], tiny()["wte.weight"])
    assert load_model(open_checkpoint(folder), torch.float16).wte.weight.dtype == torch.float16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"blocks.0.norm1.bias": None},
            "tensor 'blocks.0.norm1.bias' of shape (8,) is missing (1 of 16 tensors are)",
        ),
        (
            {"head.weight": np.zeros((300, 8), np.float32)},
            "tensor 'head.weight' of shape (300, 8) is not part of the model",
        ),
        (
            {"blocks.0.attn.q.weight": np.zeros((8, 4), np.float32)},
            "tensor 'blocks.0.attn.q.weight' has shape (8, 4), the config wants (8, 8)",
        ),
        (
            {"wpe.weight": np.zeros((6, 8), np.int32)},
            "tensor 'wpe.weight' is int32, wanted one of float64, float32, float16, bfloat16",
        ),
        (
            {"norm_f.bias": np.full(8, np.inf, np.float32)},
            "tensor 'norm_f.bias' holds 8 NaN or Inf values of 8; in all 8 values in 1 of 16",
        ),
    ],
)
def test_own_folder_when_a_tensor_is_wrong_then_name_seen_and_wanted_are_given(
    folder: Path, changes: dict[str, np.ndarray | None], message: str
) -> None:
    rewrite(folder, **changes)
    kind = NonFiniteWeightsError if "NaN" in message else CheckpointError
    assert_refused(folder, message, kind)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"model_type": "llama"}', "model_type is 'llama'; known are andrea and gpt2"),
        ("{}", "model_type is None; known are andrea and gpt2"),
        ("[]", "holds list, wanted a JSON object"),
        ("{", "is no JSON"),
        ('{"model_type": "andrea", "d_model": 8}', "missing key 'vocab_size'"),
        ('{"model_type": "andrea", "layers": 8}', "unknown key 'layers'"),
    ],
)
def test_folder_when_config_json_is_wrong_then_the_file_and_the_reason_are_named(
    folder: Path, config: str, message: str
) -> None:
    (folder / "config.json").write_text(config)
    with pytest.raises((CheckpointError, ConfigError), match=re.escape(message)) as caught:
        open_checkpoint(folder)
    assert str(folder / "config.json") in str(caught.value)


def test_folder_when_it_lacks_something_then_what_is_there_is_said(tmp_path: Path) -> None:
    assert_refused(tmp_path, "the folder is empty; wanted an ANDREA .bin, ")
    (tmp_path / "notes.txt").write_text("hello")
    assert_refused(tmp_path, "the folder has no config.json; wanted an ANDREA .bin, ")
    (tmp_path / "step_000200.bin").touch()
    (tmp_path / "ckpt.pt").touch()
    assert_refused(tmp_path, "has no config.json; name one file of it: ckpt.pt, step_000200.bin")
    (tmp_path / "config.json").write_text(TINY.to_json())
    assert_refused(tmp_path, "has no model.safetensors")
    (tmp_path / "model.onnx").touch()
    assert_refused(tmp_path, "has no model.safetensors: this is an exported graph")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert_refused(tmp_path, "no weights; wanted model.safetensors or ")


def test_source_when_it_is_no_checkpoint_then_each_kind_has_its_own_message(
    tmp_path: Path, folder: Path
) -> None:
    assert_refused(tmp_path / "absent.bin", "no such file or folder")
    (tmp_path / "link").symlink_to("nowhere.bin")
    assert_refused(tmp_path / "link", "a link to nowhere.bin, which does not exist")
    assert_refused(Path("/dev/null"), "is neither a file nor a folder")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a")
    assert_refused(tmp_path / "model.onnx", "an ONNX graph, not a checkpoint")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 some picture")
    assert_refused(tmp_path / "photo.jpg", r"not a known format (starts b'\xff\xd8\xff\xe0 some pi")
    assert_refused(folder / "model.safetensors", "give the folder with its config.json")


NOBODY = 65534


def open_as_nobody(source: Path) -> str:
    """The error, or "opened", of a user with no rights of their own: root may read everything.

    In a child process, which starts with all modules loaded: nobody may not read those either.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            open_checkpoint(source)
            os.write(sending, b"opened")
        except BaseException as error:
            os.write(sending, f"{type(error).__name__}: {error}".encode()[:4096])
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_source_when_it_may_not_be_read_then_the_system_says_why(folder: Path) -> None:
    # Outside of tmp_path, which is closed to others altogether.
    with tempfile.TemporaryDirectory() as outside:
        Path(outside).chmod(0o755)
        source = Path(shutil.copytree(folder, Path(outside) / "model"))
        (source / "model.safetensors").chmod(0o644)
        assert open_as_nobody(source) == "opened"
        (source / "model.safetensors").chmod(0)
        message = "CheckpointError: .*model.safetensors: cannot be read: Permission denied"
        assert re.match(message, open_as_nobody(source))
        source.chmod(0)
        message = "CheckpointError: .*model: cannot be read: Permission denied"
        assert re.match(message, open_as_nobody(source))
        source.chmod(0o755)


def test_source_when_it_is_the_name_of_a_preset_then_random_weights_are_suggested() -> None:
    with pytest.raises(CheckpointError, match=r"name of a preset, .* --random-weights SEED"):
        open_checkpoint("andrea-120m")


def test_source_when_it_is_andrea_nano_then_a_local_path_wins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rename(folder.with_name("andrea-nano"))
    monkeypatch.chdir(folder.parent)
    assert open_checkpoint("andrea-nano").config == TINY


def test_tokenizer_when_it_is_not_there_then_it_is_named(folder: Path) -> None:
    with pytest.raises(TokenizerError, match=r"absent.json: no such tokenizer file"):
        open_checkpoint(folder, tokenizer=folder / "absent.json")


def test_layout_when_the_format_names_its_tensors_then_it_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a layout is only for an ANDREA .bin"):
        open_checkpoint(folder, layout=Layout())


def test_import_when_only_checkpoints_are_opened_then_torch_is_not_loaded(folder: Path) -> None:
    code = (
        "import sys; from andrea_model.checkpoint import open_checkpoint; "
        f"open_checkpoint({str(folder)!r}).sha256(); sys.exit('torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )

"""Damaged `.safetensors` files: each kind of damage has its own message."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from andrea_model.checkpoint import open_checkpoint, random_checkpoint
from andrea_model.config import AndreaConfig
from andrea_model.errors import CheckpointError

TINY = AndreaConfig(vocab_size=300, context_length=6, d_model=8, n_layer=1, n_head=2)


def tiny() -> dict[str, np.ndarray]:
    return dict(random_checkpoint("andrea-nano", 9, config=TINY).tensors)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(TINY.to_json())
    safetensors.numpy.save_file(tiny(), tmp_path / "model.safetensors")
    return tmp_path


def header_of(content: bytes) -> dict[str, dict[str, object]]:
    return json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])


def with_header(content: bytes, header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + struct.unpack("<Q", content[:8])[0] :]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E4M3"}, "tensor 'wte.weight' has dtype F8_E4M3; known: F64, F32, "),
        (
            {"shape": [300, 9]},
            "truncated or damaged: tensor 'wte.weight' of 10,800 bytes stands at",
        ),
        ({"shape": [-300, -8]}, "truncated or damaged: tensor 'wte.weight'"),
        ({"shape": "300x8"}, "damaged safetensors file: tensor 'wte.weight' is described as"),
        ({"data_offsets": [0]}, "damaged safetensors file: tensor 'wte.weight' is described as"),
    ],
)
def test_safetensors_when_an_entry_is_wrong_then_the_tensor_is_named(
    folder: Path, entry: dict[str, object], message: str
) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    header = header_of(content)
    header["wte.weight"] |= entry
    path.write_bytes(with_header(content, header))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c[:5], "damaged safetensors file: only 5 bytes"),
        (lambda c: c[:-7], "truncated or damaged: tensor "),
        (lambda c: b"\xff" * 8 + c[8:], "its header claims 18,446,744,073,709,551,615 bytes"),
        (lambda c: c[:9] + b"\0" + c[10:], "damaged safetensors file: header is no JSON"),
        (lambda c: with_header(c, [1]), "damaged safetensors file: header is no JSON object"),
    ],
)
def test_safetensors_when_damaged_then_it_is_said_how(
    folder: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        open_checkpoint(folder)

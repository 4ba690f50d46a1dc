"""Writing checkpoints, and random weights: the same input gives the same bytes."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tokenizers import Tokenizer, models, pre_tokenizers

from andrea_model.checkpoint import (
    load_model,
    open_checkpoint,
    random_checkpoint,
    save_folder,
    write_bin,
)
from andrea_model.config import AndreaConfig
from andrea_model.errors import CheckpointError, ConfigError, TokenizerError
from andrea_model.parameters import parameter_shapes
from andrea_model.presets import preset
from andrea_model.tokenizer import HarrisTokenizer

TINY = AndreaConfig(vocab_size=300, context_length=6, d_model=8, n_layer=1, n_head=2)


def alphabet() -> dict[str, int]:
    """GPT-2's symbols of the 256 bytes, and two merges."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
    return {symbol: token_id for token_id, symbol in enumerate(symbols)}


def tiny() -> dict[str, np.ndarray]:
    return dict(random_checkpoint("andrea-nano", 9, config=TINY).tensors)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_folder((TINY, tiny()), tmp_path / "model")
    return tmp_path / "model"


def test_own_folder_when_it_was_saved_by_save_folder_then_the_library_reads_it(
    tmp_path: Path,
) -> None:
    for part in ("a", "b"):
        save_folder((TINY, tiny()), tmp_path / part)
    read = safetensors.numpy.load_file(tmp_path / "a" / "model.safetensors")
    assert all(np.array_equal(read[name], array) for name, array in tiny().items())
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert open_checkpoint(tmp_path / "a").config == TINY


def test_save_folder_when_it_holds_a_checkpoint_already_then_only_overwrite_replaces_it(
    folder: Path,
) -> None:
    other = random_checkpoint("andrea-nano", 10, config=TINY)
    with pytest.raises(CheckpointError, match=r"already holds model.safetensors, config.json"):
        save_folder(other, folder)
    assert np.array_equal(open_checkpoint(folder).tensors["wte.weight"], tiny()["wte.weight"])
    save_folder(other, folder, overwrite=True)
    saved = open_checkpoint(folder).tensors["wte.weight"]
    assert np.array_equal(saved, other.tensors["wte.weight"])
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]


def test_writers_when_a_tensor_does_not_fit_then_nothing_is_written(tmp_path: Path) -> None:
    wrong = tiny() | {"wpe.weight": np.zeros((6, 9), np.float32)}
    message = re.escape("'wpe.weight' has shape (6, 9), the config wants (6, 8)")
    with pytest.raises(CheckpointError, match=message):
        save_folder((TINY, wrong), tmp_path / "folder")
    with pytest.raises(CheckpointError, match=message):
        write_bin(TINY, wrong, tmp_path / "a.bin")
    assert list(tmp_path.iterdir()) == []


def test_writers_when_the_disk_fills_up_then_the_old_file_stays_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "ascontiguousarray", full)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .* No space left"):
        save_folder(random_checkpoint("andrea-nano", 1, config=TINY), folder, overwrite=True)
    with pytest.raises(CheckpointError, match=r"a\.bin: cannot be written: No space left"):
        write_bin(TINY, tiny(), folder / "a.bin")
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["taken", ".", "..", "absent/a.bin", "file/a.bin"])
def test_write_bin_when_the_place_cannot_be_written_then_it_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here" / "taken").mkdir(parents=True)
    (tmp_path / "here" / "file").touch()
    monkeypatch.chdir(tmp_path / "here")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=f"^{re.escape(name)}: cannot be written: "):
        write_bin(TINY, tiny(), Path(name))
    assert sorted(tmp_path.rglob("*")) == before


def test_write_bin_when_a_folder_takes_the_name_meanwhile_then_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moving the finished file into that folder would look like success."""
    path, contiguous = tmp_path / "a.bin", np.ascontiguousarray

    def slowly(*args: Any) -> np.ndarray:
        path.mkdir(exist_ok=True)
        return contiguous(*args)

    monkeypatch.setattr(np, "ascontiguousarray", slowly)
    with pytest.raises(CheckpointError, match=r"a\.bin: cannot be written: Is a directory"):
        write_bin(TINY, tiny(), path)
    assert list(tmp_path.rglob("*")) == [path]


def test_save_folder_when_a_name_is_taken_by_the_other_kind_then_it_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file: cannot be written: File exists"):
        save_folder((TINY, tiny()), tmp_path / "file")
    (tmp_path / "model" / "config.json").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be written: it is a folder"):
        save_folder((TINY, tiny()), tmp_path / "model", overwrite=True)


def test_save_folder_when_the_checkpoint_has_a_tokenizer_then_it_comes_along(
    folder: Path, tmp_path: Path
) -> None:
    HarrisTokenizer(["the", "and"]).save(folder / "harris_segments.json")
    save_folder(open_checkpoint(folder), tmp_path / "copy")
    assert open_checkpoint(tmp_path / "copy").open_tokenizer().vocab_size == 259


def test_save_folder_when_the_tokenizer_is_gpt2s_two_files_then_it_becomes_one(
    tmp_path: Path,
) -> None:
    inner = Tokenizer(models.BPE(alphabet(), [("t", "h"), ("th", "e")]))
    inner.model.save(str(tmp_path))
    save_folder((TINY, tiny()), tmp_path / "model", tmp_path / "vocab.json")
    names = sorted(os.listdir(tmp_path / "model"))
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    ids = open_checkpoint(tmp_path / "model").open_tokenizer().encode("then")
    assert ids == [257, alphabet()["n"]]


def test_save_folder_when_stored_in_half_then_the_type_is_kept(tmp_path: Path) -> None:
    halves = {name: array.astype(np.float16) for name, array in tiny().items()}
    save_folder((TINY, halves), tmp_path)
    assert open_checkpoint(tmp_path).tensors["wte.weight"].dtype == np.float16


def test_random_checkpoint_when_drawn_twice_then_seed_and_name_decide() -> None:
    first, again, other = (
        random_checkpoint("andrea-nano", seed, config=TINY) for seed in (1, 1, 2)
    )
    assert list(first.tensors) == list(parameter_shapes(TINY))
    for name in first.tensors:
        assert np.array_equal(first.tensors[name], again.tensors[name])
        assert not np.array_equal(first.tensors[name], other.tensors[name])
    q, k = first.tensors["blocks.0.attn.q.weight"], first.tensors["blocks.0.attn.k.weight"]
    assert not np.array_equal(q, k)
    assert first.sha256() == again.sha256() != other.sha256()
    assert (first.path, first.format, first.seed) == (None, "random", 1)


def test_random_checkpoint_when_measured_then_it_has_gpt2s_spread_and_no_trivial_vector() -> None:
    tensors = random_checkpoint("andrea-12m", 0).tensors
    assert tensors["wte.weight"].std() == pytest.approx(0.02, rel=0.01)
    # Smaller by sqrt(2·6) at the end of a sublayer.
    assert tensors["blocks.5.mlp.fc2.weight"].std() == pytest.approx(0.02 / 12**0.5, rel=0.01)
    gamma, beta = tensors["norm_f.weight"], tensors["norm_f.bias"]
    assert gamma.mean() == pytest.approx(1, abs=0.02)
    assert 0.05 < gamma.std() < 0.2
    assert 0.01 < beta.std() < 0.03
    assert tensors["wte.weight"].dtype == np.float32


def test_random_checkpoint_when_its_shape_is_not_the_presets_then_the_note_gives_the_sizes() -> (
    None
):
    (note,) = random_checkpoint("andrea-nano", 3).notes
    assert note == "random weights of seed 3 in the shape of andrea-nano: not a trained model"
    sizes = "vocab_size 300, context_length 6, d_model 8, n_layer 1, n_head 2"
    for name in ("andrea-nano", "no preset"):
        (note,) = random_checkpoint(name, 3, config=TINY).notes
        assert note == f"random weights of seed 3 with {sizes}: not a trained model"
    (note,) = random_checkpoint("andrea-nano", 3, settings={"n_layer": "2"}).notes
    assert "n_layer 2" in note
    assert "andrea-nano" not in note


def test_random_checkpoint_when_a_tokenizer_is_given_then_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "segments.json"
    with pytest.raises(TokenizerError, match=r"segments.json: no such tokenizer file"):
        random_checkpoint("andrea-nano", 3, tokenizer=path)
    HarrisTokenizer(["the"]).save(path)
    checkpoint = random_checkpoint("andrea-nano", 3, tokenizer=path)
    assert checkpoint.tokenizer_path == path
    assert checkpoint.open_tokenizer().vocab_size == 258
    assert checkpoint.sha256() == random_checkpoint("andrea-nano", 3).sha256()


def test_random_checkpoint_when_settings_are_given_then_they_change_the_preset() -> None:
    checkpoint = random_checkpoint("andrea-12m", 0, settings={"n_layer": "1", "bias": "all"})
    assert checkpoint.config == preset("andrea-12m").replace(n_layer=1, bias="all")
    assert load_model(checkpoint).wte.weight.shape == (2305, 384)
    with pytest.raises(ConfigError, match="no preset 'andrea-7b'"):
        random_checkpoint("andrea-7b", 0)

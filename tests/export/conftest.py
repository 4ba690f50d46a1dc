"""Small models, exported once for all tests that only look at them."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import CONFIG

from andrea_export.graph import GraphOptions, export_graph
from andrea_model import AndreaConfig, random_checkpoint
from andrea_model.checkpoint import save_folder, write_bin
from andrea_model.tokenizer import HarrisTokenizer

# Every size differs from every other, so that a wrong axis cannot pass.
TINY = AndreaConfig(vocab_size=97, context_length=24, d_model=40, n_layer=3, n_head=5)


@pytest.fixture(scope="session")
def tiny():
    return random_checkpoint("andrea-nano", 3, config=TINY)


@pytest.fixture(scope="session")
def tiny_folder(tiny, tmp_path_factory) -> Path:
    """The tiny model in fp32 with plugin ops. Not to be changed."""
    return export_graph(tiny, tmp_path_factory.mktemp("export") / "tiny").path


@pytest.fixture
def export(tmp_path):
    """Exports a random checkpoint of a config: export(config, dtype=..., ops=..., opset=...)."""

    def run(config, name="out", **options):
        checkpoint = random_checkpoint("andrea-nano", 3, config=config)
        folder = export_graph(checkpoint, tmp_path / name, GraphOptions(**options))
        return checkpoint, folder

    return run


@pytest.fixture(scope="session")
def drawn():
    """Random weights of the model that commands are tried on."""
    return random_checkpoint("andrea-nano", 7, config=CONFIG)


@pytest.fixture
def ckpt(drawn, tmp_path):
    """The same as a checkpoint folder of our own, with a tokenizer."""
    folder = tmp_path / "ckpt"
    save_folder(drawn, folder)
    HarrisTokenizer(["the ", "and ", "é", "über"]).save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def bin_file(drawn, tmp_path):
    path = tmp_path / "step_000003.bin"
    write_bin(drawn.config, drawn.tensors, path, step=3)
    return path


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a disk of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def ids():
    """Token ids [2, 17] within TINY's vocabulary."""
    return np.random.default_rng(0).integers(0, TINY.vocab_size, (2, 17))

"""What tests of engines on a real GPU share: when they run, and for which flavors."""

import pytest

from andrea_export.engine.flavors import FLAVORS, is_installed
from andrea_export.engine.gpus import machine
from andrea_model import AndreaConfig

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not machine().gpus, reason=machine().problem or "no GPU"),
]
CONFIG = AndreaConfig(vocab_size=97, context_length=32, d_model=64, n_layer=2, n_head=2)


def flavor(name):
    installed = pytest.mark.skipif(
        not is_installed(FLAVORS[name]), reason=f"{FLAVORS[name].title} is not installed"
    )
    return pytest.param(name, marks=[installed, *([pytest.mark.tensorrt] * (name == "tensorrt"))])


FLAVOR_NAMES = [flavor("tensorrt"), flavor("rtx")]

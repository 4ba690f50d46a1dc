"""What an engine tells of its tensors becomes values of taps, or is not used."""

import ctypes

import numpy as np
import pytest
import torch

from andrea_export.errors import BackendError
from andrea_export.layer_names import tap_names, width_of
from andrea_export.report.taps import TorchTaps
from andrea_export.report.torch_models import BaselineSession
from andrea_export.session.layer_values import LayerValues, byte_count, decode
from andrea_model import AndreaConfig, random_checkpoint

TYPES = {"FLOAT": torch.float32, "HALF": torch.float16, "BF16": torch.bfloat16}
SHAPES = {"blocks.0.norm1": (1, 2, 4), "blocks.0.attn.context": (1, 2, 4)}
VALUE = np.arange(8, dtype=np.float32).reshape(1, 2, 4)


def memory_of(tensor):
    """The bytes of a host tensor, read from its address."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def told(*tensors, profile=0):
    """What is left of tensors told as (name, value)."""
    values = LayerValues(SHAPES, profile)
    for name, value in tensors:
        values.take(name, "FLOAT", value.shape, value.tobytes())
    return values


@pytest.mark.parametrize("dtype", TYPES)
def test_memory_is_decoded_to_what_torch_says_it_is(dtype):
    special = [float("nan"), float("inf"), -float("inf"), -0.0, 6e-8, 1e-40, 65504.0, 3e38]
    tensor = torch.cat([torch.tensor(special), torch.randn(40)]).to(TYPES[dtype]).reshape(2, 4, 6)
    found = decode(memory_of(tensor), dtype, (2, 4, 6))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, tensor.float().numpy())


def test_memory_of_no_elements_is_an_empty_array():
    assert decode(b"", "HALF", (2, 0, 6)).shape == (2, 0, 6)


def test_memory_of_another_size_is_refused():
    with pytest.raises(BackendError, match=r"HALF \[2, 3\] is 12 bytes, 11 were read"):
        decode(bytes(11), "HALF", (2, 3))


def test_type_that_no_layer_has_is_refused():
    with pytest.raises(BackendError, match="type FP8 is none of FLOAT, HALF, BF16"):
        byte_count("FP8", (2, 3))


def test_value_under_the_name_of_the_graph_is_its_tap():
    values = told(("blocks.0.norm1", VALUE), ("blocks.0.attn.context/merged", 2 * VALUE))
    np.testing.assert_array_equal(values.values["blocks.0.norm1"], VALUE)
    np.testing.assert_array_equal(values.values["blocks.0.attn.context"], 2 * VALUE)


@pytest.mark.parametrize(
    "name",
    [
        "blocks.0.attn.context",  # a tensor of that name is by head, and no tap
        "blocks.0.norm1/float",
        "blocks.0.norm1_output",
        "__mye123_myl4",
        "BLOCKS.0.NORM1",
        "blocks.0.norm1 [profile 1]",
        "",
    ],
)
def test_name_that_is_not_the_very_name_of_a_tap_is_not_used(name):
    values = told((name, VALUE))
    assert (values.values, values.refused) == ({}, {})


def test_later_profile_stands_behind_the_name():
    second = told(("blocks.0.norm1 [profile 1]", VALUE), profile=1)
    assert list(second.values) == ["blocks.0.norm1"]
    other = told(("blocks.0.norm1 [profile 2]", VALUE), profile=1)
    assert other.values == {}


def test_tensor_of_another_shape_is_not_used_and_said():
    values = told(("blocks.0.norm1", VALUE.reshape(2, 4)))
    assert values.values == {}
    assert values.refused == {"blocks.0.norm1": "shape [2, 4] instead of [1, 2, 4]"}


def test_tensor_of_another_type_is_not_used_and_said():
    values = LayerValues(SHAPES, 0)
    assert not values.wants("blocks.0.norm1", "INT8", (1, 2, 4))
    assert values.refused == {"blocks.0.norm1": "type INT8"}


def test_tap_told_twice_alike_is_used_and_otherwise_not():
    broken = np.where(VALUE == 3, np.nan, VALUE).astype(np.float32)
    assert list(told(("blocks.0.norm1", broken), ("blocks.0.norm1", broken)).values)
    values = told(("blocks.0.norm1", VALUE), ("blocks.0.norm1", broken), ("blocks.0.norm1", VALUE))
    assert values.values == {}
    assert values.refused == {"blocks.0.norm1": "two different values"}


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_position": "post"}, {"activation": "swiglu", "norm": "rmsnorm", "bias": "none"}],
)
def test_taps_have_the_widths_that_torch_gives_them(changes):
    config = AndreaConfig(97, 24, 40, 2, 5).replace(**changes)
    checkpoint = random_checkpoint("andrea-nano", 3, config=config)
    seen = TorchTaps(BaselineSession(checkpoint, "fp32"))(np.array([[1, 2, 3]]))
    assert {tap: value.shape for tap, value in seen.items()} == {
        tap: (1, 3, width_of(tap, config)) for tap in tap_names(config)
    }

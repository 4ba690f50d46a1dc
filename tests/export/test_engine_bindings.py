"""Which profile a call takes, and the shapes of its buffers: no GPU is needed to plan."""

import pytest

from andrea_export.errors import BackendError, InputError
from andrea_export.session.trt_bindings import TensorSpec, cache_pairs, choose_profile, plan

TOKENS = {"input_ids": ((1, 1), (1, 1), (8, 1))}
PROMPTS = {"input_ids": ((1, 1), (1, 128), (8, 1024))}


def specs(last=False, **changes):
    found = {
        "input_ids": TensorSpec("input_ids", "INT64", (-1, -1), True),
        "past_length": TensorSpec("past_length", "INT64", (-1,), True),
        "past_key_values.0.key": TensorSpec("past_key_values.0.key", "HALF", (-1, 4, 64, 32), True),
        "logits": TensorSpec("logits", "FLOAT", (-1, 1 if last else -1, 97), False),
        "present.0.key": TensorSpec("present.0.key", "HALF", (-1, 4, 64, 32), False),
    }
    return list({**found, **changes}.values())


def profile(tokens):
    inputs = {"input_ids": tokens["input_ids"]}
    low, tuned, high = ((shape[0],) for shape in inputs["input_ids"])
    inputs["past_length"] = (low, tuned, high)
    cache = tuple((rows[0], 4, 64, 32) for rows in (low, tuned, high))
    return {**inputs, "past_key_values.0.key": cache}


@pytest.mark.parametrize(
    ("shape", "index"),
    [((1, 1), 0), ((8, 1), 0), ((1, 2), 1), ((1, 128), 1), ((8, 1024), 1)],
)
def test_profile_tuned_nearest_is_chosen(shape, index):
    assert choose_profile([TOKENS, PROMPTS], {"input_ids": shape}) == index


def test_nearness_is_a_factor():
    short = {"input_ids": ((1, 1), (1, 16), (8, 1024))}
    long = {"input_ids": ((1, 1), (1, 256), (8, 1024))}
    # 60 is 3.75 times 16, and 256 is 4.27 times 60.
    assert choose_profile([short, long], {"input_ids": (1, 60)}) == 0
    assert choose_profile([short, long], {"input_ids": (1, 70)}) == 1


def test_shape_outside_every_profile_is_told_with_what_they_take():
    with pytest.raises(InputError, match=r"input_ids of shape 9x1 fits no .* 1x1 to 8x1 or 1x1 to"):
        choose_profile([TOKENS, PROMPTS], {"input_ids": (9, 1)})


def test_plan_has_a_shape_for_every_tensor():
    planned = plan(specs(), [profile(TOKENS), profile(PROMPTS)], rows=2, width=5)
    assert planned.profile == 1
    assert planned.shapes == {
        "input_ids": (2, 5),
        "past_length": (2,),
        "past_key_values.0.key": (2, 4, 64, 32),
        "logits": (2, 5, 97),
        "present.0.key": (2, 4, 64, 32),
    }


def test_logits_of_last_tokens_have_one_place_a_row():
    planned = plan(specs(last=True), [profile(PROMPTS)], rows=2, width=5)
    assert planned.shapes["logits"] == (2, 1, 97)


def test_tensor_that_nothing_can_fill_is_named():
    other = TensorSpec("attention_mask", "INT64", (-1, -1), True)
    with pytest.raises(BackendError, match="attention_mask, which no session can give"):
        plan(specs(other=other), [profile(PROMPTS)], 1, 1)


def test_cache_of_unknown_capacity_is_refused():
    loose = TensorSpec("past_key_values.0.key", "HALF", (-1, 4, -1, 32), True)
    with pytest.raises(BackendError, match="has a dynamic axis that should be fixed"):
        plan(specs(**{"past_key_values.0.key": loose}), [profile(PROMPTS)], 1, 1)


def test_cache_inputs_are_paired_with_what_updates_them():
    assert cache_pairs(specs()) == {"past_key_values.0.key": "present.0.key"}


@pytest.mark.parametrize(
    ("present", "message"),
    [
        (TensorSpec("present.0.key", "FLOAT", (-1, 4, 64, 32), False), r"is FLOAT \[-1, 4, 64"),
        (TensorSpec("present.0.key", "HALF", (-1, 4, 32, 32), False), r"is HALF \[-1, 4, 32"),
        (TensorSpec("elsewhere", "HALF", (-1, 4, 64, 32), False), "is missing"),
    ],
)
def test_cache_that_cannot_be_updated_in_place_is_refused(present, message):
    with pytest.raises(BackendError, match=message):
        cache_pairs(specs(**{"present.0.key": present}))

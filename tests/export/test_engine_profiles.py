"""Optimization profiles: read, filled and checked without TensorRT."""

import pytest

from andrea_export.engine.profiles import (
    Bounds,
    NetworkInput,
    Range,
    check_profile,
    default_profiles,
    fill_profile,
    parse_profile,
)
from andrea_export.errors import EngineError

IDS = NetworkInput("input_ids", "INT64", ("batch", "sequence"))
PAST = NetworkInput("past_length", "INT64", ("batch",))
KEY = NetworkInput("past_key_values.0.key", "HALF", ("batch", 4, 64, 32))
CACHED = [IDS, PAST, KEY]


def test_profile_text_is_read_as_three_shapes_per_input():
    assert parse_profile("input_ids=1x1:1x128:8x1024, past_length=1:1:8") == {
        "input_ids": Bounds((1, 1), (1, 128), (8, 1024)),
        "past_length": Bounds((1,), (1,), (8,)),
    }


def test_one_shape_stands_for_all_three():
    assert parse_profile("x=2x3") == {"x": Bounds((2, 3), (2, 3), (2, 3))}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input_ids", r"a profile is NAME=MIN:OPT:MAX .* not 'input_ids'"),
        ("=1:1:1", "a profile is NAME=MIN:OPT:MAX"),
        ("x=1:2", "a profile is NAME=MIN:OPT:MAX"),
        ("x=1xa:1x2:1x3", r"profile of x: a shape is sizes joined by x, as 8x1024, not 1xa"),
        ("x=-1:1:1", "a shape is sizes joined by x"),
        ("x=1,x=2", "the profile names x twice"),
    ],
)
def test_profile_text_is_refused_when_it_is_no_profile(text, message):
    with pytest.raises(EngineError, match=message):
        parse_profile(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:2", r"--batch takes MIN:OPT:MAX or one number, not '1:2'"),
        ("a:b:c", "--batch takes MIN:OPT:MAX"),
        ("0:1:8", "--batch: min is 0, an axis has at least 1"),
        ("4:2:8", "--batch: min 4 is above opt 2"),
        ("1:9:8", "--batch: opt 9 is above max 8"),
    ],
)
def test_range_is_refused_when_it_is_no_range(text, message):
    with pytest.raises(EngineError, match=message):
        Range.parse(text, "--batch")


def test_defaults_reach_the_limit_and_tune_for_128():
    assert default_profiles([IDS], sequence_limit=1024) == [
        {"batch": Range(1, 1, 8), "sequence": Range(1, 128, 1024)}
    ]


def test_defaults_stay_within_a_short_context():
    (axes,) = default_profiles([IDS], sequence_limit=24)
    assert axes["sequence"] == Range(1, 24, 24)


def test_graph_with_a_cache_gets_a_profile_for_single_tokens_and_one_for_prompts():
    tokens, prompts = default_profiles(CACHED, sequence_limit=64)
    assert tokens["sequence"] == Range(1, 1, 1)
    assert prompts["sequence"] == Range(1, 64, 64)


def test_sequence_that_was_asked_for_is_the_only_profile():
    asked = Range(1, 8, 16)
    (axes,) = default_profiles(CACHED, sequence_limit=64, sequence=asked)
    assert axes["sequence"] == asked


@pytest.mark.parametrize("axis", ["batch", "sequence"])
def test_range_of_an_axis_that_the_graph_does_not_have_is_refused(axis):
    image = NetworkInput("image", "FLOAT", (4, 3, "height"))
    with pytest.raises(EngineError, match=rf"--{axis}: the graph has no axis called {axis} .*4, 3"):
        default_profiles([image], sequence_limit=None, **{axis: Range(1, 1, 1)})


def test_all_inputs_are_filled_from_what_one_of_them_says():
    given = parse_profile("input_ids=1x1:2x8:4x16")
    profile = fill_profile(CACHED, {"batch": Range(1, 1, 8), "sequence": Range(1, 1, 1)}, given)
    assert profile == {
        "input_ids": Bounds((1, 1), (2, 8), (4, 16)),
        "past_length": Bounds((1,), (2,), (4,)),
        "past_key_values.0.key": Bounds((1, 4, 64, 32), (2, 4, 64, 32), (4, 4, 64, 32)),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ids=1x1", "the profile names ids, the graph has input_ids, past_length"),
        ("input_ids=1:1:8", r"input_ids \[batch, sequence\]: min has 1 sizes, the input has 2"),
        (
            "input_ids=1x1:2x8:4x16,past_length=1:2:8",
            "axis batch is 1:2:4 in input_ids and 1:2:8 in past_length",
        ),
    ],
)
def test_given_shapes_are_refused_when_they_do_not_fit_the_graph(text, message):
    with pytest.raises(EngineError, match=message):
        fill_profile(CACHED, {}, parse_profile(text))


def test_unknown_axis_is_named_with_the_option_that_tells_its_size():
    image = NetworkInput("image", "FLOAT", ("batch", 3, "height"))
    with pytest.raises(EngineError, match=r'axis height of image .* --profile "image=MIN:OPT:MAX"'):
        fill_profile([image], {"batch": Range(1, 1, 1)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input_ids=1x8:1x4:1x16", r"input_ids \[batch, sequence\], axis sequence: min 8 is above"),
        ("input_ids=0x1:1x1:1x1", "axis batch: min is 0"),
        ("input_ids=1x1:1x1:2147483648x1", "axis batch: max 2147483648 is above 2147483647"),
        (
            "input_ids=1x1:1x1:1x65",
            "axis sequence: max 65 is above 64, the model's context length",
        ),
    ],
)
def test_filled_profile_is_refused_when_an_axis_is_impossible(text, message):
    profile = fill_profile([IDS], {}, parse_profile(text))
    with pytest.raises(EngineError, match=message):
        check_profile(profile, [IDS], {"sequence": (64, "the model's context length")})


def test_size_of_a_static_axis_cannot_be_changed():
    profile = fill_profile([KEY], {}, parse_profile(f"{KEY.name}=1x4x32x32"))
    with pytest.raises(EngineError, match=r"axis 2: 32:32:32 was asked for, the graph has 64"):
        check_profile(profile, [KEY], {})

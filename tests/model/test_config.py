"""The configuration: what it refuses, what it derives, and its round trip through JSON."""

import json
import re
from pathlib import Path

import pytest

from andrea_model.config import LARGEST, AndreaConfig
from andrea_model.errors import ConfigError, InputError, shown
from andrea_model.parameters import count_parameters, parameter_shapes
from andrea_model.presets import PRESETS, preset

SIZES = {"vocab_size": 11, "context_length": 8, "d_model": 12, "n_layer": 2, "n_head": 3}


def test_config_when_d_model_does_not_divide_by_n_head_then_both_values_are_named() -> None:
    with pytest.raises(ConfigError, match="d_model 12 is not divisible by n_head 5: it leaves 2"):
        AndreaConfig(**SIZES | {"n_head": 5})


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "12", None])
@pytest.mark.parametrize("name", SIZES)
def test_config_when_a_size_is_no_positive_whole_number_then_it_is_named(
    name: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be a whole number .* not {value!r}"):
        AndreaConfig(**SIZES | {name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("norm", "batchnorm", "norm must be one of layernorm, rmsnorm, not 'batchnorm'"),
        ("activation", "silu", "one of gelu_tanh, gelu_erf, relu, swiglu, not 'silu'"),
        ("bias", True, "bias must be one of mlp, none, all, not True"),
        ("tied_head", "yes", "tied_head must be true or false, not 'yes'"),
        ("norm_eps", 0.0, "norm_eps must be a number above 0, not 0.0"),
        ("norm_eps", float("nan"), "norm_eps must be a number above 0, not nan"),
        ("mlp_ratio", -4, "mlp_ratio must be a number above 0, not -4"),
        ("mlp_ratio", 2.3, "mlp_ratio 2.3 times d_model 12 is 27.6, not a whole mlp_dim"),
        ("mlp_ratio", 10**400, "times d_model 12 is an mlp_dim above the largest, 524,288"),
        ("norm_eps", 10**400, "norm_eps must be at most 1, not 1000"),
    ],
)
def test_config_when_an_option_is_wrong_then_value_and_choices_are_named(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        AndreaConfig(**SIZES | {name: value})


def test_config_when_swiglu_is_narrower_than_one_then_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mlp_ratio 1e-12 times d_model 12 is 1.2e-11, not a"):
        AndreaConfig(**SIZES | {"activation": "swiglu", "mlp_ratio": 1e-12})


@pytest.mark.parametrize("name", SIZES)
def test_config_when_a_size_is_beyond_every_model_then_value_and_bound_are_named(name: str) -> None:
    largest = LARGEST[name]
    for value in (largest + 1, 10**9, 10**400):
        with pytest.raises(
            ConfigError, match=f"{name} must be at most {largest:,}, not {value}"[:50]
        ):
            AndreaConfig(**SIZES | {name: value})
    others = {"n_head": 1} if name == "d_model" else {}
    others |= {"d_model": largest, "n_head": largest} if name == "n_head" else {}
    assert getattr(AndreaConfig(**SIZES | {name: largest} | others), name) == largest


def test_config_when_compared_with_the_largest_published_models_then_it_has_room_for_them() -> None:
    AndreaConfig(50257, 2048, 20_480, 105, 128)  # Megatron-Turing NLG 530B
    AndreaConfig(50257, 2048, 12_288, 96, 96)  # GPT-3
    AndreaConfig(64_000, 512, 512, 1000, 8)  # DeepNet


@pytest.mark.parametrize(
    ("d_model", "changes", "mlp_dim"),
    [
        (768, {}, 3072),
        (768, {"mlp_ratio": 2.5}, 1920),
        (100, {"mlp_ratio": 7 / 100}, 7),  # 7 / 100 * 100 is 7.000000000000001 in floats
        (768, {"activation": "swiglu"}, 2048),  # 8/3 · 768, a multiple of 64 already
        (384, {"activation": "swiglu"}, 1024),
        (100, {"activation": "swiglu"}, 320),  # 266.7 rounded up
        (768, {"activation": "swiglu", "mlp_ratio": 4}, 3072),
    ],
)
def test_mlp_dim_when_derived_then_it_is_the_whole_number(
    d_model: int, changes: dict[str, object], mlp_dim: int
) -> None:
    config = AndreaConfig(**SIZES | {"d_model": d_model, "n_head": 1} | changes)
    assert config.mlp_dim == mlp_dim


@pytest.mark.parametrize("name", PRESETS)
def test_config_when_written_as_json_then_it_reads_back_the_same(name: str) -> None:
    text = preset(name).to_json()
    assert json.loads(text)["model_type"] == "andrea"
    assert AndreaConfig.from_dict(json.loads(text)) == preset(name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', expected 'andrea'"),
        (SIZES | {"n_kv_head": 2}, "unknown key 'n_kv_head'; known: vocab_size"),
        ({"vocab_size": 3}, "missing key 'context_length'"),
        ([1], "a config is a JSON object, not list"),
        ({"model_type": ["x"]}, "model_type is ['x'], expected 'andrea'"),
        (SIZES | {"x" * 1000: 2}, "unknown key 'xxx"),
    ],
)
def test_from_dict_when_the_object_is_wrong_then_the_key_is_named(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        AndreaConfig.from_dict(values)


def test_from_file_when_it_cannot_be_parsed_then_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text in ("{", "[" * 100_000, "[" + "9" * 5000 + "]"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"config\.json: not a readable config"):
            AndreaConfig.from_file(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("gelu", "'gelu'"),
        (2.5, "2.5"),
        ([1, 2], "[1, 2]"),
        (list(range(1000)), "[0, 1, 2, 3, 4, 5, ...]"),
        pytest.param(10**5000, "a number of 16610 bits", id="5001 digits"),
    ],
)
def test_shown_when_a_value_goes_on_then_it_is_cut_short(value: object, text: str) -> None:
    assert shown(value) == text
    assert len(shown("x" * 10**6)) <= 80
    assert len(shown({"x" * 10**6: ["y" * 10**6] * 100})) < 1000


def test_settings_when_given_as_text_then_they_take_the_type_of_the_field() -> None:
    config = AndreaConfig(**SIZES).with_settings(
        {"vocab_size": "17", "tied_head": "False", "norm_eps": "1e-6", "bias": "all"}
    )
    assert (config.vocab_size, config.tied_head, config.norm_eps) == (17, False, 1e-6)
    assert config.bias == "all"


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("layers", "3", "unknown setting 'layers'; known: vocab_size"),
        ("n_layer", "three", "n_layer must be a whole number, not 'three'"),
        ("n_layer", "3.5", "n_layer must be a whole number, not '3.5'"),
        ("norm_eps", "small", "norm_eps must be a number, not 'small'"),
        ("n_layer", "9" * 5000, "n_layer must be a whole number, not '999"),
        ("vocab_size", "100000000000", "vocab_size must be at most 4,194,304, not 100000000000"),
        ("mlp_ratio", "1e308", "mlp_ratio 1e+308 times d_model 12 is an mlp_dim above the largest"),
        ("tied_head", "0", "tied_head must be true or false, not '0'"),
        ("norm", "none", "norm must be one of layernorm, rmsnorm"),
    ],
)
def test_settings_when_wrong_then_the_key_is_named(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        AndreaConfig(**SIZES).with_settings({key: text})


@pytest.mark.parametrize(
    ("lowest", "highest", "sequence", "message"),
    [
        (0, 11, 3, "token id 11 is outside the vocabulary: ids go from 0 to 10"),
        (-1, 4, 3, "token id -1 is outside the vocabulary: ids go from 0 to 10"),
        (0, 4, 9, "the sequence has 9 tokens, the model's context length is 8"),
        (0, 0, 0, "there are no tokens: the model needs at least one"),
    ],
)
def test_check_ids_when_the_model_cannot_take_them_then_the_values_are_named(
    lowest: int, highest: int, sequence: int, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        AndreaConfig(**SIZES).check_ids(lowest, highest, sequence)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("andrea-120m", 92_294_400),  # the lesson's model, counted by hand from its formulas
        ("andrea-120m-published", 98_737_152),  # 98.7M
        ("andrea-12m", 12_790_272),  # 12.8M
        ("gpt2", 124_439_808),  # transformers' GPT2LMHeadModel, tied weights once
    ],
)
def test_preset_when_counted_then_it_has_the_published_parameters(
    name: str, published: int
) -> None:
    assert count_parameters(preset(name)) == published


def test_preset_when_unknown_then_the_known_ones_are_listed() -> None:
    with pytest.raises(ConfigError, match="no preset 'andrea-7b'; there are: andrea-120m, "):
        preset("andrea-7b")


def test_parameter_shapes_when_the_lesson_model_then_names_and_order_are_the_contract() -> None:
    shapes = parameter_shapes(AndreaConfig(**SIZES | {"n_layer": 1}))
    assert shapes == {
        "wte.weight": (11, 12),
        "wpe.weight": (8, 12),
        "blocks.0.norm1.weight": (12,),
        "blocks.0.norm1.bias": (12,),
        "blocks.0.attn.q.weight": (12, 12),
        "blocks.0.attn.k.weight": (12, 12),
        "blocks.0.attn.v.weight": (12, 12),
        "blocks.0.attn.o.weight": (12, 12),
        "blocks.0.norm2.weight": (12,),
        "blocks.0.norm2.bias": (12,),
        "blocks.0.mlp.fc1.weight": (12, 48),
        "blocks.0.mlp.fc1.bias": (48,),
        "blocks.0.mlp.fc2.weight": (48, 12),
        "blocks.0.mlp.fc2.bias": (12,),
        "norm_f.weight": (12,),
        "norm_f.bias": (12,),
    }

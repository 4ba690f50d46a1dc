"""ANDREA's `.bin`: header, variant by parameter count, and bad files."""

import hashlib
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from andrea_model.checkpoint import open_checkpoint, random_checkpoint, write_bin
from andrea_model.checkpoint.bin_file import UNRECORDED
from andrea_model.checkpoint.variants import variants
from andrea_model.config import FIELDS, OPTIONS, SIZES, AndreaConfig
from andrea_model.errors import CheckpointError, ConfigError, NonFiniteWeightsError
from andrea_model.parameters import count_parameters
from andrea_model.presets import preset

TINY = AndreaConfig(vocab_size=11, context_length=4, d_model=6, n_layer=2, n_head=2)
N_TINY = 11 * 6 + 4 * 6 + 2 * (4 * 36 + 2 * 144 + 24 + 6 + 4 * 6) + 12

# (linear biases, norm parameters) → n_params of 12M and 120M with an untied head, 1024 positions.
PUBLISHED = {
    ("none", "none"): (12_780_288, 98_698_752),
    ("none", "scale"): (12_785_280, 98_717_952),
    ("none", "scale_bias"): (12_790_272, 98_737_152),
    ("mlp", "none"): (12_791_808, 98_744_832),
    ("mlp", "scale"): (12_796_800, 98_764_032),
    ("mlp", "scale_bias"): (12_801_792, 98_783_232),
    ("all", "none"): (12_801_024, 98_781_696),
    ("all", "scale"): (12_806_016, 98_800_896),
    ("all", "scale_bias"): (12_811_008, 98_820_096),
}
# The smallest and the largest variant with a tied head.
PUBLISHED_TIED = {
    ("none", "none"): (11_895_168, 92_209_920),
    ("all", "scale_bias"): (11_925_888, 92_331_264),
}
SHAPES = ("andrea-12m", "andrea-120m")


def sparse_bin(path: Path, n_params: int, size: int | None = None, step: int = 7) -> Path:
    """A .bin of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        file.write(struct.pack("<ii", step, n_params))
        file.truncate(8 + 4 * n_params if size is None else size)
    return path


def tiny_bin(path: Path, **options: object) -> Path:
    tensors = random_checkpoint("andrea-nano", 5, config=TINY).tensors
    write_bin(TINY, tensors, path, **options)  # type: ignore[arg-type]
    return path


CASES = [
    (shape, tied, bias, affine, counts[column])
    for tied, table in ((False, PUBLISHED), (True, PUBLISHED_TIED))
    for (bias, affine), counts in table.items()
    for column, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize(("shape", "tied", "bias", "affine", "n_params"), CASES)
def test_variant_when_n_params_is_a_published_count_then_it_is_that_model(
    shape: str, tied: bool, bias: str, affine: str, n_params: int
) -> None:
    wanted = preset(shape).replace(tied_head=tied, bias=bias, norm_affine=affine)
    assert [v.config for v in variants() if v.n_params == n_params] == [wanted]


def test_variants_when_listed_then_no_two_have_the_same_count() -> None:
    counts = [variant.n_params for variant in variants()]
    assert len(counts) == 5 * 2 * 3 * 3  # shapes × head × linear biases × norm parameters
    assert len(set(counts)) == len(counts)


@pytest.mark.parametrize("per_parameter", [4, 12], ids=["weights", "weights and Adam"])
def test_open_when_the_size_fits_then_step_variant_and_notes_are_given(
    tmp_path: Path, per_parameter: int
) -> None:
    n = 12_780_288
    path = sparse_bin(tmp_path / "ANDREA-12M.bin", n, 8 + per_parameter * n, step=43587)
    checkpoint = open_checkpoint(path)
    assert (checkpoint.format, checkpoint.step) == ("bin", 43587)
    assert checkpoint.config == preset("andrea-12m").replace(norm_affine="none")
    assert sum(tensor.size for tensor in checkpoint.tensors.values()) == n
    assert checkpoint.notes[0] == (
        "n_params 12,780,288 is andrea-12m with untied head, no linear biases, "
        "norms without parameters"
    )
    assert "assumed orientation=in_out,head=last,norms=inline,attention=qkvo" in checkpoint.notes[2]


@pytest.mark.parametrize("step", [640, 640 + (2 << 16), 0x04034B50], ids=hex)
def test_open_when_the_step_looks_like_another_format_then_it_is_still_a_bin(
    tmp_path: Path, step: int
) -> None:
    """Step 640 starts with the bytes of a pickle, 0x04034B50 with those of a zip archive."""
    path = tiny_bin(tmp_path / "step.bin", step=step)
    checkpoint = open_checkpoint(path, config=TINY)
    assert (checkpoint.format, checkpoint.step) == ("bin", step)


TRUNCATED = "truncated (or not an ANDREA .bin): n_params "


@pytest.mark.parametrize(
    "step", [640, 896, 1152, 1408, 640 + (0x2E << 16), 0x04034B50, 896 + (0x63 << 16)], ids=hex
)
@pytest.mark.parametrize("name", ["step.bin", "step"])
def test_open_when_a_cut_off_file_looks_like_another_format_then_it_is_still_a_bin(
    tmp_path: Path, step: int, name: str
) -> None:
    """As above, 0x2E ends a pickle and 0x63 starts the name of a global."""
    path = sparse_bin(tmp_path / name, 98_698_752, 2_000_000, step=step)
    with pytest.raises(CheckpointError, match=re.escape(f"{path}: {TRUNCATED}98,698,752")):
        open_checkpoint(path)


@pytest.mark.parametrize("step", [640, 896, 1152, 1408], ids=hex)
@pytest.mark.parametrize("length", [8, 9, 500, 4 * N_TINY])
def test_open_when_a_cut_off_bin_is_of_an_unknown_size_then_its_name_or_config_decides(
    tmp_path: Path, step: int, length: int
) -> None:
    path = tiny_bin(tmp_path / "step.bin", step=step)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=re.escape(f"{TRUNCATED}{N_TINY:,}")):
        open_checkpoint(path)
    path = path.rename(tmp_path / "step")
    with pytest.raises(CheckpointError, match=re.escape(f"{TRUNCATED}{N_TINY:,}")):
        open_checkpoint(path, config=TINY)


def test_open_when_the_first_weight_starts_with_a_brace_then_it_is_no_safetensors(
    tmp_path: Path,
) -> None:
    path = tmp_path / "step.bin"
    path.write_bytes(struct.pack("<ii", 7, N_TINY) + b"{" * 400)
    with pytest.raises(CheckpointError, match=re.escape(TRUNCATED)):
        open_checkpoint(path)


@pytest.mark.parametrize("name", FIELDS)
def test_notes_when_a_field_is_not_in_the_count_then_it_is_named_as_not_recorded(name: str) -> None:
    others = {size: 2 * getattr(TINY, size) for size in SIZES}
    others |= {"n_head": 3, "norm_eps": 1e-6, "mlp_ratio": 2, "tied_head": False}
    others |= {option: choices[1] for option, choices in OPTIONS.items()}
    changed = TINY.replace(**{name: others[name]})
    is_recorded = count_parameters(changed) != count_parameters(TINY)
    assert is_recorded == (name not in re.split(r", | and | are ", UNRECORDED))


def test_tensors_when_read_then_they_are_read_only_views_of_the_file(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_bin(tmp_path / "a.bin"), config=TINY)
    raw = np.fromfile(tmp_path / "a.bin", "<f4")[2 : 2 + N_TINY]
    wte = checkpoint.tensors["wte.weight"]
    np.testing.assert_array_equal(wte, raw[:66].reshape(11, 6))
    np.testing.assert_array_equal(checkpoint.tensors["norm_f.bias"], raw[-6:])
    assert not wte.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        wte[0, 0] = 1


def test_sha256_when_the_optimizer_state_is_dropped_then_it_stays(tmp_path: Path) -> None:
    full = tiny_bin(tmp_path / "full.bin")
    weights = tiny_bin(tmp_path / "weights.bin", optimizer_state=False)
    assert full.stat().st_size == 8 + 12 * N_TINY
    assert weights.stat().st_size == 8 + 4 * N_TINY
    expected = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert open_checkpoint(full, config=TINY).sha256() == expected
    assert open_checkpoint(weights, config=TINY).sha256() == expected


def test_open_when_n_params_fits_nothing_then_the_three_nearest_are_listed(tmp_path: Path) -> None:
    path = sparse_bin(tmp_path / "odd.bin", 98_698_752 - 100)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "n_params 98,698,652 fits no known model" in message
    listed = re.findall(r"([\d,]+) \(([-+][\d,]+)\): andrea-120m with", message)
    assert listed == [
        ("98,698,752", "-100"),
        ("98,717,952", "-19,300"),
        ("98,737,152", "-38,500"),
    ]
    assert "--config FILE or --set key=value" in message


def test_open_when_settings_name_the_vocabulary_then_the_variant_is_found(tmp_path: Path) -> None:
    n_params = 12_780_288 + 2 * 100 * 384  # a hundred more rows in wte and in the head
    path = sparse_bin(tmp_path / "odd.bin", n_params)
    config = open_checkpoint(path, settings={"vocab_size": "2405"}).config
    assert config == preset("andrea-12m").replace(norm_affine="none", vocab_size=2405)


def test_open_when_settings_change_what_is_not_counted_then_they_are_kept(tmp_path: Path) -> None:
    path = sparse_bin(tmp_path / "a.bin", 12_780_288)
    config = open_checkpoint(path, settings={"norm_eps": "1e-6", "activation": "gelu_erf"}).config
    assert (config.norm_eps, config.activation, config.n_layer) == (1e-6, "gelu_erf", 6)


def test_open_when_settings_leave_several_models_then_their_difference_is_named(
    tmp_path: Path,
) -> None:
    sizes = {"vocab_size": "100", "context_length": "16", "d_model": "48", "n_layer": "1"}
    config = AndreaConfig(100, 16, 48, 1, 4)
    path = sparse_bin(tmp_path / "a.bin", count_parameters(config))
    with pytest.raises(CheckpointError, match="which differ in n_head 12 or 24 or 4; say which"):
        open_checkpoint(path, settings=sizes)
    assert open_checkpoint(path, settings=sizes | {"n_head": "4"}).config == config


def test_open_when_no_model_can_have_the_settings_then_it_is_a_config_error(tmp_path: Path) -> None:
    path = sparse_bin(tmp_path / "a.bin", 12_780_288)
    with pytest.raises(ConfigError, match="d_model 385 is not divisible by n_head 12: it leaves 1"):
        open_checkpoint(path, settings={"d_model": "385"})


def test_open_when_the_given_config_does_not_fit_then_both_counts_are_named(tmp_path: Path) -> None:
    path = tiny_bin(tmp_path / "a.bin")
    wrong = rf"n_params is {N_TINY:,}, but the config has {N_TINY + 6:,} parameters \(-6\)"
    with pytest.raises(CheckpointError, match=wrong):
        open_checkpoint(path, config=TINY.replace(vocab_size=12))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated: 0 bytes, shorter than the header of 8 bytes"),
        (b"\1\0\0\0\2", "truncated: 5 bytes, shorter than the header"),
        (struct.pack("<ii", 1, -5) + bytes(40), "n_params is -5, wanted one above 0"),
        (struct.pack("<ii", 1, 0), "n_params is 0, wanted one above 0"),
        (
            struct.pack("<ii", 1, 98_698_752) + bytes(40),
            "truncated (or not an ANDREA .bin): n_params 98,698,752 needs 394,795,016 bytes, "
            "the file has 48",
        ),
        (
            struct.pack("<ii", 1, 10) + bytes(50),
            "n_params 10 makes a file of 48 bytes (8 + 4·n, weights only) or 128 bytes "
            "(8 + 12·n, with Adam's state), this one has 58",
        ),
        (
            b"Call me Ishmael. Some years ago",
            "is a text file, starting b'Call me Ishmael. Some ye'",
        ),
        (b"version https://git-lfs.github.com/spec/v1\noid", "only a Git LFS pointer"),
    ],
)
def test_open_when_the_file_is_no_whole_bin_then_the_message_says_what_was_seen(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)


def poisoned(path: Path, values: dict[int, float]) -> Path:
    tiny_bin(path)
    weights = np.memmap(path, "<f4", "r+", offset=8)
    for place, value in values.items():
        weights[place] = value
    weights.flush()
    return path


def test_open_when_weights_are_not_finite_then_tensor_and_counts_are_named(tmp_path: Path) -> None:
    # Two values of wpe (66 to 89), and the last of norm_f.bias.
    bad = {67: np.nan, 70: np.inf, N_TINY - 1: -np.inf}
    path = poisoned(tmp_path / "nan.bin", bad)
    with pytest.raises(NonFiniteWeightsError) as caught:
        open_checkpoint(path, config=TINY)
    assert (
        "tensor 'wpe.weight' holds 2 NaN or Inf values of 24; in all 3 values in 2 of 28 tensors"
        in str(caught.value)
    )
    assert "--allow-nonfinite" in str(caught.value)
    allowed = open_checkpoint(path, config=TINY, allow_nonfinite=True)
    assert allowed.notes[-1].startswith("weights are not finite: tensor 'wpe.weight' holds 2")
    assert np.isnan(allowed.tensors["wpe.weight"]).sum() == 1


def test_open_when_only_the_optimizer_state_is_not_finite_then_nobody_minds(tmp_path: Path) -> None:
    path = poisoned(tmp_path / "adam.bin", {N_TINY: np.nan, 3 * N_TINY - 1: np.inf})
    assert open_checkpoint(path, config=TINY).sha256()

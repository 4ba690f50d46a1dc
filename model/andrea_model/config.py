"""The shape and the options of a GPT-style model, as one immutable value."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from andrea_model.errors import ConfigError, InputError, shown

__all__ = [
    "LARGEST",
    "SIZES",
    "Activation",
    "AndreaConfig",
    "Bias",
    "Norm",
    "NormAffine",
    "NormPosition",
    "check_number",
    "check_size",
    "check_switch",
]

NormPosition = Literal["pre", "post"]
Norm = Literal["layernorm", "rmsnorm"]
NormAffine = Literal["scale_bias", "scale", "none"]
Activation = Literal["gelu_tanh", "gelu_erf", "relu", "swiglu"]
Bias = Literal["mlp", "none", "all"]

MODEL_TYPE = "andrea"
SIZES = ("vocab_size", "context_length", "d_model", "n_layer", "n_head")
# Shazeer 2020 (GLU variants): two thirds of the usual width keeps the parameter count,
# rounded up so that tensor cores see full tiles.
SWIGLU_RATIO = 8 / 3
SWIGLU_MULTIPLE = 64
# No model has sizes beyond these. A wrong digit in a config ends here, and not after an hour of
# listing layers or with the memory used up.
LARGEST: dict[str, int] = {
    "vocab_size": 1 << 22,  # published: 1.0 million (XLM-V)
    "context_length": 1 << 22,  # of learned positions: some thousands; 1 million with others
    "d_model": 1 << 16,  # published: 20,480 (Megatron-Turing NLG 530B)
    "n_layer": 1 << 11,  # published: 1,000 (DeepNet)
    "n_head": 1 << 12,  # published: 128 (Megatron-Turing NLG 530B)
    "mlp_dim": 1 << 19,  # published: 81,920 (Megatron-Turing NLG 530B); 8 · the largest d_model
    "norm_eps": 1,  # beside the variance of an activation, which is about 1
}
# A ratio of two whole numbers, such as 7/100, may miss the whole mlp_dim by a float's last bits.
ROUNDING = 1e-6


@dataclass(frozen=True)
class AndreaConfig:
    """A model of the ANDREA family or of GPT-2.

    Sizes are counts, not bytes. The first value of every option is the block of the ANDREA lesson.

    Raises:
        ConfigError: a size below 1 or over `LARGEST`, an unknown option, or d_model not divisible
            by n_head.
    """

    vocab_size: int
    context_length: int
    d_model: int
    n_layer: int
    n_head: int
    norm_position: NormPosition = "pre"
    norm: Norm = "layernorm"
    norm_affine: NormAffine = "scale_bias"
    activation: Activation = "gelu_tanh"
    mlp_ratio: float | None = None  # None: 4, for swiglu 8/3
    bias: Bias = "mlp"
    tied_head: bool = True
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in SIZES:
            check_size(name, getattr(self, name))
        if self.d_model % self.n_head:
            raise ConfigError(
                f"d_model {self.d_model} is not divisible by n_head {self.n_head}: "
                f"it leaves {self.d_model % self.n_head}"
            )
        for name, allowed in OPTIONS.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {shown(value)}")
        check_switch("tied_head", self.tied_head)
        check_number("norm_eps", self.norm_eps)
        if self.mlp_ratio is not None:
            check_number("mlp_ratio", self.mlp_ratio)
        self._check_mlp()

    def _check_mlp(self) -> None:
        exact = self._exact_mlp_dim
        product = f"mlp_ratio {shown(self.mlp_ratio)} times d_model {self.d_model} is"
        if exact > LARGEST["mlp_dim"]:
            raise ConfigError(f"{product} an mlp_dim above the largest, {LARGEST['mlp_dim']:,}")
        is_whole = abs(exact - round(exact)) <= ROUNDING
        if exact < 1 or not (is_whole or self.activation == "swiglu"):
            raise ConfigError(f"{product} {exact:g}, not a whole mlp_dim")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_head

    @property
    def mlp_dim(self) -> int:
        """Width of the MLP's hidden layer (for swiglu: of the gate, and of the value)."""
        if self.activation == "swiglu":
            tiles = math.ceil(round(self._exact_mlp_dim / SWIGLU_MULTIPLE, 9))
            return tiles * SWIGLU_MULTIPLE
        return round(self._exact_mlp_dim)

    @property
    def _exact_mlp_dim(self) -> float:
        usual = SWIGLU_RATIO if self.activation == "swiglu" else 4
        return (self.mlp_ratio or usual) * self.d_model

    def replace(self, **changes: Any) -> AndreaConfig:
        """A copy with some fields changed, checked again."""
        unknown = sorted(set(changes) - set(FIELDS))
        if unknown:
            raise ConfigError(f"unknown setting {shown(unknown[0])}; known: {', '.join(FIELDS)}")
        return dataclasses.replace(self, **changes)

    def with_settings(self, settings: dict[str, str]) -> AndreaConfig:
        """A copy with fields given as text (`--set key=value`)."""
        return self.replace(**{key: parse_setting(key, text) for key, text in settings.items()})

    def to_dict(self) -> dict[str, Any]:
        return {"model_type": MODEL_TYPE, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> AndreaConfig:
        """The inverse of `to_dict`.

        Raises:
            ConfigError: another model_type, an unknown key, a missing or impossible value.
        """
        if not isinstance(values, dict):
            raise ConfigError(f"a config is a JSON object, not {type(values).__name__}")
        values = dict(values)
        model_type = values.pop("model_type", MODEL_TYPE)
        if model_type != MODEL_TYPE:
            raise ConfigError(f"model_type is {shown(model_type)}, expected {MODEL_TYPE!r}")
        unknown = sorted(set(values) - set(FIELDS))
        if unknown:
            raise ConfigError(f"unknown key {shown(unknown[0])}; known: {', '.join(FIELDS)}")
        required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigError(f"missing key {missing[0]!r}")
        return cls(**values)

    @classmethod
    def from_file(cls, path: Path) -> AndreaConfig:
        try:
            return cls.from_dict(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not a readable config: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def check_ids(self, lowest: int, highest: int, sequence: int) -> None:
        """Refuse token ids or a sequence length that the embeddings do not have.

        Raises:
            InputError: an id outside 0..vocab_size-1, no token at all, or too many of them.
        """
        if sequence < 1:
            raise InputError("there are no tokens: the model needs at least one")
        if sequence > self.context_length:
            raise InputError(
                f"the sequence has {sequence} tokens, "
                f"the model's context length is {self.context_length}"
            )
        if lowest < 0 or highest >= self.vocab_size:
            seen = lowest if lowest < 0 else highest
            raise InputError(
                f"token id {seen} is outside the vocabulary: ids go from 0 to {self.vocab_size - 1}"
            )


_HINTS = get_type_hints(AndreaConfig)
FIELDS: tuple[str, ...] = tuple(f.name for f in dataclasses.fields(AndreaConfig))
OPTIONS: dict[str, tuple[str, ...]] = {
    name: get_args(_HINTS[name])
    for name in ("norm_position", "norm", "norm_affine", "activation", "bias")
}


def parse_setting(key: str, text: str) -> int | float | bool | str | None:
    """The value of one field, from the text of `--set key=value`."""
    if key not in FIELDS:
        raise ConfigError(f"unknown setting {shown(key)}; known: {', '.join(FIELDS)}")
    if key in OPTIONS:
        return text
    if key == "tied_head":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"tied_head must be true or false, not {shown(text)}")
        return text.lower() == "true"
    try:
        return int(text) if key in SIZES else float(text)
    except ValueError:
        kind = "a whole number" if key in SIZES else "a number"
        raise ConfigError(f"{key} must be {kind}, not {shown(text)}") from None


def check_size(field: str, value: object, called: str | None = None) -> None:
    """Refuse what no model can have for one of `SIZES`.

    called: the key that the user knows it by, where another format has its own.

    Raises:
        ConfigError: no whole number, one below 1, or one over `LARGEST`.
    """
    name = called or field
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, not {shown(value)}")
    _check_bound(field, value, name)


def check_number(field: str, value: object, called: str | None = None) -> None:
    """Refuse what is no positive number, or one over `LARGEST`; raises as `check_size`."""
    name = called or field
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise ConfigError(f"{name} must be a number above 0, not {shown(value)}")
    _check_bound(field, value, name)  # type: ignore[arg-type]


def check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {shown(value)}")


def _check_bound(field: str, value: float, name: str) -> None:
    if field in LARGEST and value > LARGEST[field]:
        raise ConfigError(f"{name} must be at most {LARGEST[field]:,}, not {shown(value)}")

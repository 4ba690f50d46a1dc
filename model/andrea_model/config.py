"""The shape and the options of a GPT-style model, as one immutable value."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from andrea_model.errors import ConfigError, InputError

__all__ = ["Activation", "AndreaConfig", "Bias", "Norm", "NormAffine", "NormPosition"]

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
# A ratio of two whole numbers, such as 7/100, may miss the whole mlp_dim by a float's last bits.
ROUNDING = 1e-6


@dataclass(frozen=True)
class AndreaConfig:
    """A model of the ANDREA family or of GPT-2.

    Sizes are counts, not bytes. The first value of every option is the block of the ANDREA lesson.

    Raises:
        ConfigError: a size below 1, an unknown option, or d_model not divisible by n_head.
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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.d_model % self.n_head:
            raise ConfigError(
                f"d_model {self.d_model} is not divisible by n_head {self.n_head}: "
                f"it leaves {self.d_model % self.n_head}"
            )
        for name, allowed in OPTIONS.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        if not isinstance(self.tied_head, bool):
            raise ConfigError(f"tied_head must be true or false, not {self.tied_head!r}")
        if not _is_positive(self.norm_eps):
            raise ConfigError(f"norm_eps must be a number above 0, not {self.norm_eps!r}")
        if self.mlp_ratio is not None and not _is_positive(self.mlp_ratio):
            raise ConfigError(f"mlp_ratio must be a number above 0, not {self.mlp_ratio!r}")
        exact = (self.mlp_ratio or 4) * self.d_model
        if self.activation != "swiglu" and (abs(exact - round(exact)) > ROUNDING or exact < 1):
            raise ConfigError(
                f"mlp_ratio {self.mlp_ratio} times d_model {self.d_model} is {exact:g}, "
                "not a whole mlp_dim"
            )

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_head

    @property
    def mlp_dim(self) -> int:
        """Width of the MLP's hidden layer (for swiglu: of the gate, and of the value)."""
        if self.activation == "swiglu":
            exact = (self.mlp_ratio or SWIGLU_RATIO) * self.d_model
            return math.ceil(round(exact / SWIGLU_MULTIPLE, 9)) * SWIGLU_MULTIPLE
        return round((self.mlp_ratio or 4) * self.d_model)

    def replace(self, **changes: Any) -> AndreaConfig:
        """A copy with some fields changed, checked again."""
        unknown = sorted(set(changes) - set(FIELDS))
        if unknown:
            raise ConfigError(f"unknown setting {unknown[0]!r}; known: {', '.join(FIELDS)}")
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
            raise ConfigError(f"model_type is {model_type!r}, expected {MODEL_TYPE!r}")
        unknown = sorted(set(values) - set(FIELDS))
        if unknown:
            raise ConfigError(f"unknown key {unknown[0]!r}; known: {', '.join(FIELDS)}")
        required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigError(f"missing key {missing[0]!r}")
        return cls(**values)

    @classmethod
    def from_file(cls, path: Path) -> AndreaConfig:
        try:
            return cls.from_dict(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError) as error:
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
        raise ConfigError(f"unknown setting {key!r}; known: {', '.join(FIELDS)}")
    if key in OPTIONS:
        return text
    if key == "tied_head":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"tied_head must be true or false, not {text!r}")
        return text.lower() == "true"
    number = float if key in ("mlp_ratio", "norm_eps") else int
    try:
        return number(text)
    except ValueError:
        raise ConfigError(f"{key} must be a number, not {text!r}") from None


def _is_positive(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < float(value) < math.inf  # type: ignore[arg-type]

"""Which model a `.bin` holds, found from the one thing that it records: its parameter count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import get_args

from andrea_model.config import FIELDS, AndreaConfig, Bias, NormAffine
from andrea_model.errors import CheckpointError, ConfigError
from andrea_model.parameters import count_parameters
from andrea_model.presets import PRESETS

__all__ = ["Variant", "find_variant", "variants"]

NEAREST = 3
HINT = "say which model it is with --config FILE or --set key=value"
HEADS = {True: "tied head", False: "untied head"}
BIASES: dict[Bias, str] = {
    "none": "no linear biases",
    "mlp": "MLP biases",
    "all": "biases on every linear layer",
}
NORMS: dict[NormAffine, str] = {
    "none": "norms without parameters",
    "scale": "norms with gamma",
    "scale_bias": "norms with gamma and beta",
}


@dataclass(frozen=True)
class Variant:
    """One model a `.bin` may hold. shape: the name of the first preset of these sizes."""

    shape: str
    config: AndreaConfig
    n_params: int

    def __str__(self) -> str:
        parts = (
            HEADS[self.config.tied_head],
            BIASES[self.config.bias],
            NORMS[self.config.norm_affine],
        )
        return f"{self.shape} with " + ", ".join(parts)


def variants(settings: Mapping[str, str] | None = None) -> list[Variant]:
    """Every preset's sizes × head × linear biases × norm parameters, with the settings applied.

    Raises:
        ConfigError: settings that are wrong with every preset.
    """
    found: dict[AndreaConfig, Variant] = {}
    errors: list[ConfigError] = []
    for name, base in PRESETS.items():
        for tied, bias, affine in product((True, False), get_args(Bias), get_args(NormAffine)):
            config = base.replace(tied_head=tied, bias=bias, norm_affine=affine)
            try:
                config = config.with_settings(dict(settings or {}))
            except ConfigError as error:
                errors.append(error)
            else:
                found.setdefault(config, Variant(name, config, count_parameters(config)))
    if not found:
        raise errors[0]
    return list(found.values())


def find_variant(n_params: int, settings: Mapping[str, str] | None, source: str) -> Variant:
    """The one variant with that many parameters.

    Raises:
        CheckpointError: none, with the nearest ones; or several, with what they differ in.
        ConfigError: settings that are wrong with every preset.
    """
    known = variants(settings)
    fitting = [variant for variant in known if variant.n_params == n_params]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        configs = [variant.config.to_dict() for variant in fitting]
        seen = {key: sorted({str(config[key]) for config in configs}) for key in FIELDS}
        differ = "; ".join(
            f"{key} {' or '.join(values)}" for key, values in seen.items() if len(values) > 1
        )
        raise CheckpointError(
            f"{source}: n_params {n_params:,} fits {len(fitting)} models, which differ in "
            f"{differ}; {HINT}"
        )
    nearest = sorted(known, key=lambda variant: abs(variant.n_params - n_params))[:NEAREST]
    listing = "; ".join(f"{v.n_params:,} ({n_params - v.n_params:+,}): {v}" for v in nearest)
    raise CheckpointError(
        f"{source}: n_params {n_params:,} fits no known model. Nearest: {listing}. "
        f"If the vocabulary, the context or another size differs, {HINT}"
    )

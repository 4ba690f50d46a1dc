"""Random weights for sizing, benchmarks and tests: drawn when looked at, never stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from andrea_model.checkpoint.checkpoint import Array, Checkpoint
from andrea_model.config import SIZES, AndreaConfig
from andrea_model.parameters import parameter_shapes
from andrea_model.presets import PRESETS, preset
from andrea_model.tokenizer import existing_tokenizer

__all__ = ["RandomTensors", "random_checkpoint"]

STD = 0.02  # GPT-2's; what ends a sublayer is smaller by sqrt(2·n_layer), see Andrea
# Gammas vary about 1, betas and biases about 0: exact ones and zeros would hide that an export lost
# a norm or a bias.
GAMMA_STD = 0.1


class RandomTensors(Mapping[str, Array]):
    """Float32 tensors of a config; each has its own generator, seeded by the seed and its name."""

    def __init__(self, config: AndreaConfig, seed: int) -> None:
        self._shapes = parameter_shapes(config)
        self._residual_std = STD / (2 * config.n_layer) ** 0.5
        self._seed = seed

    def __getitem__(self, name: str) -> Array:
        shape = self._shapes[name]
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))
        array = generator.standard_normal(shape, np.float32)
        if "norm" in name and name.endswith("weight"):
            return array * np.float32(GAMMA_STD) + np.float32(1)
        ends_sublayer = name.endswith(("attn.o.weight", "mlp.fc2.weight"))
        array *= np.float32(self._residual_std if ends_sublayer else STD)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def random_checkpoint(
    preset_name: str,
    seed: int,
    *,
    config: AndreaConfig | None = None,
    settings: Mapping[str, str] | None = None,
    tokenizer: Path | None = None,
) -> Checkpoint:
    """A preset with random float32 weights; the same seed gives the same weights.

    Args:
        preset_name: a name of `PRESETS`; not looked up if a config is given.
        seed: any whole number.
        config: instead of the preset's.
        settings: fields of the config as text, which win over both.
        tokenizer: kept as the checkpoint's `tokenizer_path`.

    Raises:
        ConfigError: no such preset, or an impossible configuration.
        TokenizerError: the tokenizer is not there.
    """
    tokenizer_path = None if tokenizer is None else existing_tokenizer(tokenizer)
    config = (config or preset(preset_name)).with_settings(dict(settings or {}))
    return Checkpoint(
        path=None,
        format="random",
        config=config,
        tensors=RandomTensors(config, seed),
        tokenizer_path=tokenizer_path,
        seed=seed,
        notes=(
            f"random weights of seed {seed} {_shape(preset_name, config)}: not a trained model",
        ),
    )


def _shape(preset_name: str, config: AndreaConfig) -> str:
    if config == PRESETS.get(preset_name):
        return f"in the shape of {preset_name}"
    sizes = ", ".join(f"{name} {getattr(config, name)}" for name in SIZES)
    return f"with {sizes}"

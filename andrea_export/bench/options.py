"""What to measure, and on what."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from andrea_export.errors import ConfigError, InputError

__all__ = ["BenchOptions", "SourceSpec", "parse_sizes"]


@dataclass(frozen=True)
class SourceSpec:
    """Something to measure, described so that another process can open it.

    Attributes:
        source: a checkpoint, an exported folder, an engine, or a preset's name.
        backend: see `open_session`.
        dtype: of a torch session.
        random_weights: the seed, where `source` is a preset's name.
        config: a config.json, for a checkpoint.
        settings: fields of the config, each as KEY=VALUE.
        layout: order of the tensors of a .bin.
        allow_nonfinite: go on with NaN weights.
    """

    source: str
    backend: str = "auto"
    dtype: str = "fp32"
    random_weights: int | None = None
    config: str | None = None
    settings: tuple[str, ...] = ()
    layout: str | None = None
    allow_nonfinite: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def parsed_settings(self) -> dict[str, str]:
        """
        Raises:
            ConfigError: one without an equals sign.
        """
        pairs = {}
        for text in self.settings:
            key, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"a setting is KEY=VALUE, not {text!r}")
            pairs[key.strip()] = value.strip()
        return pairs


@dataclass(frozen=True)
class BenchOptions:
    """How to measure.

    Attributes:
        batches: rows side by side.
        contexts: tokens in each row: of the prompt for a prefill, attended by the last step for
            decode. None: 64 and 512, as far as every source has them.
        rounds: in each, every source takes its turn at every workload.
        tokens: decode steps in a turn.
        prefills: prefills in a turn.
        turn_seconds: a turn ends early after this long, but not before two samples.
        profile_ops: afterwards, also count where the time goes by kind of op.

    Raises:
        InputError: an empty list or a number below 1.
    """

    batches: tuple[int, ...] = (1,)
    contexts: tuple[int, ...] | None = None
    rounds: int = 5
    tokens: int = 16
    prefills: int = 3
    turn_seconds: float = 4.0
    profile_ops: bool = False

    def __post_init__(self) -> None:
        for name in ("batches", "contexts"):
            sizes = getattr(self, name)
            if sizes is None:
                continue
            if not sizes:
                raise InputError(f"{name}: give at least one number")
            if min(sizes) < 1:
                raise InputError(f"{name}: {min(sizes)} is not a whole number of at least 1")
        for name in ("rounds", "tokens", "prefills"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_sizes(text: str, what: str) -> tuple[int, ...]:
    """ "64,512" → (64, 512), without repetitions.

    Raises:
        InputError: not whole numbers of at least 1 with commas between.
    """
    parts = [part.strip() for part in text.split(",")]
    # str.isdecimal lets other scripts' digits through, which int() reads too.
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise InputError(f"{what} takes whole numbers of at least 1, as in 1,8,32, not {text!r}")
    return tuple(dict.fromkeys(int(part) for part in parts))

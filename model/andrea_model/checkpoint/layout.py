"""The order and orientation of the tensors in a `.bin`, which records neither."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import permutations, product
from typing import Literal, get_args, get_type_hints

from andrea_model.config import AndreaConfig
from andrea_model.errors import ConfigError
from andrea_model.parameters import parameter_shapes

__all__ = ["LAYOUT", "Layout"]

# Modules in file order; each is its weight, then its bias if the variant has one. The second column
# is the layout a row belongs to ("" is every layout). A section with {i} repeats once per block.
# {a0} to {a3} are the letters of `attention`.
LAYOUT: tuple[tuple[tuple[str, str], ...], ...] = (
    (
        ("wte", ""),
        ("wpe", ""),
        ("head", "head=third"),
    ),
    (
        ("blocks.{i}.norm1", "norms=inline"),
        ("blocks.{i}.attn.{a0}", ""),
        ("blocks.{i}.attn.{a1}", ""),
        ("blocks.{i}.attn.{a2}", ""),
        ("blocks.{i}.attn.{a3}", ""),
        ("blocks.{i}.norm2", "norms=inline"),
        ("blocks.{i}.mlp.fc1", ""),
        ("blocks.{i}.mlp.fc2", ""),
    ),
    (
        ("blocks.{i}.norm1", "norms=last"),
        ("blocks.{i}.norm2", "norms=last"),
    ),
    (
        ("norm_f", ""),
        ("head", "head=last"),
    ),
)


@dataclass(frozen=True)
class Layout:
    """How a `.bin` is laid out. The defaults write matrices as the lesson does: x @ W, [in, out].

    orientation: of the matrices of the blocks; embeddings and head are [vocab, d_model] in both.
    head: last in the file, or third (after wpe). norms: where they are used (inline), or together
    after the blocks' matrices (last). attention: the order of the four projections.

    Raises:
        ConfigError: an unknown value.
    """

    orientation: Literal["in_out", "out_in"] = "in_out"
    head: Literal["last", "third"] = "last"
    norms: Literal["inline", "last"] = "inline"
    attention: str = "qkvo"

    def __post_init__(self) -> None:
        for key, allowed in CHOICES.items():
            if (value := getattr(self, key)) not in allowed:
                raise ConfigError(f"layout: {key} must be {' or '.join(allowed)}, not {value!r}")
        if sorted(self.attention) != sorted("qkvo"):
            raise ConfigError(
                f"layout: attention must hold q, k, v and o once each, as in qkvo, "
                f"not {self.attention!r}"
            )

    def __str__(self) -> str:
        return ",".join(f"{key}={getattr(self, key)}" for key in KEYS)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout of `--layout KEY=VALUE,...`; keys left out keep their default.

        Raises:
            ConfigError: not KEY=VALUE, a key that does not exist or stands twice, a wrong value.
        """
        values: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or key not in KEYS:
                what = f"unknown key {key!r}" if equals else f"{part!r} is not KEY=VALUE"
                raise ConfigError(f"layout: {what}; keys: {', '.join(KEYS)}")
            if key in values:
                raise ConfigError(f"layout: {key} is given twice, {values[key]!r} and {value!r}")
            values[key] = value
        return cls(**values)  # type: ignore[arg-type]  # checked in __post_init__

    @classmethod
    def all_for(cls, config: AndreaConfig) -> list[Layout]:
        """Every layout that reads a file of this config differently, the default first."""
        heads = ("last",) if config.tied_head else CHOICES["head"]
        norms = ("inline",) if config.norm_affine == "none" else CHOICES["norms"]
        orders = ("".join(order) for order in permutations("qkvo"))
        return [cls(*choice) for choice in product(CHOICES["orientation"], heads, norms, orders)]  # type: ignore[arg-type]

    def tensor_names(self, config: AndreaConfig) -> list[str]:
        """The names of `parameter_shapes(config)`, in the order of the file."""
        stored = parameter_shapes(config)
        leaves = (f"{module}.{leaf}" for module in self._modules(config.n_layer) for leaf in LEAVES)
        return [name for name in leaves if name in stored]

    def is_transposed(self, name: str) -> bool:
        """Whether that tensor lies in the file with its axes swapped."""
        is_matrix = name.startswith("blocks.") and name.endswith(".weight") and "norm" not in name
        return is_matrix and self.orientation == "out_in"

    def _modules(self, n_layer: int) -> Iterator[str]:
        mine = {"", *str(self).split(",")}
        order = {f"a{i}": letter for i, letter in enumerate(self.attention)}
        for section in LAYOUT:
            repeats = n_layer if "{i}" in section[0][0] else 1
            for i in range(repeats):
                yield from (row.format(i=i, **order) for row, where in section if where in mine)


LEAVES = ("weight", "bias")
KEYS: tuple[str, ...] = tuple(field.name for field in fields(Layout))
_HINTS = get_type_hints(Layout)
CHOICES: dict[str, tuple[str, ...]] = {
    key: get_args(_HINTS[key]) for key in ("orientation", "head", "norms")
}

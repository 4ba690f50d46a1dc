"""Which tensors between the layers an engine shows when it runs: the choice, and its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from andrea_export.errors import EngineError
from andrea_export.layer_names import LOGITS, tap_names, value_name

if TYPE_CHECKING:
    from andrea_model.config import AndreaConfig

__all__ = ["FORMS", "OFF", "Choice", "LayerTensors", "tensor_names"]

# off: none. unfused: debug tensors wherever fusion leaves a tensor, under TensorRT's own names.
# named: every tap a debug tensor under the graph's name. outputs: every tap an output.
Choice = Literal["off", "unfused", "named", "outputs"]
FORMS: tuple[str, ...] = get_args(Choice)
OFF = "off"
MOST_NAMES = 3


@dataclass(frozen=True)
class LayerTensors:
    """What was marked in a network.

    Attributes:
        form: "unfused", "named" or "outputs": what was done, which may be less than was asked for.
        wanted: taps of the model, all but the logits, which are an output of every engine.
        marked: how many of them the network itself says are marked; None: unfused, where it cannot.
        missing: names that no tensor of the network, or more than one, has.
    """

    form: str
    wanted: int
    marked: int | None
    missing: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missing": list(self.missing)}

    @classmethod
    def from_dict(cls, values: Any) -> LayerTensors:
        """Raises EngineError: not the record of one."""
        if (
            not isinstance(values, Mapping)
            or values.get("form") not in FORMS[1:]
            or not isinstance(values.get("wanted"), int)
            or not isinstance(values.get("marked"), int | None)
            or not isinstance(values.get("missing"), list)
            or not all(isinstance(name, str) for name in values["missing"])
        ):
            raise EngineError(f"layer_tensors is {values!r}")
        return cls(values["form"], values["wanted"], values["marked"], tuple(values["missing"]))

    @property
    def changes_fusion(self) -> bool:
        """Whether the engine may compute otherwise than one without layer tensors."""
        return self.form != "unfused"

    def __str__(self) -> str:
        if self.form == "unfused":
            text = "what fusion leaves of them; fusion itself stays as it is"
        else:
            how = "debug tensors" if self.form == "named" else "extra outputs"
            text = f"{self.marked} of {self.wanted} as {how}, which can keep kernels from fusing"
        if self.missing:
            more = len(self.missing) - MOST_NAMES
            names = ", ".join(self.missing[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
            text += f"; the graph has none called {names}"
        return text


def tensor_names(config: AndreaConfig) -> tuple[str, ...]:
    """What the taps of a model are called in its network, but for the logits."""
    return tuple(value_name(tap) for tap in tap_names(config) if tap != LOGITS)

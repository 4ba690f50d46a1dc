"""The models that have a name. A checkpoint's own variant always wins over these."""

from andrea_model.config import AndreaConfig
from andrea_model.errors import ConfigError

__all__ = ["LABELS", "PRESETS", "preset"]

PRESETS: dict[str, AndreaConfig] = {
    # The lesson's model: tied head, biases in the MLP only. 92,294,400 parameters.
    "andrea-120m": AndreaConfig(8449, 1024, 768, 12, 12),
    # What the published count of 98.7M says was trained.
    "andrea-120m-published": AndreaConfig(8449, 1024, 768, 12, 12, bias="none", tied_head=False),
    "andrea-12m": AndreaConfig(2305, 1024, 384, 6, 12, bias="none", tied_head=False),
    "andrea-480m": AndreaConfig(8449, 1024, 1536, 16, 24, bias="none", tied_head=False),
    "gpt2": AndreaConfig(50257, 1024, 768, 12, 12, bias="all"),
    # The demo checkpoint that travels with the package.
    "andrea-nano": AndreaConfig(2305, 256, 128, 4, 4),
}

# The parameter count that a nominal name promises, for the shapes (d_model, n_layer) it stands for.
LABELS: dict[tuple[int, int], str] = {(384, 6): "12M", (768, 12): "120M", (1536, 16): "480M"}


def preset(name: str) -> AndreaConfig:
    """The configuration of that name.

    Raises:
        ConfigError: no such preset.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise ConfigError(f"no preset {name!r}; there are: {', '.join(PRESETS)}") from None

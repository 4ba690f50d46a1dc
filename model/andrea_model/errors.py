"""Every error that this project raises on purpose, one class per kind a caller could handle."""

import reprlib

__all__ = [
    "AndreaExportError",
    "CheckpointError",
    "ConfigError",
    "InputError",
    "NonFiniteWeightsError",
    "TokenizerError",
    "shown",
]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class AndreaExportError(Exception):
    """Root of all errors of `andrea_model` and `andrea_export`.

    The message says what is wrong with the values seen, and what to do; it is meant for the user.
    """


class ConfigError(AndreaExportError):
    """A model configuration that cannot exist (or a preset, option or file of one)."""


class CheckpointError(AndreaExportError):
    """A file or folder of weights that cannot be read as what it claims to be."""


class NonFiniteWeightsError(CheckpointError):
    """Weights that hold NaN or Inf."""


class TokenizerError(AndreaExportError):
    """A tokenizer file that cannot be read, or that does not fit the model."""


class InputError(AndreaExportError):
    """Text or token ids that the model cannot take."""


def shown(value: object) -> str:
    """A value as an error message gives it: a list, text or number that goes on is cut short."""
    try:
        return _SHORT.repr(value).replace("\n", " ")
    except ValueError:  # Python writes no number of more than 4300 digits
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else "?"

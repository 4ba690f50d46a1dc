"""Files of `torch.save`, read without ever running the code that a pickle may carry."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes

from andrea_model.checkpoint.checkpoint import Array
from andrea_model.checkpoint.pickle_names import (
    first_code_name,
    is_torch_file,
    pickle_protocol,
    printable,
)
from andrea_model.errors import CheckpointError

__all__ = ["arrays_of", "read_torch_file"]

REFUSED_NAME = re.compile(r"GLOBAL (\S+)")
TORCHS_REASON = re.compile(r"WeightsUnpickler error: (.+)")
# Torch ends with how to load the file without protection: advice that is never passed on.
ADVICE = re.compile(r"weights[ _-]only|safe_globals", re.IGNORECASE)
UNREADABLE_PROTOCOLS = (4, 5)  # by torch with weights_only; torch.save itself writes 2


def read_torch_file(path: Path) -> Any:
    """The content of the file, its tensors mapped into memory.

    Files of torch before 1.6 are no zip archives: those are read whole.

    Raises:
        CheckpointError: a damaged file, or one that holds more than tensors and plain values.
    """
    import torch

    try:
        with warnings.catch_warnings():  # torch guesses about damaged files, we say so below
            warnings.simplefilter("ignore", UserWarning)
            is_zip = zipfile.is_zipfile(path)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # bytes that are wrong bring out nearly every kind
        raise CheckpointError(f"{path}: {_why_not(path, error)}") from None


def _why_not(path: Path, error: Exception) -> str:
    refused = REFUSED_NAME.search(str(error))
    name = printable(refused[1]) if refused else first_code_name(path)
    if name is not None:
        return (
            f"refused: its pickle asks for {name}, so it holds code, which loading could run. "
            "Have it saved again with tensors and plain values only, or as safetensors"
        )
    if not is_torch_file(path):
        return f"is no file of torch.save, or is damaged{_torchs_reason(error)}"
    protocol = pickle_protocol(path)
    if isinstance(error, pickle.UnpicklingError) and protocol in UNREADABLE_PROTOCOLS:
        return (
            f"its pickle is of protocol {protocol}, which torch cannot read without running code. "
            "Have it saved again without pickle_protocol, or as safetensors"
        )
    return f"damaged torch file{_torchs_reason(error)}"


def _torchs_reason(error: Exception) -> str:
    inner = TORCHS_REASON.search(str(error))
    reason = inner[1][:200] if inner else _first_line(error)
    return "" if ADVICE.search(reason) else f": {reason}"


def arrays_of(state: Any, source: str) -> dict[str, Array]:
    """A state dict's tensors as read-only numpy views.

    Raises:
        CheckpointError: not a dict of tensors, or a tensor that is not dense.
    """
    import torch

    if not isinstance(state, Mapping):
        raise CheckpointError(f"{source}: is a {type(state).__name__}, wanted a dict of tensors")
    arrays: dict[str, Array] = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f"{source}: {name!r} is {type(value).__name__}, not a tensor")
        value = value.detach()
        try:
            if value.dtype == torch.bfloat16:
                array = value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
            else:
                array = value.numpy().view()
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(
                f"{source}: tensor {name!r} cannot be read: {_first_line(error)}"
            ) from error
        array.flags.writeable = False
        arrays[str(name)] = array
    return arrays


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

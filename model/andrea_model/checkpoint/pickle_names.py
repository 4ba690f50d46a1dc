"""What a torch file's pickle asks for by name, found without unpickling anything."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from andrea_model.checkpoint.mapped_file import read_start

__all__ = ["first_code_name", "is_torch_file", "pickle_protocol", "printable"]

ZIP_START = b"PK\x03\x04"
# Files of torch before 1.6 start with this number as a pickle of its own, in binary or as text.
MAGIC_NUMBERS = (b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", b"L119547037146038801333356L")
MAGIC_WITHIN = 32
PICKLES_IN_ZIP = ("data.pkl", "constants.pkl")
# Limits of what is looked at, so that no file takes long: the largest models list their tensors in
# some 100 kB and 50,000 opcodes. What lies beyond is refused by torch, only not by name.
MOST_BYTES = 4 << 20
MOST_OPCODES = 300_000
MOST_PICKLES = 8  # before 1.6: the number, a version, the system, the content, the storages' keys
# What torch.save itself asks for, to make tensors again.
OF_TENSORS = re.compile(
    r"collections\.(OrderedDict|defaultdict)"
    r"|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2"
    r"|torch\.(storage\.)?\w*Storage|torch\.nn\.parameter\.Parameter"
    r"|torch\.(Size|Tensor|device|bool|(u?int|float|bfloat|complex)\d+\w*)"
    r"|_codecs\.encode"
)
# Opcodes whose argument is a text that STACK_GLOBAL may take as module or name.
TEXTS = (
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
)
STORES = ("PUT", "BINPUT", "LONG_BINPUT")
FETCHES = ("GET", "BINGET", "LONG_BINGET")


def is_torch_file(path: Path) -> bool:
    """Whether torch.save wrote it, or its pickle asks for code: more than its first two bytes."""
    start = read_start(path, MAGIC_WITHIN)
    is_torch = start.startswith(ZIP_START) or any(number in start for number in MAGIC_NUMBERS)
    return is_torch or first_code_name(path) is not None


def first_code_name(path: Path) -> str | None:
    """The first thing that the pickle would import, other than what tensors need."""
    names = (name for data in _pickles(path) for name in _names(data))
    return next((name for name in names if not OF_TENSORS.fullmatch(name)), None)


def pickle_protocol(path: Path) -> int | None:
    """None where the pickle does not say it: damaged, or of the two oldest protocols."""
    starts = (data[:2] for data in _pickles(path))
    return next((start[1] for start in starts if start[:1] == b"\x80" and len(start) == 2), None)


def _pickles(path: Path) -> Iterator[bytes]:
    if not read_start(path, len(ZIP_START)).startswith(ZIP_START):
        yield read_start(path, MOST_BYTES)
        return
    try:
        with zipfile.ZipFile(path) as archive:
            names = (n for n in archive.namelist() if n.rpartition("/")[2] in PICKLES_IN_ZIP)
            for name in islice(names, MOST_PICKLES):
                with archive.open(name) as member:
                    yield member.read(MOST_BYTES)
    except Exception:  # damaged: nearly every kind of error
        return


def _names(data: bytes) -> Iterator[str]:
    """The imports of the pickles that follow each other in the data, up to a limit or damage."""
    stream = io.BytesIO(data)
    for _ in range(MOST_PICKLES):
        try:
            yield from _names_of_one(stream)
        except Exception:  # damaged: nearly every kind of error
            return


def _names_of_one(stream: io.BytesIO) -> Iterator[str]:
    texts = ["?", "?"]  # the two that were put on the stack last
    memo: dict[int, str] = {}
    argument: Any
    for opcode, argument, _ in islice(pickletools.genops(stream), MOST_OPCODES):
        kind = opcode.name
        if kind in ("GLOBAL", "INST"):
            yield printable(argument.replace(" ", ".", 1))
        elif kind == "STACK_GLOBAL":
            yield printable(".".join(texts))
        elif kind.startswith("EXT"):
            yield f"copyreg extension {argument}"
        elif kind in TEXTS:
            texts = [texts[1], str(argument)]
        elif kind in FETCHES:
            texts = [texts[1], memo.get(argument, "?")]
        elif kind == "MEMOIZE":
            memo[len(memo)] = texts[1]
        elif kind in STORES:
            memo[argument] = texts[1]


def printable(name: str) -> str:
    """Short, and without characters that a terminal would act on."""
    return name[:100].encode("unicode_escape").decode("ascii")

"""The engine folder: `model.engine` and the sidecar that says what it is and where it may run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_export.engine.flavors import FLAVORS
from andrea_export.engine.json_form import misfit
from andrea_export.engine.layer_tensors import LayerTensors
from andrea_export.engine.network_record import LayerRecord
from andrea_export.errors import EngineError
from andrea_model.config import AndreaConfig
from andrea_model.file_hash import file_sha256

if TYPE_CHECKING:
    from andrea_model.tokenizer import Tokenizer

__all__ = ["EngineFolder", "open_engine", "open_trusted_engine"]

ENGINE_FILE, SIDECAR_FILE, NETWORK_FILE = "model.engine", "engine.json", "network.json"
CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer.json"
SCHEMA = 1
NOTHING = type(None)
TENSOR = {"name": str, "dtype": str, "shape": ([(int, str)], NOTHING)}
# Keys that readers rely on, and what each must hold: see `misfit`.
KEYS: dict[str, Any] = {
    "flavor": str,
    "version": str,
    "precision": str,
    "sha256": {ENGINE_FILE: str},
    "graph": {"sha256": {...: str}},
    "compute_capabilities": [str],
    "inputs": [TENSOR],
    "outputs": [TENSOR],
    "profiles": [{...: {"min": [int], "opt": [int], "max": [int]}}],
    "capacity": (int, NOTHING),
    "custom_ops": {...: {...: int}},
    "plugin_library": ({"file": str, "sha256": str}, NOTHING),
    "engine": ({"layers": int, "layer_types": {...: int}}, NOTHING),
    "options": dict,
    "bytes": int,
}


@dataclass(frozen=True)
class EngineFolder:
    """What `build_engine` wrote.

    Attributes:
        path: the folder.
        sidecar: `engine.json`, whole.
        config: of the model; None where the graph came without one.
    """

    path: Path
    sidecar: dict[str, Any]
    config: AndreaConfig | None

    @property
    def engine_path(self) -> Path:
        return self.path / ENGINE_FILE

    @property
    def flavor(self) -> str:
        return str(self.sidecar["flavor"])

    @property
    def precision(self) -> str:
        return str(self.sidecar["precision"])

    @property
    def is_trusted(self) -> bool:
        """Opened without a sidecar, because the user vouches for it."""
        return bool(self.sidecar.get("trusted"))

    @property
    def is_stripped(self) -> bool:
        return bool(self.sidecar["options"].get("strip_weights"))

    @property
    def layer_tensors(self) -> LayerTensors | None:
        """What it shows of its layers; None: nothing."""
        found = self.sidecar.get("layer_tensors")
        return None if found is None else LayerTensors.from_dict(found)

    def check_file(self) -> None:
        """Refuse an engine that is not, to the byte, the one that the sidecar describes.

        Raises:
            EngineError: another size or another hash.
        """
        size, wanted = self.engine_path.stat().st_size, self.sidecar["bytes"]
        if size != wanted:
            raise EngineError(
                f"{self.engine_path} has {size:,} bytes, its sidecar says {wanted:,}: "
                "the file is cut short or another one; build the engine again"
            )
        if file_sha256(self.engine_path) != self.sidecar["sha256"][ENGINE_FILE]:
            raise EngineError(
                f"{self.engine_path} is not the file that its sidecar describes (its sha256 is "
                "another): it is damaged or was replaced; build the engine again"
            )

    def read_network(self) -> list[LayerRecord]:
        """The layers of the network that the engine was built from.

        Raises:
            EngineError: the record is missing, damaged, or not the one that the sidecar names.
        """
        path = self.path / NETWORK_FILE
        wanted = self.sidecar["sha256"].get(NETWORK_FILE)
        try:
            if wanted is not None and file_sha256(path) != wanted:
                raise EngineError(
                    f"{path} is not the file that {SIDECAR_FILE} describes (its sha256 is "
                    "another): it is damaged or was changed; build the engine again"
                )
            record = json.loads(path.read_text("utf-8"))
            return [LayerRecord.from_dict(layer) for layer in record["layers"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{path} cannot be read: {error}") from error

    def open_tokenizer(self) -> Tokenizer | None:
        from andrea_model.tokenizer import load_tokenizer

        path = self.path / TOKENIZER_FILE
        return load_tokenizer(path) if path.is_file() else None


def open_engine(path: Path) -> EngineFolder:
    """Open an engine folder. The engine itself is not read: `check_file` does that.

    Raises:
        EngineError: not an engine folder, or its sidecar is missing, damaged or too new.
    """
    if not path.exists():
        raise EngineError(f"{path} does not exist")
    if not path.is_dir():
        raise EngineError(f"{path} is a file: give the folder that `andrea-export trt` wrote")
    for name in (ENGINE_FILE, SIDECAR_FILE):
        if not (path / name).is_file():
            without = "; `andrea-export generate --trust FLAVOR` runs it without any check"
            raise EngineError(
                f"{path} is not an engine folder: it has no {name}"
                + without * (name == SIDECAR_FILE)
            )
    return EngineFolder(path, _read_sidecar(path / SIDECAR_FILE), _read_config(path))


def open_trusted_engine(path: Path, flavor: str) -> EngineFolder:
    """Open a folder with `model.engine` and no sidecar: nothing about the engine can be checked.

    Args:
        path: the folder; it needs a `config.json` to be run as a model.
        flavor: "tensorrt" or "rtx": what built the engine.

    Raises:
        EngineError: there is no engine, or there is a sidecar that should be heeded.
    """
    if flavor not in FLAVORS:
        raise EngineError(f"flavor {flavor!r} is not one of {', '.join(FLAVORS)}")
    if (path / SIDECAR_FILE).is_file():
        raise EngineError(f"{path} has a sidecar: leave --trust out")
    if not (path / ENGINE_FILE).is_file():
        raise EngineError(f"{path} is not an engine folder: it has no {ENGINE_FILE}")
    sidecar = {"flavor": flavor, "precision": "unknown", "options": {}, "trusted": True}
    return EngineFolder(path, sidecar, _read_config(path))


def _read_sidecar(path: Path) -> dict[str, Any]:
    try:
        sidecar = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read: {error}") from error
    if not isinstance(sidecar, dict):
        raise EngineError(f"{path} holds no JSON object")
    if sidecar.get("schema") != SCHEMA:
        raise EngineError(
            f"{path} has schema {sidecar.get('schema')!r}, this version reads {SCHEMA}: "
            "build the engine again, or use the andrea-export that wrote it"
        )
    if problem := misfit({"engine": None, **sidecar}, KEYS, ""):
        raise EngineError(f"{path} is damaged: {problem}")
    if sidecar.get("layer_tensors") is not None:  # engines built before it existed lack the key
        try:
            LayerTensors.from_dict(sidecar["layer_tensors"])
        except EngineError as error:
            raise EngineError(f"{path} is damaged: {error}") from error
    return sidecar


def _read_config(folder: Path) -> AndreaConfig | None:
    path = folder / CONFIG_FILE
    return AndreaConfig.from_file(path) if path.is_file() else None

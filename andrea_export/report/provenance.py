"""Whether a candidate claims to be the model that it is judged against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from andrea_export.errors import GraphError
from andrea_export.graph.folder import DATA_FILE, MODEL_FILE, GraphFolder
from andrea_model.checkpoint import Checkpoint
from andrea_model.config import AndreaConfig
from andrea_model.file_hash import file_sha256

__all__ = ["check_config", "check_same_model", "provenance_warnings"]


def check_config(checkpoint: Checkpoint, candidate: GraphFolder) -> None:
    """Refuse a candidate whose config is of another model.

    Raises:
        GraphError: with every field that differs, and both values.
    """
    check_same_model(checkpoint.config, candidate.config, candidate.path)


def check_same_model(config: AndreaConfig, other: AndreaConfig, path: Path) -> None:
    """Refuse what lies at `path` if its config is another.

    Raises:
        GraphError: with every field that differs, and both values.
    """
    ours, theirs = config.to_dict(), other.to_dict()
    differences = [
        f"{name} {theirs[name]} (checkpoint: {ours[name]})"
        for name in ours
        if ours[name] != theirs[name]
    ]
    if differences:
        raise GraphError(f"{path} was exported from another model: {', '.join(differences)}")


def provenance_warnings(checkpoint: Checkpoint, candidate: GraphFolder) -> tuple[str, ...]:
    """What the hashes say. None of it stops a judgement: the figures decide, and these explain."""
    warnings = []
    recorded: dict[str, Any] = candidate.record["checkpoint"]
    exported_from, given = recorded.get("sha256"), checkpoint.sha256()
    if exported_from != given:
        warnings.append(
            f"exported from another checkpoint: export.json names sha256 {_short(exported_from)}, "
            f"the given one has {_short(given)}"
        )
    for name in (MODEL_FILE, DATA_FILE):
        digest, seen = candidate.record["sha256"].get(name), file_sha256(candidate.path / name)
        if seen != digest:
            warnings.append(
                f"{name} was changed after the export: sha256 {_short(seen)}, "
                f"export.json has {_short(digest)}"
            )
    return tuple(warnings)


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]

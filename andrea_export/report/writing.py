"""A report as files: `report.json`, `report.md` and `report.html` in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea_export.errors import InputError, require
from andrea_export.report.judgement import SCHEMA
from andrea_export.report.markdown import render_markdown
from andrea_export.text_file import read_json
from andrea_export.whole_folder import whole_folder

__all__ = ["read_report", "require_plots", "write_report"]

JSON_FILE, MARKDOWN_FILE, HTML_FILE = "report.json", "report.md", "report.html"


def require_plots() -> None:
    """Raises MissingDependencyError where the pictures of `report.html` cannot be drawn."""
    for module in ("matplotlib", "jinja2"):
        require(module, extra="report", purpose="drawing a report")


def write_report(report: Mapping[str, Any], target: Path, *, force: bool = False) -> None:
    """Write a report (the values of its JSON), whole or not at all.

    Raises:
        OutputError: the folder exists or cannot be written, see `whole_folder`.
        MissingDependencyError: see `require_plots`.
    """
    require_plots()
    from andrea_export.report.page import render_html

    files = {
        JSON_FILE: json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        MARKDOWN_FILE: render_markdown(report),
        HTML_FILE: render_html(report),
    }
    with whole_folder(target, force=force, record=JSON_FILE) as folder:
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")


def read_report(path: Path) -> dict[str, Any]:
    """A `report.json`, or the one in a folder.

    Raises:
        InputError: it is no such report, or of another version of the schema.
    """
    path = path / JSON_FILE if path.is_dir() else path
    report = read_json(path)
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path} is no report: its schema is {schema}, not {SCHEMA}")
    return dict(report)

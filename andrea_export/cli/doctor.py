"""`andrea-export doctor`: what this machine can do, and what it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from andrea_export.cli.console import print_json, stdout
from andrea_export.cli.options import Json

if TYPE_CHECKING:
    from andrea_export.doctor import Diagnosis

EXIT_LACKING = 1


def doctor(as_json: Json = False) -> None:
    """Say what was found here, what each missing thing would enable, and how to get it."""
    from andrea_export.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        _print(diagnosis)
    raise typer.Exit(0 if diagnosis.can_do_main_job else EXIT_LACKING)


def _print(diagnosis: Diagnosis) -> None:
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for finding in diagnosis.findings:
        text = finding.detail
        if not finding.found:
            text += f"\nwould enable {finding.enables}: {finding.install}"
        mark = Text("yes", "green") if finding.found else Text("no", "red")
        table.add_row(finding.name, mark, text)
    console.print(table)
    console.print()
    jobs = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for job, missing in diagnosis.missing.items():
        lacks = f"lacks {', '.join(missing)}"
        verdict = Text(lacks, "red") if missing else Text("can do", "green")
        jobs.add_row(job, verdict)
    console.print(jobs)

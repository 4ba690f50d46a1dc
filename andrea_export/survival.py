"""A report that survives its candidates: made in a process of its own, and again if that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from andrea_export.black_box import BOX, DEATHS
from andrea_export.child_failure import how_it_ended

__all__ = ["outlive", "runs_candidates"]

COMMAND = (sys.executable, "-m", "andrea_export")
PATIENCE_SECONDS = 3.0


def runs_candidates(arguments: Sequence[str]) -> bool:
    """Whether a command line makes a report, and this process is not the one that is watched."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    return (
        BOX not in os.environ
        and words[:1] == ["report"]
        and len(words) > 1
        and words[1] != "diff"
        and "--help" not in arguments
    )


def outlive(arguments: Sequence[str], command: Sequence[str] = COMMAND) -> int:
    """Run `command` with `arguments` until a process has come to its end.

    One that a signal ends in the hands of a candidate is begun again, and finds in `BlackBox` not
    to go there. One that dies elsewhere, or twice at one place, is not.

    Returns:
        The exit code; 128 + the signal of a process that was not begun again.
    """
    deaths: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        box = Path(folder) / "place"
        while True:
            box.write_text("", "utf-8")
            code = _run([*command, *arguments], {BOX: str(box), DEATHS: json.dumps(deaths)})
            place = box.read_text("utf-8")
            if code >= 0:
                return code
            if not place or place in deaths:
                return 128 - code
            deaths[place] = _told(code)


def _run(command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, env={**os.environ, **environment})
    patience = None
    while True:
        try:
            return process.wait(patience)
        except KeyboardInterrupt:  # at a terminal the child has it too, and ends in its own way
            patience = PATIENCE_SECONDS
        except subprocess.TimeoutExpired:  # it was sent to this process alone
            process.send_signal(signal.SIGINT)
            patience = None
        except BaseException:
            process.terminate()
            process.wait()
            raise


def _told(code: int) -> str:
    how, why = how_it_ended(code)
    return f"its process died ({how.removeprefix('signal ')}){why}"

"""Running a request in a process of its own, and surviving whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any, Self

from andrea_export.child_failure import as_exception, how_it_ended, last_words
from andrea_export.errors import EngineError
from andrea_export.progress import Progress

__all__ = ["Child"]

WORKER = (sys.executable, "-m", "andrea_export.engine.worker")
# A build answers a cancellation between two steps; past this it is ended for it.
GRACE_SECONDS = 10.0


class Child:
    """A process that takes one request and answers with events; a context manager.

    It starts at once, while the request is still being put together. Its standard input stays open
    as long as it may work: it stops when that closes, also if this process dies.

    Args:
        command: of the process; it gets a file descriptor for its events as its last argument.
        environment: changes to this process's environment.
    """

    def __init__(
        self, command: Sequence[str] = WORKER, environment: dict[str, str] | None = None
    ) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [*command, str(writing)],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            # Ctrl-C reaches this process alone, which then asks the child to stop.
            process_group=0,
            env={**os.environ, **(environment or {})},
        )
        os.close(writing)
        self._events = os.fdopen(reading, encoding="utf-8")

    def run(self, request: str, what: str, progress: Progress | None = None) -> dict[str, Any]:
        """Send the request, follow the events, return the last one's values.

        After that the child is only giving its memory back: `close` waits for it.

        Args:
            request: one line.
            what: for messages: what this is about.
            progress: called with (thousandths done, 1000).

        Raises:
            AndreaExportError: as the child says, of the same class.
            OSError: the child could not write.
            EngineError: the child died; its signal and last words.
            KeyboardInterrupt: after the child has been stopped.
        """
        stage = "starting"
        try:
            assert self._process.stdin is not None
            # If it is dead already the events end at once, and its exit says why.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(request.encode() + b"\n")
                self._process.stdin.flush()
            for line in self._events:
                event = json.loads(line)
                kind = event.pop("event")
                if kind == "done":
                    return event  # type: ignore[no-any-return]
                if kind == "error":
                    raise as_exception(EngineError, **event)
                if kind == "stage":
                    stage = event["name"]
                if kind == "progress" and progress is not None:
                    progress(int(event["fraction"] * 1000), 1000)
            raise EngineError(f"{what}: {self._death(stage)}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the child if it still runs, and give back what it held."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
        self._events.close()
        self._output.close()

    def _death(self, stage: str) -> str:
        how, why = how_it_ended(self._process.wait())
        return f"TensorRT's process died while {stage} ({how}){why}{last_words(self._output)}"

"""The process that parses and builds: one request in, events out, nothing else in its memory.

It is a process of its own because a parser can kill the one it runs in, because TensorRT-RTX dies
where our plugin library is loaded, and because a build can then be stopped at any time.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any, TextIO

from andrea_export.child_failure import as_event
from andrea_export.engine.request import BuildRequest
from andrea_export.engine.steps import Build
from andrea_export.errors import AndreaExportError, EngineError

__all__ = ["Worker", "main"]

REPORT_EVERY_SECONDS = 0.1
# Without a driver every build logs this error, failed or not.
NO_DRIVER = "cudaError 35"
# Said at every build of a right graph; they would bury what matters.
NOISE = ("has Int64 binding", "already exists, the output tensors of this new instance")


class Worker:
    """Carries out one request; `events` takes its JSON lines, one object each."""

    def __init__(self, request: BuildRequest, events: TextIO) -> None:
        self.request, self._events = request, events
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self._reported = 0.0
        self._cancelled = False

    def run(self) -> dict[str, Any]:
        """Parse, check, build and write.

        Returns:
            What the sidecar says of network and engine.

        Raises:
            AndreaExportError: the graph, the profiles or the engine are not what they should be.
        """
        build = Build(self.request, self)
        self.send("stage", name="parsing")
        try:
            build.parse()
            build.check()
        except OSError as error:  # from here on one means that the output cannot be written
            raise EngineError(f"{self.request.onnx} cannot be read: {error}") from error
        self.send("stage", name="building")
        build.build()
        return build.facts()

    def send(self, event: str, **values: Any) -> None:
        print(json.dumps({"event": event, **values}), file=self._events, flush=True)

    def log(self, severity: str, text: str) -> None:
        text = " ".join(text.split())
        if severity == "error":
            if NO_DRIVER not in text or not self.errors:
                self.errors.append(text)
        elif not any(noise in text for noise in NOISE):
            self.warnings.append(text)

    def report(self, fraction: float, phase: str) -> None:
        now = time.monotonic()
        if now - self._reported > REPORT_EVERY_SECONDS:
            self._reported = now
            self.send("progress", fraction=fraction, phase=phase)

    def is_cancelled(self) -> bool:
        """Our parent closes our standard input when it wants us to stop, or when it is gone."""
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        self._cancelled = self._cancelled or bool(ready)
        return self._cancelled


def main() -> int:
    """Read a request from standard input; write events to the file descriptor that is named."""
    events = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    worker = Worker(BuildRequest.from_json(sys.stdin.readline()), events)
    try:
        worker.send("done", **worker.run())
    except (AndreaExportError, OSError) as error:
        worker.send("error", **as_event(error))
        return 1
    except UnicodeDecodeError as error:  # from TensorRT's bindings, of any name in the graph
        message = f"{worker.request.onnx}: the file is damaged: a name in it is no text ({error})"
        worker.send("error", **as_event(EngineError(message)))
        return 1
    return 0


if __name__ == "__main__":
    # All is written. Taking TensorRT's objects apart first would only cost time.
    os._exit(main())

"""A process that answers requests, one line of JSON each way, and the other end of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Any

from andrea_export.child_failure import as_event, as_exception, how_it_ended, last_words
from andrea_export.errors import AndreaExportError, BackendError

__all__ = ["Child", "serve"]

GRACE_SECONDS = 5.0

Answer = dict[str, Any]


def serve(handlers: Mapping[str, Callable[..., Answer]]) -> None:
    """Answer requests {"ask": name, ...} from standard input until it closes.

    Errors of the toolkit go back by class and message; others end the process.
    """
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Ctrl-C is the parent's to handle: it closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request.pop("ask")](**request)
        except AndreaExportError as error:
            answer = {"error": as_event(error)}
        print(json.dumps(answer), file=answers, flush=True)


class Child:
    """The parent's end.

    Args:
        module: what to run with `python -m`; it calls `serve`.
        name: for messages.
    """

    def __init__(self, module: str, name: str) -> None:
        self.name = name
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
        )

    def ask(self, request: str, **arguments: Any) -> Answer:
        """Raises:
        AndreaExportError: as the child says, of the same class.
        BackendError: the child died; its signal and last words.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # If it is dead already there is no answer, and its exit says why.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"ask": request, **arguments}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise BackendError(f"{self.name}: {self._death()}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise as_exception(BackendError, **answer["error"])
        return answer

    def _death(self) -> str:
        how, why = how_it_ended(self._process.wait())
        return f"its process died ({how}{why}){last_words(self._output)}"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._output.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The process that puts weights back into a stripped engine. Needs the engine's GPU."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from andrea_export.child_failure import as_event
from andrea_export.engine.direct_write import write_to_disk
from andrea_export.errors import AndreaExportError, EngineError

__all__ = ["main", "refit"]


def refit(flavor: str, engine: Path, onnx: Path, output: Path, library: str | None) -> str:
    """Write `engine` with the weights of `onnx` to `output`, and return its sha256.

    Raises:
        EngineError: TensorRT cannot open the engine, or the weights do not fit it.
    """
    from andrea_export.engine.binding import load_plugins, logger, trt, use_flavor

    errors: list[str] = []

    def log(severity: str, text: str) -> None:
        if severity == "error":
            errors.append(" ".join(text.split()))

    use_flavor(flavor)
    log_to = logger(log)
    runtime = trt.Runtime(log_to)
    if library is not None:
        load_plugins(library, errors)
    opened: Any = runtime.deserialize_cuda_engine(engine.read_bytes())
    if opened is None:
        raise EngineError(f"{engine}: TensorRT cannot open it: {' / '.join(errors[-2:])}")
    refitter = trt.Refitter(opened, log_to)
    parser = trt.OnnxParserRefitter(refitter, log_to)
    if not parser.refit_from_file(str(onnx)) or not refitter.refit_cuda_engine():
        missing = len(refitter.get_missing_weights())
        reason = " / ".join(errors[-2:]) or "it gives no reason"
        raise EngineError(
            f"{onnx}: its weights do not fit the engine ({missing} missing): {reason}"
        )
    config = opened.create_serialization_config()
    # A stripped engine would leave its weights out again.
    config.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    plan = opened.serialize_with_config(config)
    write_to_disk(output, plan)
    return hashlib.sha256(plan).hexdigest()


def main() -> int:
    """Read a request from standard input; write events to the file descriptor that is named."""
    events = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    request = json.loads(sys.stdin.readline())
    try:
        sha256 = refit(
            request["flavor"],
            Path(request["engine"]),
            Path(request["onnx"]),
            Path(request["output"]),
            request["library"],
        )
    except (AndreaExportError, OSError) as error:
        print(json.dumps({"event": "error", **as_event(error)}), file=events, flush=True)
        return 1
    print(json.dumps({"event": "done", "sha256": sha256}), file=events, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

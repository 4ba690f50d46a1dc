"""One runtime in a process of its own, driven over a pipe by decode_peer.py.

    python benchmarks/decode_contestants.py NAME MODEL_FOLDER THREADS

A line of JSON in, {"batch": B, "context": C, "tokens": N}: a prompt of C random tokens goes in,
then N greedy steps. A line of JSON out: `first_seconds` of the prompt, `step_seconds` of each step,
`runtime_seconds` of the same steps inside ONNX Runtime's own run (null where it is not what runs),
the greedy `ids` [B, 1 + N] and `peak_rss_mb` (10^6 bytes, of this process since its start).

Only the runtime that was asked for is imported: memory and threads are its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

VOCAB_SIZE = 8449


class Contestant(ABC):
    """Greedy decoding the way its own users do it, without anything that they could leave out."""

    @abstractmethod
    def first(self, ids: np.ndarray) -> np.ndarray:
        """Start over with prompts [B, T]; the likeliest next tokens [B]."""

    @abstractmethod
    def next(self, ids: np.ndarray) -> np.ndarray:
        """One more token for each row [B]; the likeliest after it [B]."""


class Ours(Contestant):
    """The session of an exported folder, as `generate` uses it."""

    def __init__(self, folder: Path, threads: int) -> None:
        from andrea_export.graph.folder import open_graph
        from andrea_export.session.onnx_session import CachedOnnxSession

        self.session = CachedOnnxSession(open_graph(folder), threads=threads)

    def first(self, ids: np.ndarray) -> np.ndarray:
        self.session.prefill(ids)
        return self._choice()

    def next(self, ids: np.ndarray) -> np.ndarray:
        self.session.step(ids)
        return self._choice()

    def _choice(self) -> np.ndarray:
        return self.session.likeliest(VOCAB_SIZE)


class Optimum(Contestant):
    """optimum-onnx: ONNX Runtime with IO binding, the model called directly (no `generate`)."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime
        import torch
        from optimum.onnxruntime import ORTModelForCausalLM

        torch.set_num_threads(threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.torch = torch
        self.model = ORTModelForCausalLM.from_pretrained(
            folder, session_options=options, use_io_binding=True
        )

    def first(self, ids: np.ndarray) -> np.ndarray:
        self.past: Any = None
        self.length = 0
        return self._run(ids)

    def next(self, ids: np.ndarray) -> np.ndarray:
        return self._run(ids[:, None])

    def _run(self, ids: np.ndarray) -> np.ndarray:
        rows, new = ids.shape
        self.length += new
        with self.torch.inference_mode():
            output = self.model(
                input_ids=self.torch.from_numpy(ids),
                attention_mask=self.torch.ones((rows, self.length), dtype=self.torch.int64),
                past_key_values=self.past,
                use_cache=True,
            )
            self.past = output.past_key_values
            return output.logits[:, -1].argmax(-1).numpy()


class Transformers(Contestant):
    """transformers on torch, eager, with its dynamic cache."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from transformers import GPT2LMHeadModel

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()

    def first(self, ids: np.ndarray) -> np.ndarray:
        self.past: Any = None
        return self._run(ids)

    def next(self, ids: np.ndarray) -> np.ndarray:
        return self._run(ids[:, None])

    def _run(self, ids: np.ndarray) -> np.ndarray:
        with self.torch.inference_mode():
            output = self.model(
                input_ids=self.torch.from_numpy(ids),
                past_key_values=self.past,
                use_cache=True,
                logits_to_keep=1,
            )
            self.past = output.past_key_values
            return output.logits[:, -1].argmax(-1).numpy()


CONTESTANTS = {"ours": Ours, "optimum": Optimum, "transformers": Transformers}


class RuntimeClock:
    """Seconds spent inside ONNX Runtime's own run, where it is loaded."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.found = "onnxruntime" in sys.modules
        if self.found:
            session = sys.modules["onnxruntime"].InferenceSession
            session.run_with_iobinding = self._timed(session.run_with_iobinding)

    def _timed(self, run: Any) -> Any:
        def timed(*arguments: Any, **options: Any) -> None:
            started = time.perf_counter()
            run(*arguments, **options)
            self.seconds += time.perf_counter() - started

        return timed


def play(
    contestant: Contestant, clock: RuntimeClock, batch: int, context: int, tokens: int
) -> dict[str, Any]:
    prompt = np.random.default_rng(context).integers(0, VOCAB_SIZE, (batch, context))
    started = time.perf_counter()
    ids = [contestant.first(prompt)]
    first_seconds = time.perf_counter() - started
    step_seconds, runtime_seconds = [], []
    for _ in range(tokens):
        started, inside = time.perf_counter(), clock.seconds
        ids.append(contestant.next(ids[-1]))
        step_seconds.append(time.perf_counter() - started)
        runtime_seconds.append(clock.seconds - inside)
    return {
        "first_seconds": first_seconds,
        "step_seconds": step_seconds,
        "runtime_seconds": runtime_seconds if clock.found else None,
        "ids": np.stack(ids, 1).tolist(),
        "peak_rss_mb": peak_rss_mb(),
    }


def peak_rss_mb() -> float:
    """The kernel's high-water mark, which unlike getrusage's does not begin with the parent's."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def main() -> None:
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant = CONTESTANTS[name](folder, threads)
    clock = RuntimeClock()
    for line in sys.stdin:
        print(json.dumps(play(contestant, clock, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()

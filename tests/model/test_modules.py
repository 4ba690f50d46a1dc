"""The reference model against its formulas, written out in numpy float64."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from andrea_model.checkpoint import load_model, random_checkpoint
from andrea_model.config import AndreaConfig
from andrea_model.modules import Andrea, Norm
from andrea_model.parameters import parameter_shapes

Array = np.ndarray[Any, np.dtype[np.float64]]
Weights = Mapping[str, Array]

TINY = AndreaConfig(vocab_size=13, context_length=10, d_model=8, n_layer=2, n_head=2)
IDS = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])

ERF = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    # GELU(x) = x·Φ(x): with tanh as the lesson approximates Φ, and exact.
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
}


def norm(x: Array, w: Weights, name: str, c: AndreaConfig) -> Array:
    """gamma·(x − mean)/sqrt(var + eps) + beta; RMSNorm: gamma·x/sqrt(mean(x²) + eps)."""
    if c.norm == "layernorm":
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + c.norm_eps)
    return y * w.get(f"{name}.weight", 1.0) + w.get(f"{name}.bias", 0.0)


def linear(x: Array, w: Weights, name: str) -> Array:
    """x·W + b."""
    return x @ w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)


def attention(x: Array, w: Weights, name: str, c: AndreaConfig) -> Array:
    """softmax(q·kᵀ/sqrt(head_dim), causal)·v for one head after the other, then o."""
    q, k, v = (linear(x, w, f"{name}.{letter}") for letter in "qkv")
    future = np.triu(np.full((x.shape[1], x.shape[1]), -np.inf), k=1)
    heads = []
    for h in range(c.n_head):
        one = slice(h * c.head_dim, (h + 1) * c.head_dim)
        scores = q[..., one] @ k[..., one].swapaxes(-1, -2) / math.sqrt(c.head_dim) + future
        p = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(p / p.sum(-1, keepdims=True) @ v[..., one])
    return linear(np.concatenate(heads, -1), w, f"{name}.o")


def mlp(x: Array, w: Weights, name: str, c: AndreaConfig) -> Array:
    h = linear(x, w, f"{name}.fc1")
    if c.activation == "swiglu":  # silu(gate)·value
        gate, value = np.split(h, 2, axis=-1)
        return linear(gate / (1 + np.exp(-gate)) * value, w, f"{name}.fc2")
    return linear(ACTIVATIONS[c.activation](h), w, f"{name}.fc2")


def logits_by_formula(c: AndreaConfig, w: Weights, ids: np.ndarray[Any, Any]) -> Array:
    x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]
    for i in range(c.n_layer):
        b = f"blocks.{i}"
        if c.norm_position == "pre":
            x = x + attention(norm(x, w, f"{b}.norm1", c), w, f"{b}.attn", c)
            x = x + mlp(norm(x, w, f"{b}.norm2", c), w, f"{b}.mlp", c)
        else:
            x = norm(x + attention(x, w, f"{b}.attn", c), w, f"{b}.norm1", c)
            x = norm(x + mlp(x, w, f"{b}.mlp", c), w, f"{b}.norm2", c)
    x = norm(x, w, "norm_f", c)
    return x @ w["wte.weight" if c.tied_head else "head.weight"].T


def both(
    c: AndreaConfig, dtype: torch.dtype = torch.float64, scale: float = 10.0
) -> tuple[torch.Tensor, Array]:
    """Logits of the model and of the formulas, of the same weights.

    Matrices of a fresh model are so small that its nonlinearities stay in their linear part: they
    are made larger here.
    """
    drawn = random_checkpoint("andrea-nano", 7, config=c).tensors
    w = {name: drawn[name] * (scale if drawn[name].ndim == 2 else 1.0) for name in drawn}
    model = Andrea(c).double()
    model.load_state_dict({name: torch.from_numpy(w[name].astype(np.float64)) for name in w})
    model = model.to(dtype)
    rounded = {k: v.double().numpy() for k, v in model.state_dict().items()}
    with torch.inference_mode():
        return model(torch.from_numpy(IDS)), logits_by_formula(c, rounded, IDS)


def relative_error(seen: torch.Tensor, wanted: Array) -> float:
    return float(np.abs(seen.double().numpy() - wanted).max() / np.abs(wanted).max())


OPTIONS: list[dict[str, Any]] = [
    *({"norm_position": p, "norm": n, "norm_affine": a}
      for p in ("pre", "post")
      for n in ("layernorm", "rmsnorm")
      for a in ("scale_bias", "scale", "none")),
    *({"activation": a} for a in ("gelu_tanh", "gelu_erf", "relu", "swiglu")),
    *({"bias": b, "tied_head": t} for b in ("mlp", "none", "all") for t in (True, False)),
    {"activation": "swiglu", "bias": "all", "norm_position": "post", "norm": "rmsnorm"},
    {"mlp_ratio": 2.5},
    {"norm_eps": 0.1},
    {"n_head": 1},
    {"n_head": 8},
]  # fmt: skip


@pytest.mark.parametrize("changes", OPTIONS, ids=lambda c: ",".join(map(str, c.values())))
def test_model_when_any_option_is_set_then_float64_logits_are_the_formulas(
    changes: dict[str, Any],
) -> None:
    seen, wanted = both(TINY.replace(**changes))
    assert seen.dtype == torch.float64
    assert seen.shape == (2, 6, 13)
    assert relative_error(seen, wanted) < 1e-10


# The unit roundoff of each type, times some forty roundings in a row.
TOLERANCE = {torch.float32: 6e-8 * 40, torch.float16: 4.9e-4 * 40, torch.bfloat16: 3.9e-3 * 40}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("changes", [{}, OPTIONS[-5], {"norm": "rmsnorm"}], ids=str)
def test_model_when_run_in_a_narrower_type_then_it_is_within_its_rounding(
    changes: dict[str, Any], dtype: torch.dtype
) -> None:
    seen, wanted = both(TINY.replace(**changes), dtype)
    assert seen.dtype == dtype
    assert relative_error(seen, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("position", ["pre", "post"])
def test_model_when_a_later_token_changes_then_earlier_logits_stay(position: str) -> None:
    c = TINY.replace(norm_position=position)
    model = load_model(random_checkpoint("andrea-nano", 3, config=c), torch.float64)
    changed = IDS.copy()
    changed[:, 4] = 0
    first, second = (model(torch.from_numpy(ids)).numpy() for ids in (IDS, changed))
    np.testing.assert_allclose(first[:, :4], second[:, :4], rtol=0, atol=1e-12)
    assert np.abs(first[:, 4:] - second[:, 4:]).min(axis=(0, 2)).max() > 1e-6


@pytest.mark.parametrize("changes", OPTIONS, ids=lambda c: ",".join(map(str, c.values())))
def test_state_dict_when_listed_then_it_is_parameter_shapes(changes: dict[str, Any]) -> None:
    c = TINY.replace(**changes)
    seen = {name: tuple(tensor.shape) for name, tensor in Andrea(c).state_dict().items()}
    assert list(seen.items()) == list(parameter_shapes(c).items())


def test_reset_parameters_when_drawn_then_it_is_gpt2s_initialisation() -> None:
    c = AndreaConfig(vocab_size=500, context_length=64, d_model=64, n_layer=8, n_head=2)
    model = Andrea(c)
    model.reset_parameters(torch.Generator().manual_seed(0))
    state = model.state_dict()
    assert state["wte.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    # Residual projections smaller by sqrt(2·8) = 4 (Radford et al. 2019, section 2.3).
    assert state["blocks.0.attn.o.weight"].std().item() == pytest.approx(0.005, rel=0.05)
    assert state["blocks.7.mlp.fc2.weight"].std().item() == pytest.approx(0.005, rel=0.05)
    assert torch.all(state["norm_f.weight"] == 1)
    assert torch.all(state["blocks.3.norm1.bias"] == 0)


def test_andrea_120m_when_run_in_float64_then_it_is_the_lesson() -> None:
    """x + Attention(LayerNorm(x)), x + MLP(LayerNorm(x)), h = x·W_1 + b_1, logits = x·wteᵀ.

    The weights are the lesson's in every size; the formulas above read the same memory.
    """
    checkpoint = random_checkpoint("andrea-120m", 1)
    c = checkpoint.config
    assert (c.d_model, c.n_layer, c.n_head, c.mlp_dim, c.head_dim) == (768, 12, 12, 3072, 64)
    assert (c.vocab_size, c.context_length) == (8449, 1024)
    model = load_model(checkpoint, torch.float64)
    assert sum(p.numel() for p in model.parameters()) == 92_294_400
    assert sum(isinstance(module, Norm) for module in model.modules()) == 25
    weights = {name: p.numpy() for name, p in model.state_dict().items()}
    assert "head.weight" not in weights
    assert {name.rsplit(".", 1)[0] for name in weights if name.endswith("bias")} == {
        *(f"blocks.{i}.{m}" for i in range(12) for m in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")),
        "norm_f",
    }
    ids = np.array([[256, 8448, 0, 4095]])
    seen, wanted = model(torch.from_numpy(ids)), logits_by_formula(c, weights, ids)
    assert relative_error(seen, wanted) < 1e-12

"""The model's formulas written out in numpy float64: an opinion independent of torch and ONNX.

Only `numpy` and `math` are used, and nothing of the packages under test.
"""

import math

import numpy as np


def logits(config, tensors, ids):
    """Logits [B, T, V] of ids [B, T]; `tensors` by name, `config` any object with the fields."""
    w = {name: np.asarray(value).astype(np.float64) for name, value in tensors.items()}
    x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]
    for i in range(config.n_layer):
        block = f"blocks.{i}"
        if config.norm_position == "pre":
            x = x + _attention(config, w, f"{block}.attn", _norm(config, w, f"{block}.norm1", x))
            x = x + _mlp(config, w, f"{block}.mlp", _norm(config, w, f"{block}.norm2", x))
        else:
            x = _norm(config, w, f"{block}.norm1", x + _attention(config, w, f"{block}.attn", x))
            x = _norm(config, w, f"{block}.norm2", x + _mlp(config, w, f"{block}.mlp", x))
    x = _norm(config, w, "norm_f", x)
    return x @ w["wte.weight" if config.tied_head else "head.weight"].T


def _linear(w, name, x):
    y = x @ w[f"{name}.weight"]
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def _norm(config, w, name, x):
    if config.norm == "layernorm":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
    return x * w.get(f"{name}.weight", 1.0) + w.get(f"{name}.bias", 0.0)


def _attention(config, w, name, x):
    batch, length, d = x.shape
    head_dim = d // config.n_head

    def heads(leaf):
        y = _linear(w, f"{name}.{leaf}", x)
        return y.reshape(batch, length, config.n_head, head_dim).transpose(0, 2, 1, 3)

    scores = heads("q") @ heads("k").transpose(0, 1, 3, 2) / math.sqrt(head_dim)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs = probs / probs.sum(-1, keepdims=True)
    y = (probs @ heads("v")).transpose(0, 2, 1, 3).reshape(batch, length, d)
    return _linear(w, f"{name}.o", y)


def _mlp(config, w, name, x):
    h = _linear(w, f"{name}.fc1", x)
    if config.activation == "swiglu":
        gate, value = np.split(h, 2, axis=-1)
        h = gate / (1 + np.exp(-gate)) * value
    elif config.activation == "relu":
        h = np.maximum(h, 0)
    elif config.activation == "gelu_tanh":
        h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    else:
        h = 0.5 * h * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
    return _linear(w, f"{name}.fc2", h)

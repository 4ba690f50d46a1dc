"""The reference model in PyTorch: the definition that every exported artefact is judged against.

Shapes: B batch, T sequence, d d_model, h n_head, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from andrea_model.config import AndreaConfig
from andrea_model.kv_cache import KVCache, LayerCache

__all__ = ["MLP", "Andrea", "Attention", "Block", "Linear", "Norm"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "relu": F.relu,
}


class Linear(nn.Module):
    """x @ weight + bias, with the weight [in, out] as the checkpoints store it."""

    def __init__(self, n_in: int, n_out: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last axis; torch keeps the statistics in float32 or wider."""

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        d = config.d_model
        self.eps, self.kind = config.norm_eps, config.norm
        self.weight = nn.Parameter(torch.empty(d)) if config.norm_affine != "none" else None
        self.bias = nn.Parameter(torch.empty(d)) if config.norm_affine == "scale_bias" else None

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape[-1:]
        if self.kind == "layernorm":
            return F.layer_norm(x, shape, self.weight, self.bias, self.eps)
        y = F.rms_norm(x, shape, self.weight, self.eps)
        return y if self.bias is None else y + self.bias


class Attention(nn.Module):
    """Causal multi-head self-attention, scores scaled by 1/sqrt(head_dim)."""

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        d, bias = config.d_model, config.bias == "all"
        self.n_head = config.n_head
        self.q, self.k, self.v, self.o = (Linear(d, d, bias) for _ in range(4))

    def forward(self, x: Tensor, layer: LayerCache | None = None) -> Tensor:
        B, T, d = x.shape
        q, k, v = (
            proj(x).view(B, T, self.n_head, -1).transpose(1, 2)  # (B, h, T, head_dim)
            for proj in (self.q, self.k, self.v)
        )
        if layer is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, *layer.write(k, v), attn_mask=layer.mask)
        return self.o(y.transpose(1, 2).reshape(B, T, d))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """fc2(activation(fc1(x))); swiglu: fc2(silu(gate) * value), fc1 giving gate and value."""

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        bias = config.bias in ("mlp", "all")
        self.gated = config.activation == "swiglu"
        self.activation = F.silu if self.gated else ACTIVATIONS[config.activation]
        self.fc1 = Linear(config.d_model, config.mlp_dim * (2 if self.gated else 1), bias)
        self.fc2 = Linear(config.mlp_dim, config.d_model, bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)  # (B, T, mlp_dim), twice as wide for swiglu
        if self.gated:
            gate, value = h.chunk(2, dim=-1)
            return self.fc2(self.activation(gate) * value)  # type: ignore[no-any-return]
        return self.fc2(self.activation(h))  # type: ignore[no-any-return]


class Block(nn.Module):
    """pre: x + f(norm(x)). post: norm(x + f(x)). First attention, then the MLP."""

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        self.pre = config.norm_position == "pre"
        self.norm1, self.attn = Norm(config), Attention(config)
        self.norm2, self.mlp = Norm(config), MLP(config)

    def forward(self, x: Tensor, layer: LayerCache | None = None) -> Tensor:
        if self.pre:
            x = x + self.attn(self.norm1(x), layer)
            return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]
        x = self.norm1(x + self.attn(x, layer))
        return self.norm2(x + self.mlp(x))  # type: ignore[no-any-return]


class Andrea(nn.Module):
    """Token and position embedding, n_layer blocks, final norm, output head.

    The state dict's names, shapes and order are those of `parameter_shapes`.
    """

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.d_model)
        self.wpe = nn.Embedding(config.context_length, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm_f = Norm(config)
        self.head = (
            None
            if config.tied_head
            else nn.Linear(config.d_model, config.vocab_size, bias=False)  # weight [V, d]
        )
        self.reset_parameters()

    def forward(
        self,
        input_ids: Tensor,
        cache: KVCache | None = None,
        past_length: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V], in the model's dtype, of token ids [B, T] (int64).

        With a cache, row b's tokens follow the past_length[b] (int64 [B]) that the cache holds of
        it, and are written into it; past_length[b] + T must not exceed its capacity.

        Ids and T are the caller's to check (`AndreaConfig.check_ids`): a look at the values here
        would stop every graph capture.
        """
        T = input_ids.shape[1]
        positions = torch.arange(T, device=input_ids.device)
        layers: list[LayerCache] | list[None] = [None] * len(self.blocks)
        if cache is not None:
            assert past_length is not None, "a cache needs past_length"
            positions = past_length[:, None] + positions  # (B, T)
            layers = cache.layers(positions)
            positions = positions.clamp(max=self.config.context_length - 1)
        x = self.wte(input_ids) + self.wpe(positions)  # (B, T, d)
        for block, layer in zip(self.blocks, layers, strict=True):
            x = block(x, layer)
        x = self.norm_f(x)
        head = self.wte if self.head is None else self.head
        return F.linear(x, head.weight)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """GPT-2's initialisation: N(0, 0.02), what ends a sublayer smaller by sqrt(2·n_layer)."""
        residual_std = 0.02 / (2 * self.config.n_layer) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                is_gamma = "norm" in name and name.endswith("weight")
                parameter.fill_(1.0 if is_gamma else 0.0)
            else:
                ends_sublayer = name.endswith(("attn.o.weight", "mlp.fc2.weight"))
                std = residual_std if ends_sublayer else 0.02
                parameter.normal_(0.0, std, generator=generator)

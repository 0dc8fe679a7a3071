"""The attention of a drafter: blocks look at context features and at themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflash_run.model.compiled import compiled
from dflash_run.model.mask import Mask
from dflash_run.model.shape import DrafterShape


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A projection without bias or values: the drafter gives all its weights their values itself."""
    return nn.Linear(inputs, outputs, bias=False, device="meta")


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension, computed in float32, returned in x's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[…, size] → […, size]."""
        normed = functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self._eps)
        return normed.to(x.dtype)


class Rotary:
    """Cosines and sines of positions, and the rotation that they make (halves paired, as Llama and Qwen do)."""

    def __init__(self, positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> None:
        """positions: int64 [b, T]."""
        exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
        angles = positions[:, None, :, None].float() * theta**-exponents  # [b, 1, T, d/2]; no matmul: autocast
        self._cos = torch.cat([angles.cos()] * 2, -1).to(dtype)  # [b, 1, T, d]
        self._sin = torch.cat([angles.sin()] * 2, -1).to(dtype)

    def turned(self, x: Tensor) -> Tensor:
        """x [b, heads, t, d] at the last t of the positions."""
        start = self._cos.shape[2] - x.shape[2]
        cos, sin = self._cos[:, :, start:], self._sin[:, :, start:]
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    """Grouped-query attention of x [b, Q, H] over [context; x], with a norm on each head of q and k."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self._head_dim = shape.head_dim
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = linear(shape.hidden_size, queries)
        self.k_proj = linear(shape.hidden_size, keys)
        self.v_proj = linear(shape.hidden_size, keys)
        self.o_proj = linear(queries, shape.hidden_size)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, context: Tensor, rotary: Rotary, mask: Mask) -> Tensor:
        """x [b, Q, H] (normed), context [b, S, H] → [b, Q, H]; rotary holds the S + Q positions of the keys."""
        q = self.q_norm(self._heads(self.q_proj(x)))  # [b, heads, Q, d]
        # Projecting the two apart and joining the results copies less than joining the inputs.
        k = self.k_norm(self._heads(torch.cat([self.k_proj(context), self.k_proj(x)], 1)))  # [b, kv_heads, S + Q, d]
        v = self._heads(torch.cat([self.v_proj(context), self.v_proj(x)], 1))
        seen = attend(rotary.turned(q), rotary.turned(k), v, mask)  # [b, heads, Q, d]
        return cast(Tensor, self.o_proj(seen.transpose(1, 2).flatten(2)))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self._head_dim).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Attention of q [b, heads, Q, d] over k, v [b, kv_heads, T, d]; flex with a BlockMask, SDPA with a dense one.

    Not for CPU training with a BlockMask: flex has no backward pass there.
    """
    if isinstance(mask, BlockMask):
        flex = compiled(flex_attention) if q.is_cuda else cast(Callable[..., Any], flex_attention)
        return cast(Tensor, flex(q, k, v, block_mask=mask, enable_gqa=True))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

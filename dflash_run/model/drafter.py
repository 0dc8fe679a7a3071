"""The drafter: Qwen3 layers that fill blocks of masks from the hidden states of a target."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash_run.model.attention import Attention, RMSNorm, Rotary, linear
from dflash_run.model.mask import Mask, Masks
from dflash_run.model.shape import DrafterShape


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[b, Q, H] → [b, Q, H]."""
        product: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return product


class Layer(nn.Module):
    """A Qwen3 layer whose keys and values include the context, which does not pass its input norm."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, z: Tensor, context: Tensor, rotary: Rotary, mask: Mask) -> Tensor:
        """z [b, Q, H], context [b, S, H] → [b, Q, H]."""
        z = z + self.self_attn(self.input_layernorm(z), context, rotary, mask)
        z = z + self.mlp(self.post_attention_layernorm(z))
        return z


class Drafter(nn.Module):
    """A DFlash drafter; its parameters carry the names of the exported file (layout A) and are float32.

    Embeddings and head are the target's, frozen, and not part of it. For another compute type run it under autocast.
    """

    def __init__(self, shape: DrafterShape, *, seed: int, device: torch.device | str = "cpu") -> None:
        """New weights, the same wherever and however often they are drawn; no global random state is touched.

        On the device `meta` there are names and shapes only.
        """
        super().__init__()
        self.shape = shape
        self.fc = linear(len(shape.taps) * shape.hidden_size, shape.hidden_size)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.to(torch.float32).to_empty(device=device)
        if torch.device(device).type != "meta":
            self.initialise(seed)

    def forward(self, features: Tensor, embeddings: Tensor, positions: Tensor, masks: Masks) -> Tensor:
        """Hidden states of the blocks' slots, [b, A·B, H], normed and ready for the target's head.

        features [b, S, K·H]: the target's taps, concatenated in their order; embeddings [b, A·B, H] of the blocks'
        tokens; positions int64 [b, A·B]; masks as `masks_for` makes them. The context's positions are 0 … S - 1.
        """
        context = self.hidden_norm(self.fc(features))  # [b, S, H], once for all layers
        before = torch.arange(context.shape[1], device=positions.device).expand(len(positions), -1)
        both = torch.cat([before, positions], 1)  # [b, S + A·B]
        rotary = Rotary(both, self.shape.head_dim, self.shape.rope_theta, context.dtype)
        z = embeddings.to(context.dtype)  # [b, A·B, H]
        for layer, kind in zip(self.layers, self.shape.layer_types, strict=True):
            z = layer(z, context, rotary, masks[kind])
        normed: Tensor = self.norm(z)
        return normed

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Norms 1, matrices normal; drawn on the host, whose generator gives the same on every machine."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                drawn = torch.empty(parameter.shape, dtype=torch.float32)
                parameter.copy_(drawn.normal_(0.0, self.shape.initializer_range, generator=generator))

"""What a query of a block may see: one rule, for sparse attention on GPUs and dense attention elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Sample, head, query, key → whether the query sees the key."""


def mask_mod(
    anchors: Tensor,
    context: int,
    block_size: int,
    *,
    documents: Tensor | None = None,
    window: int | None = None,
) -> MaskMod:
    """Whether query q of sample b sees key kv: keys are S context features, then the A·B slots of the blocks.

    A slot of the block at a sees the context t < a of a's document (and, in a window, t > position - window), and
    all of its own block. Padding needs no rule of its own: it lies behind every anchor. anchors is int64 [b, A],
    each below `context` = S; documents int64 [b, S].
    """
    span = anchors.shape[1] * block_size
    # Key numbers are looked up, not computed from S: a captured integer would compile anew for every S.
    own = torch.arange(-context, span, device=anchors.device).div(block_size, rounding_mode="floor")  # [S + A·B]
    owners = papers = None
    if documents is not None:
        owners = documents.gather(1, anchors)  # [b, A]
        papers = torch.nn.functional.pad(documents, (0, span))  # [b, S + A·B]

    def sees(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        block = q // block_size
        anchor = anchors[b, block]
        before = kv < anchor  # implies kv < S
        if owners is not None and papers is not None:
            before = before & (papers[b, kv] == owners[b, block])
        if window is not None:
            before = before & (kv > anchor + q % block_size - window)
        return before | (own[kv] == block)

    return sees

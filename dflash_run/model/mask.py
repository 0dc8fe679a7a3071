"""What a query of a block may see, once as a rule, for sparse attention on GPUs and dense attention elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from dflash_run.model.compiled import compiled
from dflash_run.model.shape import FULL, SLIDING, DrafterShape

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Mask = BlockMask | Tensor
Masks = dict[str, Mask]
"""A mask for each type of layer that the drafter has."""


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


def masks_for(
    shape: DrafterShape, anchors: Tensor, context: int, documents: Tensor | None = None, *, sparse: bool
) -> Masks:
    """The masks of a drafter's layers for anchors int64 [b, A] and S = `context`; documents int64 [b, S] or None.

    sparse: BlockMask for flex_attention, compiled; else bool [b, 1, A·B, S + A·B], True where a query sees a key.
    """
    masks: Masks = {}
    for kind in sorted(set(shape.layer_types)):
        window = {FULL: None, SLIDING: shape.sliding_window}[kind]
        rule = mask_mod(anchors, context, shape.block_size, documents=documents, window=window)
        queries = anchors.shape[1] * shape.block_size
        make = _sparse if sparse else _dense
        masks[kind] = make(rule, len(anchors), queries, context + queries, anchors.device)
    return masks


def _dense(rule: MaskMod, samples: int, queries: int, keys: int, device: torch.device) -> Tensor:
    return create_mask(rule, samples, 1, queries, keys, device=str(device))


def _sparse(rule: MaskMod, samples: int, queries: int, keys: int, device: torch.device) -> BlockMask:
    # Compiled, the rule is evaluated tile by tile; otherwise the whole matrix of booleans comes to exist.
    make = compiled(create_block_mask) if device.type == "cuda" else create_block_mask
    return cast(BlockMask, make(rule, samples, None, queries, keys, device=str(device)))

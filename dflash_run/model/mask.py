"""What a query of a block may see, once as a rule, for sparse attention on GPUs and dense attention elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from dflash_run.model.rule import MaskMod, mask_mod
from dflash_run.model.shape import FULL, SLIDING, DrafterShape
from dflash_run.model.tiles import block_mask

Mask = BlockMask | Tensor
Masks = dict[str, Mask]
"""A mask for each type of layer that the drafter has."""


def masks_for(
    shape: DrafterShape, anchors: Tensor, context: int, documents: Tensor | None = None, *, sparse: bool
) -> Masks:
    """The masks of a drafter's layers for anchors int64 [b, A] and S = `context`; documents int64 [b, S] or None.

    sparse: BlockMask for flex_attention; else bool [b, 1, A·B, S + A·B], True where a query sees a key.
    """
    masks: Masks = {}
    for kind in sorted(set(shape.layer_types)):
        window = {FULL: None, SLIDING: shape.sliding_window}[kind]
        rule = mask_mod(anchors, context, shape.block_size, documents=documents, window=window)
        queries = anchors.shape[1] * shape.block_size
        if sparse:
            masks[kind] = block_mask(
                rule, anchors, context, shape.block_size, documents=documents is not None, window=window
            )
        else:
            masks[kind] = _dense(rule, len(anchors), queries, context + queries, anchors.device)
    return masks


def _dense(rule: MaskMod, samples: int, queries: int, keys: int, device: torch.device) -> Tensor:
    return create_mask(rule, samples, 1, queries, keys, device=str(device))

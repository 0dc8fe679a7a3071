"""Which tiles of the attention matrix hold anything, worked out from the anchors alone.

flex_attention skips empty tiles and asks the rule only in tiles that are partly seen. torch finds the tiles by
evaluating the rule everywhere: either the whole matrix comes to exist (8 × 8,192 × 10,240 booleans for a usual
batch), or it is compiled into one kernel over whole tiles, which took more than two minutes on an H200 (of which
ptxas two thirds). A block sees a stretch of context and itself, so the tiles are known beforehand.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask

from dflash_run.model.rule import MaskMod

TILE: Final = 128
"""Queries and keys of a tile: flex_attention's own choice."""
_FAR: Final = 1 << 40
"""Behind every key (and exact as the float that `pad` makes of it)."""


def block_mask(
    rule: MaskMod,
    anchors: Tensor,
    context: int,
    block_size: int,
    *,
    documents: bool = False,
    window: int | None = None,
) -> BlockMask:
    """The BlockMask of `rule` for anchors int64 [b, A] and `context` = S; `documents`: the rule also looks at them."""
    queries = anchors.shape[1] * block_size
    keys = context + queries
    low, high = _anchors_of_tiles(anchors, block_size)  # [b, rows, 1]: smallest and largest anchor of each row of tiles
    first = torch.arange(0, keys, TILE, device=anchors.device)  # [columns]: first key of each
    last = first + TILE - 1
    seen = first < high
    whole = last < low
    if window is not None:
        seen = seen & (last > low - window)
        whole = whole & (first > high + block_size - 1 - window)
    if documents:
        whole = torch.zeros_like(whole)
    seen = (seen & ~whole) | _own(queries, block_size, context, first, last)
    return BlockMask.from_kv_blocks(
        *_listed(seen),
        *_listed(whole),
        BLOCK_SIZE=TILE,
        mask_mod=rule,
        seq_lengths=(queries, keys),
    )


def _anchors_of_tiles(anchors: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """[b, rows, 1] each."""
    each = anchors.repeat_interleave(block_size, 1)  # [b, Q]: the anchor of each query
    short = -each.shape[1] % TILE
    rows = (len(each), -1, TILE)
    low = functional.pad(each, (0, short), value=_FAR).view(rows).amin(-1)
    high = functional.pad(each, (0, short), value=-1).view(rows).amax(-1)
    return low[..., None], high[..., None]


def _own(queries: int, block_size: int, context: int, first: Tensor, last: Tensor) -> Tensor:
    """bool [rows, columns]: tiles with keys of the row's own blocks."""
    start = torch.arange(0, queries, TILE, device=first.device)[:, None]
    end = (start + TILE - 1).clamp(max=queries - 1)
    own_first = context + start // block_size * block_size
    own_last = context + end // block_size * block_size + block_size - 1
    return (last >= own_first) & (first <= own_last)


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """bool [b, rows, columns] as flex_attention has it: how many in each row, and which, those first; with a head."""
    counts = tiles.sum(-1, dtype=torch.int32)
    which = torch.sort(tiles.to(torch.int8), dim=-1, descending=True, stable=True).indices.to(torch.int32)
    return counts[:, None], which[:, None]

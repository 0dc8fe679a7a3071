"""The blocks of a micro-batch, laid out on the host so that no later step has to ask the device for a size."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from dflash_run.model.anchors import Anchors, Bools, Ints


@dataclass(frozen=True)
class Blocks:
    """What the drafter is fed and asked; b samples, A blocks each, B slots a block, N slots that count."""

    anchors: Tensor
    """int64 [b, A]: where each block starts; 0 where a sample has fewer blocks."""
    tokens: Tensor
    """int64 [b, A·B]: the anchor's token, then masks."""
    positions: Tensor
    """int64 [b, A·B]: true positions, which may lie past the sample's end."""
    slots: Tensor
    """int64 [N]: slots that count, as indices into b·A·B."""
    labels: Tensor
    """int64 [N]: the token that each of them must predict."""
    teachers: Tensor
    """int64 [N]: indices into b·S of the positions whose last hidden state predicts that token."""

    def to(self, device: torch.device) -> Blocks:
        """The same on a device, copied without waiting for it."""
        return Blocks(*(move(getattr(self, field.name), device) for field in fields(self)))


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on the device; from pinned memory, because a copy of pageable memory may wait for the stream."""
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    if tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def lay_out(
    input_ids: Tensor,
    loss_mask: Tensor,
    lengths: Tensor,
    anchors: Anchors,
    *,
    block_size: int,
    mask_token_id: int,
    documents: Tensor | None = None,
    multiple: int = 1,
) -> Blocks:
    """The blocks at `anchors`; all tensors on the host, input_ids int64, loss_mask bool, documents int64 [b, S].

    Slot k of the block at a counts iff k >= 1 and position a + k is supervised, real, and of a's document. The
    number of blocks is padded to a multiple of `multiple` with blocks that nobody counts.
    """
    ids, supervised, real = input_ids.numpy(), loss_mask.numpy(), lengths.numpy()
    starts, held = _padded(anchors, multiple)
    rows = np.arange(len(starts))[:, None, None]
    span = ids.shape[1]
    places = starts[:, :, None] + np.arange(block_size)  # [b, A, B]
    inside = np.minimum(places, span - 1)
    counts = held[:, :, None] & (places < real[:, None, None]) & supervised[rows, inside]
    counts[:, :, 0] = False
    if documents is not None:
        papers = documents.numpy()
        counts &= papers[rows, inside] == papers[rows, starts[:, :, None]]
    tokens = np.full(places.shape, mask_token_id, dtype=np.int64)
    tokens[:, :, 0] = ids[rows[:, :, 0], starts]
    slots = np.flatnonzero(counts)
    targets = (rows * span + inside).reshape(-1)[slots]  # [N], into b·S
    return Blocks(
        anchors=torch.from_numpy(starts),
        tokens=torch.from_numpy(tokens).flatten(1),
        positions=torch.from_numpy(places).flatten(1),
        slots=torch.from_numpy(slots),
        labels=torch.from_numpy(ids.reshape(-1)[targets]),
        teachers=torch.from_numpy(targets - 1),
    )


def _padded(anchors: Anchors, multiple: int) -> tuple[Ints, Bools]:
    extra = -anchors.positions.shape[1] % multiple
    wide = ((0, 0), (0, extra))
    return np.pad(anchors.positions, wide), np.pad(anchors.held, wide)

"""What a micro-batch adds to a step: the sum of its weighted losses, and the figures that normalise and describe it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor
from torch.nn import functional

from dflash_run.model.anchors import Anchors, draw_anchors
from dflash_run.model.blocks import Blocks, lay_out, move
from dflash_run.model.drafter import Drafter
from dflash_run.model.losses import SlotLosses, slot_losses
from dflash_run.model.mask import masks_for
from dflash_run.model.shape import DrafterShape
from dflash_run.model.weights import decay_weights, dpace_weights
from dflash_run.training.batch import MicroBatch
from policies.sections.training import Training

_TILE = 128
"""Queries of a tile of flex_attention: whole tiles keep shapes few."""


class Figure(IntEnum):
    """Places in a step's tail: sums over everything that was trained."""

    WEIGHT = 0
    """Weights of the slots that count, by which gradient and loss are divided."""
    LOSS = 1
    """Weighted losses, in nats."""
    ACCEPTED = 2
    """Leading slots predicted right, over all anchors."""
    ANCHORS = 3
    TOKENS = 4
    """Real tokens of the samples."""
    SAMPLES = 5
    WITHOUT_ANCHORS = 6
    """Samples in which no block can start; they contribute nothing."""


@dataclass(frozen=True)
class Sums:
    """What one micro-batch adds."""

    loss: Tensor | None
    """Sum of weighted losses, differentiable; None where no slot counts."""
    figures: Tensor
    """float32, one for each Figure."""


class Objective:
    """The training pass of a micro-batch, from hidden states to sums. Keeps nothing between micro-batches."""

    def __init__(self, shape: DrafterShape, training: Training, embed: Tensor, head: Tensor, *, seed: int) -> None:
        """embed and head: the target's, [V, H], frozen, on the device where the drafter is."""
        self._shape, self._training, self._seed = shape, training, seed
        self._device = embed.device
        self._dtype = torch.bfloat16 if training.dtype == "bfloat16" else torch.float32
        self._embed = embed.detach().to(self._dtype)
        self._head = self._embed if head is embed else head.detach().to(self._dtype)
        self._decay = decay_weights(shape.block_size, training.gamma, self._device)  # [B]

    def sums(self, drafter: Drafter, batch: MicroBatch, *, epoch: int) -> Sums:
        """The sums of a micro-batch, with the anchors of `epoch`. Raises ValueError where soft losses lack `last`."""
        mask, lengths, documents = _on_host(batch)
        anchors = self._anchors(batch, mask, lengths, documents, epoch)
        blocks = lay_out(
            batch.input_ids.cpu(),
            mask,
            lengths,
            anchors,
            block_size=self._shape.block_size,
            mask_token_id=self._shape.mask_token_id,
            documents=documents,
            multiple=max(1, _TILE // self._shape.block_size) if self._device.type == "cuda" else 1,
        )
        figures = torch.zeros(len(Figure), device=self._device)
        figures[Figure.ANCHORS].fill_(int(anchors.counts.sum()))
        figures[Figure.TOKENS].fill_(int(lengths.sum()))
        figures[Figure.SAMPLES].fill_(len(lengths))
        figures[Figure.WITHOUT_ANCHORS].fill_(int((anchors.counts == 0).sum()))
        if len(blocks.slots) == 0:
            return Sums(None, figures)
        blocks = blocks.to(self._device)
        losses = self._losses(drafter, batch, blocks, documents)
        weights, accepted = self._weighed(losses, blocks)
        loss = (losses.loss * weights).sum()
        figures[Figure.WEIGHT] = weights.sum()
        figures[Figure.LOSS] = loss.detach()
        figures[Figure.ACCEPTED] = accepted
        return Sums(loss, figures)

    def _anchors(
        self, batch: MicroBatch, mask: Tensor, lengths: Tensor, documents: Tensor | None, epoch: int
    ) -> Anchors:
        return draw_anchors(
            mask.numpy(),
            lengths.numpy(),
            batch.sample_ids,
            seed=self._seed,
            epoch=epoch,
            most=self._training.anchors,
            documents=None if documents is None else documents.numpy(),
        )

    def _losses(self, drafter: Drafter, batch: MicroBatch, blocks: Blocks, documents: Tensor | None) -> SlotLosses:
        features = move(batch.features, self._device).to(self._dtype)  # [b, S, K·H]
        papers = None if documents is None else move(documents, self._device)
        sparse = self._device.type == "cuda"
        masks = masks_for(self._shape, blocks.anchors, features.shape[1], papers, sparse=sparse)
        embeddings = functional.embedding(blocks.tokens, self._embed)  # [b, A·B, H]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            hidden = drafter(features, embeddings, blocks.positions, masks)  # [b, A·B, H]
        asked = hidden.flatten(0, 1).index_select(0, blocks.slots)  # [N, H]
        return slot_losses(asked, self._head, blocks.labels, self._teachers(batch, blocks))

    def _teachers(self, batch: MicroBatch, blocks: Blocks) -> Tensor | None:
        if self._training.loss == "ce":
            return None
        if batch.last is None:
            raise ValueError("soft losses need the target's last hidden states, and the micro-batch has none")
        last = move(batch.last, self._device).flatten(0, 1)  # [b·S, H]
        return last.index_select(0, blocks.teachers).to(self._dtype)  # [N, H]

    def _weighed(self, losses: SlotLosses, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Weights float32 [N] of the slots, and the number of leading slots that were predicted right."""
        size = self._shape.block_size

        def in_blocks(values: Tensor) -> Tensor:
            empty = values.new_zeros(blocks.tokens.numel())
            return empty.index_copy(0, blocks.slots, values).view(-1, size)  # [b·A, B]

        accepted = in_blocks(losses.correct.float())[:, 1:].cumprod(1).sum()
        if self._training.weights == "decay":
            return self._decay[blocks.slots % size], accepted
        counts = in_blocks(torch.ones_like(losses.entropy)).bool()
        weights = dpace_weights(in_blocks(losses.entropy), counts, self._training.alpha)
        return weights.flatten().index_select(0, blocks.slots), accepted


def _on_host(batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor | None]:
    documents = None if batch.documents is None else batch.documents.cpu()
    return batch.loss_mask.cpu(), batch.lengths.cpu(), documents

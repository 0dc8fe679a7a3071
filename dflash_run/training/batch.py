"""A micro-batch: samples with the hidden states that the target gave them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """b samples padded to S tokens, with K taps of width H.

    The small tensors are best left on the host, where blocks are laid out: fetching them from a device waits for it.
    The hidden states are best on the replica's device, or in pinned memory.
    """

    features: Tensor
    """[b, S, K·H], any float dtype: outputs of the tapped layers, concatenated in their order."""
    last: Tensor | None
    """[b, S, H]: the target's last hidden state after its final norm; needed for soft losses only."""
    input_ids: Tensor
    """int64 [b, S]."""
    loss_mask: Tensor
    """bool [b, S]: supervised positions."""
    lengths: Tensor
    """int64 [b]: real tokens of each sample; what follows is padding."""
    sample_ids: NDArray[np.int64]
    """int64 [b]: the samples' numbers in the data, which their anchors depend on."""
    epoch: int
    """Pass over the data, from 0."""
    documents: Tensor | None = None
    """int64 [b, S]: document of each position where samples are packed; None: each sample is one document."""

    def split(self, samples: int) -> Iterator[MicroBatch]:
        """The same samples in order, at most so many at a time; tensors are views."""
        for start in range(0, len(self.lengths), samples):
            part = slice(start, start + samples)
            longest = int(self.lengths[part].max())
            yield MicroBatch(
                features=self.features[part, :longest],
                last=None if self.last is None else self.last[part, :longest],
                input_ids=self.input_ids[part, :longest],
                loss_mask=self.loss_mask[part, :longest],
                lengths=self.lengths[part],
                sample_ids=self.sample_ids[part],
                epoch=self.epoch,
                documents=None if self.documents is None else self.documents[part, :longest],
            )

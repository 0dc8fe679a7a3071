"""Where a sample's blocks start: anchors drawn by sample, whoever trains it and whatever is batched with it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_KEY: Final = 0x6466_6C61_7368
"""Keeps these streams apart from other uses of the seed."""
_WORD: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Anchors:
    """Anchors of a micro-batch, in rising order for each sample."""

    positions: Ints
    """int64 [samples, most], 0 where a sample has fewer."""
    counts: Ints
    """int64 [samples]: how many each has; 0 for a sample that contributes nothing."""

    @property
    def held(self) -> Bools:
        """bool [samples, most]: which entries are anchors."""
        return np.arange(self.positions.shape[1]) < self.counts[:, None]


def candidates(loss_mask: Bools, lengths: Ints, documents: Ints | None = None) -> Bools:
    """bool [samples, S]: positions a where a and a + 1 are supervised, real and of one document."""
    real = loss_mask & (np.arange(loss_mask.shape[1]) < lengths[:, None])
    open_ = np.zeros_like(real)
    open_[:, :-1] = real[:, :-1] & real[:, 1:]
    if documents is not None:
        open_[:, :-1] &= documents[:, :-1] == documents[:, 1:]
    return open_


def draw_anchors(
    loss_mask: Bools,
    lengths: Ints,
    sample_ids: Ints,
    *,
    seed: int,
    epoch: int,
    most: int,
    documents: Ints | None = None,
) -> Anchors:
    """Up to `most` anchors of each sample, without replacement, a function of (seed, epoch, sample id) alone.

    loss_mask and documents are [samples, S], lengths and sample_ids int64 [samples]; epoch -1 is the held-out
    stream. The result is as wide as the sample with the most anchors.
    """
    open_ = candidates(loss_mask, lengths, documents)
    drawn = [
        _drawn(np.flatnonzero(row), most, _stream(seed, epoch, int(sample)))
        for row, sample in zip(open_, sample_ids, strict=True)
    ]
    counts = np.array([len(each) for each in drawn], dtype=np.int64)
    positions = np.zeros((len(drawn), int(counts.max(initial=0))), dtype=np.int64)
    for row, each in zip(positions, drawn, strict=True):
        row[: len(each)] = each
    return Anchors(positions, counts)


def _drawn(places: Ints, most: int, stream: np.random.Generator) -> Ints:
    if len(places) <= most:
        return places
    return np.sort(stream.choice(places, most, replace=False, shuffle=False))


def _stream(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """Counter-based: who the stream is for is its place in the sequence, so none has to be kept or skipped."""
    counter = np.array([0, 0, epoch & _WORD, sample & _WORD], dtype=np.uint64)
    key = np.array([seed & _WORD, _KEY], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))

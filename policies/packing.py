"""Group samples into batches and put the batches in order, on whole arrays: nothing lost, nothing twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from policies.lengths import I64, SHUFFLE, BatchPlanError, plan_stream

I32 = NDArray[np.int32]
Flags = NDArray[np.bool_]

# From the lengths, bucket after bucket, and the bounds of the buckets in them (int64[K+1]): where batches
# start (int64[N]) and which of them are full (bool[N]).
Cut = Callable[[I64, I64], tuple[I64, Flags]]


# A few GB of arrays. More is nearly always a total of tokens whose batch_tokens was forgotten.
MOST_SAMPLES = 50_000_000


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """How samples become an order of batches, whatever they are."""

    buckets: Sequence[int] = ()
    """Upper edges, tokens, rising, inclusive; longer samples share an overflow bucket. Empty: one for all."""
    order: str = "given"
    """given (as they fill) | interleaved (buckets dealt evenly) | shuffled (samples, then batches)."""
    epochs: int = 1
    """Passes over the samples, >= 1."""
    seed: int = 0
    """>= 0; used by `shuffled` alone."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Batch k is the samples `ids[offsets[k]:offsets[k+1]]`, all of bucket `bucket[k]`."""

    ids: I64  # int64[total]
    offsets: I64  # int64[N+1], from 0 to total
    bucket: I32  # int32[N]
    closes: I64  # int64[N]: the arrival that completes the batch (total: the end of the data)

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.bucket)

    @property
    def sizes(self) -> I64:
        """Samples of each batch, int64[N]."""
        return np.diff(self.offsets)

    def reordered(self, order: I64) -> "Packing":
        """The same batches, batch `order[k]` now the k-th."""
        sizes = self.sizes[order]
        offsets = _offsets(sizes)
        # Each sample keeps its place within its batch, and the batch moves from its old start to its new one.
        source = np.arange(len(self.ids)) + np.repeat(self.offsets[:-1][order] - offsets[:-1], sizes)
        return Packing(
            ids=self.ids[source], offsets=offsets, bucket=self.bucket[order], closes=self.closes[order]
        )


def _offsets(sizes: I64) -> I64:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def bucket_of(lengths: I64, edges: Sequence[int]) -> I32:
    """Bucket of each length, int32[N]: the first edge (rising, inclusive) not below it.

    len(edges) is the overflow; without edges all are in bucket 0.
    """
    return np.searchsorted(np.asarray(edges, dtype=np.int64), lengths, side="left").astype(np.int32)


def by_samples(samples: int) -> Cut:
    """Batches of `samples` samples; the last one of a bucket may be smaller."""

    def cut(lengths: I64, bounds: I64) -> tuple[I64, Flags]:
        within = np.arange(len(lengths)) - np.repeat(bounds[:-1], np.diff(bounds))
        starts = np.flatnonzero(within % samples == 0).astype(np.int64)
        return starts, np.diff(starts, append=len(lengths)) == samples

    return cut


def by_slots(max_tokens: int) -> Cut:
    """Batches of at most `max_tokens` padded slots, filled greedily in order; a longer sample goes alone."""

    def cut(lengths: I64, bounds: I64) -> tuple[I64, Flags]:
        starts = np.array(_greedy_starts(lengths.tolist(), bounds.tolist(), max_tokens), dtype=np.int64)
        sizes = np.diff(starts, append=len(lengths))
        # Full: not even the shortest sample would fit, so the batch need not wait for one.
        return starts, (sizes + 1) * batch_max(lengths, starts) > max_tokens

    return cut


def _greedy_starts(lengths: list[int], bounds: list[int], max_tokens: int) -> list[int]:
    # A loop over plain integers, as each start depends on the one before: a tenth of a second per million.
    starts = []
    for low, high in pairwise(bounds):
        size, longest = max_tokens, 1  # "full", so that the bucket's first sample opens a batch
        for place in range(low, high):
            length = lengths[place]
            if length > longest:
                longest = length
            size += 1
            if size * longest > max_tokens:
                starts.append(place)
                size, longest = 1, length
    return starts


def batch_sum(values: I64, starts: I64) -> I64:
    """Sum of each run of `values` that begins at `starts`, int64[N]."""
    # reduceat refuses an empty array even without starts.
    return np.add.reduceat(values, starts) if len(values) else np.zeros(0, np.int64)


def batch_max(values: I64, starts: I64) -> I64:
    """Largest of each run of `values` that begins at `starts`, int64[N]."""
    return np.maximum.reduceat(values, starts) if len(values) else np.zeros(0, np.int64)


def pack(lengths: I64, bucket: I32, arrival: I64, cut: Cut) -> Packing:
    """Form batches, each within a bucket, of the samples in `arrival` order (int64[total] ids)."""
    by_bucket = np.argsort(bucket[arrival], kind="stable")
    ids = arrival[by_bucket]
    bounds = _offsets(np.bincount(bucket))
    starts, full = cut(lengths[ids], bounds)
    offsets = np.append(starts, len(ids))
    batch_bucket = bucket[ids[starts]]
    # A full batch is complete with its last sample; another is closed by the next sample of its bucket, which
    # did not fit; the last one of a bucket by nothing but the end of the data.
    next_arrival = np.append(by_bucket, len(ids))[offsets[1:]]
    next_arrival[np.diff(batch_bucket, append=-1) != 0] = len(ids)
    closes = np.where(full, by_bucket[offsets[1:] - 1], next_arrival)
    return Packing(ids=ids, offsets=offsets, bucket=batch_bucket, closes=closes)


def as_completed(packing: Packing) -> Packing:
    """Batches in the order in which they fill; those that never do at the end, in bucket order."""
    return packing.reordered(np.argsort(packing.closes, kind="stable"))


def dealt(packing: Packing) -> Packing:
    """Batches of all buckets dealt evenly: the i-th of a bucket's n stands at (i + ½)/n; ties by bucket."""
    counts = np.bincount(packing.bucket)
    rank = np.arange(packing.count) - np.repeat(_offsets(counts)[:-1], counts)
    return packing.reordered(np.argsort((rank + 0.5) / np.repeat(counts, counts), kind="stable"))


def joined(packings: Sequence[Packing]) -> Packing:
    """One packing after the other (epochs)."""
    return Packing(
        ids=np.concatenate([p.ids for p in packings]),
        offsets=_offsets(np.concatenate([p.sizes for p in packings])),
        bucket=np.concatenate([p.bucket for p in packings]),
        closes=np.concatenate([p.closes for p in packings]),
    )


def check_size(count: int, epochs: int, key: str, value: object, remedy: str) -> None:
    """Raise BatchPlanError, naming `key`, when `count` samples over `epochs` epochs exceed MOST_SAMPLES."""
    if count * epochs > MOST_SAMPLES:
        rule = f"makes {count} samples in each of {epochs} epochs; at most {MOST_SAMPLES} can be planned"
        raise BatchPlanError(key, value, rule, remedy)


def pack_epochs(lengths: I64, cut: Cut, arrangement: Arrangement) -> tuple[Packing, I32]:
    """All epochs' batches of samples of these lengths (int64[M], tokens); and the epoch of each, int32[N]."""
    bucket = bucket_of(lengths, arrangement.buckets)
    if arrangement.order == "shuffled":
        streams = [plan_stream(arrangement.seed, SHUFFLE, epoch) for epoch in range(arrangement.epochs)]
        packings = [_shuffled(lengths, bucket, cut, stream) for stream in streams]
    else:
        once = pack(lengths, bucket, np.arange(len(lengths)), cut)
        packings = [_ARRANGE[arrangement.order](once)] * arrangement.epochs
    epochs = np.arange(arrangement.epochs, dtype=np.int32)
    return joined(packings), np.repeat(epochs, [packing.count for packing in packings])


_ARRANGE = {"given": as_completed, "interleaved": dealt}


def _shuffled(lengths: I64, bucket: I32, cut: Cut, rng: np.random.Generator) -> Packing:
    packing = pack(lengths, bucket, rng.permutation(len(lengths)), cut)
    return packing.reordered(rng.permutation(packing.count))

"""The batch plan: which samples form which batch, in which order; a pure function of (data section, seed)."""

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.lengths import (
    I64,
    LENGTHS,
    BatchPlanError,
    checked_lengths,
    lag1_length_correlation,
    lognormal_lengths,
    plan_stream,
    read_lengths,
)
from policies.packing import (
    I32,
    MOST_SAMPLES,
    Arrangement,
    Packing,
    batch_max,
    batch_sum,
    by_samples,
    by_slots,
    check_size,
    pack_epochs,
)

__all__ = [
    "ALL",
    "Arrangement",
    "BatchPlan",
    "BatchPlanError",
    "DataSection",
    "MOST_SAMPLES",
    "batches_for_total",
    "batches_from_lengths",
    "equal_batches",
    "lag1_length_correlation",
    "listed_batches",
    "plan_batches",
]

F64 = NDArray[np.float64]

ALL = "all"  # the one bucket's name where no edges are set


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchPlan:
    """All batches of a run in the order of the feed, epoch after epoch; N batches, arrays are read-only."""

    tokens: I64
    """int64[N]: real tokens (what is trained on)."""
    slots: I64
    """int64[N]: padded tokens, samples × longest sample (equal and listed batches: their tokens)."""
    samples: I64
    """int64[N]: samples in the batch."""
    length: I64
    """int64[N]: longest sample, in tokens."""
    bucket: I32
    """int32[N]: index into `bucket_names`."""
    target_factor: F64
    """float64[N]: multiplies the target's seconds."""
    drafter_factor: F64
    """float64[N]: multiplies the drafter's seconds."""
    epoch: I32
    """int32[N]: from 0, never falling."""
    sample_ids: I64
    """int64[total]: batch k holds `sample_ids[sample_offsets[k]:sample_offsets[k+1]]`; all ids per epoch."""
    sample_offsets: I64
    """int64[N+1]."""
    bucket_names: tuple[str, ...]
    """Buckets with a planned batch, rising, the overflow last, as `<=512`, `>4096`.

    Without edges, or without batches, the one name `all`.
    """
    oversized: int = 0
    """Batches of one sample that alone exceeds `max_tokens`."""

    def __post_init__(self) -> None:
        for array in self._arrays().values():
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def count(self) -> int:
        """Number of batches, N."""
        return len(self)

    def samples_of(self, batch: int) -> I64:
        """Sample ids of one batch, int64[samples[batch]]; `batch` from 0 to N−1."""
        return self.sample_ids[self.sample_offsets[batch] : self.sample_offsets[batch + 1]]

    def head(self, count: int) -> "BatchPlan":
        """The first `count` batches, with the same buckets."""
        if count >= self.count:
            return self
        offsets = self.sample_offsets[: count + 1]
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, array in self._arrays().items():
            values[name] = array[:count]
        values |= {"sample_offsets": offsets, "sample_ids": self.sample_ids[: offsets[-1]]}
        return BatchPlan(**values)

    def select(self, batches: Sequence[int] | I64) -> "BatchPlan":
        """The given batches (numbers, rising) as a plan of their own, with the same buckets."""
        chosen = np.asarray(batches, np.int64)
        sizes = self.samples[chosen]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, array in self._arrays().items():
            if name not in ("sample_ids", "sample_offsets"):
                values[name] = array[chosen]
        ids = self.sample_ids[np.repeat(self.sample_offsets[chosen], sizes) + within]
        return BatchPlan(**(values | {"sample_ids": ids, "sample_offsets": offsets}))

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over all arrays and bucket names, hex: two plans are the same if and only if these are."""
        digest = hashlib.sha256(repr(self.bucket_names).encode())
        for name, array in self._arrays().items():
            digest.update(f"{name}{array.shape}".encode())
            digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()

    def _arrays(self) -> dict[str, NDArray[np.generic]]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def equal_batches(count: int, batch_tokens: int, arrangement: Arrangement | None = None) -> BatchPlan:
    """Plan `count` one-sample batches of `batch_tokens` tokens. Raises BatchPlanError beyond MOST_SAMPLES."""
    arrangement = arrangement or Arrangement()
    check_size(count, arrangement.epochs, "data.batches", count, "plan fewer batches")
    return _plan_singles(np.full(count, batch_tokens, np.int64), arrangement)


def batches_for_total(tokens: float, batch_tokens: int, arrangement: Arrangement | None = None) -> BatchPlan:
    """Plan as many batches of `batch_tokens` tokens as `tokens` (rounded up) needs; the last holds the rest.

    Raises BatchPlanError beyond MOST_SAMPLES.
    """
    arrangement = arrangement or Arrangement()
    total = math.ceil(tokens)
    count = -(-total // batch_tokens)
    check_size(count, arrangement.epochs, "data.tokens", tokens, "set data.batch_tokens to their real size")
    each = np.full(count, batch_tokens, np.int64)
    each[-1:] -= count * batch_tokens - total
    return _plan_singles(each, arrangement)


def listed_batches(
    batches: Sequence[tuple[int, int, float, float]], arrangement: Arrangement | None = None
) -> BatchPlan:
    """Plan one-sample batches from (tokens, length, drafter factor, target factor).

    Buckets go by the length; slots are the tokens. Raises BatchPlanError beyond MOST_SAMPLES.
    """
    arrangement = arrangement or Arrangement()
    check_size(len(batches), arrangement.epochs, "data.batches", len(batches), "list fewer batches")
    return _plan_singles(
        np.array([batch[0] for batch in batches], dtype=np.int64),
        arrangement,
        length=np.array([batch[1] for batch in batches], dtype=np.int64),
        drafter_factor=np.array([batch[2] for batch in batches], dtype=np.float64),
        target_factor=np.array([batch[3] for batch in batches], dtype=np.float64),
    )


def batches_from_lengths(
    lengths: Sequence[int] | I64,
    arrangement: Arrangement | None = None,
    *,
    samples: int | None = None,
    max_tokens: int | None = None,
) -> BatchPlan:
    """Plan batches of samples of these lengths (int64[M], tokens), each within one bucket.

    A batch takes `samples` samples (default 1), the last of a bucket perhaps fewer; or, where `max_tokens` is
    set, as many as keep samples × longest within it, a longer sample alone. The order is shuffled by default.
    Raises BatchPlanError for lengths that are not integers 1 … 2³¹−1, or more than MOST_SAMPLES in all.
    """
    arrangement = arrangement or Arrangement(order="shuffled")
    lengths = checked_lengths(lengths)
    check_size(len(lengths), arrangement.epochs, "data.lengths", len(lengths), "plan fewer samples or epochs")
    cut = by_samples(samples or 1) if max_tokens is None else by_slots(max_tokens)
    packing, epoch = pack_epochs(lengths, cut, arrangement)
    each, starts = lengths[packing.ids], packing.offsets[:-1]
    longest = batch_max(each, starts)
    slots = longest * packing.sizes
    return _plan(
        packing,
        epoch,
        arrangement,
        tokens=batch_sum(each, starts),
        slots=slots,
        length=longest,
        oversized=0 if max_tokens is None else int(np.count_nonzero(slots > max_tokens)),
    )


def _plan_singles(
    tokens: I64,
    arrangement: Arrangement,
    *,
    length: I64 | None = None,
    target_factor: F64 | None = None,
    drafter_factor: F64 | None = None,
) -> BatchPlan:
    length = tokens if length is None else length
    packing, epoch = pack_epochs(length, by_samples(1), arrangement)
    ids = packing.ids  # one sample a batch: also the batch's own index in what was given
    return _plan(
        packing,
        epoch,
        arrangement,
        tokens=tokens[ids],
        slots=tokens[ids],
        length=length[ids],
        target_factor=None if target_factor is None else target_factor[ids],
        drafter_factor=None if drafter_factor is None else drafter_factor[ids],
    )


def _plan(
    packing: Packing,
    epoch: I32,
    arrangement: Arrangement,
    *,
    tokens: I64,
    slots: I64,
    length: I64,
    target_factor: F64 | None = None,
    drafter_factor: F64 | None = None,
    oversized: int = 0,
) -> BatchPlan:
    planned = np.bincount(packing.bucket) > 0
    renumbered = np.cumsum(planned, dtype=np.int32) - np.int32(1)  # without the buckets that have no batch
    return BatchPlan(
        tokens=tokens,
        slots=slots,
        samples=packing.sizes,
        length=length,
        bucket=renumbered[packing.bucket],
        target_factor=np.ones(packing.count) if target_factor is None else target_factor,
        drafter_factor=np.ones(packing.count) if drafter_factor is None else drafter_factor,
        epoch=epoch,
        sample_ids=packing.ids,
        sample_offsets=packing.offsets,
        bucket_names=_bucket_names(np.flatnonzero(planned).tolist(), arrangement.buckets),
        oversized=oversized,
    )


def _bucket_names(used: list[int], edges: Sequence[int]) -> tuple[str, ...]:
    if not edges or not used:
        return (ALL,)  # also for a plan without batches: a hop needs at least one lane
    return tuple(f"<={edges[index]}" if index < len(edges) else f">{edges[-1]}" for index in used)


class BatchEntry(Protocol):
    """One entry of a batch list."""

    @property
    def tokens(self) -> int | None: ...
    @property
    def length(self) -> int | None: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def target_seconds(self) -> float | None: ...


class Lognormal(Protocol):
    """A lognormal law of lengths, in tokens; `sigma` of the logarithm."""

    @property
    def mean(self) -> float: ...
    @property
    def sigma(self) -> float: ...
    @property
    def min(self) -> int | None: ...
    @property
    def max(self) -> int | None: ...


class DrawnLengths(Protocol):
    """`count` lengths drawn from a law."""

    @property
    def lognormal(self) -> Lognormal: ...
    @property
    def count(self) -> int: ...


class BatchLimit(Protocol):
    """How many samples make a batch: `max_tokens` where it is set, else `samples`, else one."""

    @property
    def samples(self) -> int | None: ...
    @property
    def max_tokens(self) -> int | None: ...


class DataSection(Protocol):
    """What `plan_batches` reads of `data:`; of `batches`, `tokens`, `lengths` one is set, the others None."""

    @property
    def batches(self) -> int | Sequence[BatchEntry] | None: ...
    @property
    def batch_tokens(self) -> int: ...
    @property
    def tokens(self) -> float | None: ...
    @property
    def lengths(self) -> list[int] | tuple[int, ...] | str | os.PathLike[str] | DrawnLengths | None: ...
    @property
    def batch(self) -> BatchLimit | None: ...
    @property
    def buckets(self) -> Sequence[int] | None: ...
    @property
    def order(self) -> str | None: ...
    @property
    def epochs(self) -> int: ...


def plan_batches(data: DataSection, *, seed: int) -> BatchPlan:
    """Plan what `data` describes; the same section, seed (>= 0) and files give the same plan.

    Raises BatchPlanError for a length file that cannot be used, and for more than MOST_SAMPLES samples.
    """
    by_default = "given" if data.lengths is None else "shuffled"
    arrangement = Arrangement(
        buckets=tuple(data.buckets or ()), order=data.order or by_default, epochs=data.epochs, seed=seed
    )
    if data.lengths is not None:
        lengths = _lengths_of(data.lengths, data.epochs, seed)
        samples, max_tokens = (data.batch.samples, data.batch.max_tokens) if data.batch else (None, None)
        return batches_from_lengths(lengths, arrangement, samples=samples, max_tokens=max_tokens)
    if data.tokens is not None:
        return batches_for_total(data.tokens, data.batch_tokens, arrangement)
    if isinstance(data.batches, int):
        return equal_batches(data.batches, data.batch_tokens, arrangement)
    if data.batches is not None:
        return listed_batches([_entry(entry, data.batch_tokens) for entry in data.batches], arrangement)
    raise BatchPlanError("data", None, "must say how much there is", "set data.batches, .tokens or .lengths")


def _lengths_of(
    lengths: list[int] | tuple[int, ...] | str | os.PathLike[str] | DrawnLengths, epochs: int, seed: int
) -> Sequence[int] | I64:
    if isinstance(lengths, str | os.PathLike):
        return read_lengths(lengths)
    if isinstance(lengths, list | tuple):
        return lengths
    check_size(lengths.count, epochs, "data.lengths.count", lengths.count, "draw fewer samples")
    law, rng = lengths.lognormal, plan_stream(seed, LENGTHS)
    return lognormal_lengths(
        lengths.count, mean=law.mean, sigma=law.sigma, shortest=law.min, longest=law.max, rng=rng
    )


def _entry(entry: BatchEntry, batch_tokens: int) -> tuple[int, int, float, float]:
    tokens = batch_tokens if entry.tokens is None else entry.tokens
    length = tokens if entry.length is None else entry.length
    drafter = 1.0 if entry.seconds is None else entry.seconds
    target = 1.0 if entry.target_seconds is None else entry.target_seconds
    return tokens, length, drafter, target

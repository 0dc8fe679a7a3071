"""What the batches of a run were like, from its trace: lengths, padding, and how the optimizer steps mixed them."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reports.flow import Commits
from reports.recorded import Recorded
from reports.tables import Table, Value

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_POINTS: Final = 4_000


@dataclass(frozen=True, eq=False)
class Shapes:
    """The planned batches, by bucket; B batches in K buckets."""

    buckets: tuple[str, ...]
    bucket: I64
    """int64[B]"""
    length: I64
    """int64[B]: the longest sample of each [tokens]."""
    tokens: I64
    """int64[K], of each bucket."""
    slots: I64
    samples: I64
    batches: I64

    @property
    def padding(self) -> F64:
        """float64[K]: the share of a bucket's slots that holds no token; 0 for an empty bucket."""
        return np.asarray(1 - self.tokens / np.maximum(self.slots, 1) - (self.slots == 0), np.float64)

    @property
    def padding_share(self) -> float | None:
        """Of all slots; None without any."""
        slots = int(self.slots.sum())
        return 1 - int(self.tokens.sum()) / slots if slots else None

    @property
    def vary(self) -> bool:
        return len(self.length) > 0 and bool((self.length != self.length[0]).any())


@dataclass(frozen=True, eq=False)
class Mixing:
    """How the optimizer steps mixed lengths."""

    steps_by_buckets: I64
    """int64[K + 1]: how many steps hold k different buckets."""
    length: F64
    """Mean length of a step's batches, of some steps spread evenly over the run."""
    next_length: F64
    """That of the step that follows each."""
    every: int
    """One step in so many is among them."""

    @property
    def mixed(self) -> int:
        """Steps that hold more than one bucket."""
        return int(self.steps_by_buckets[2:].sum())


def shapes_of(recorded: Recorded) -> Shapes:
    """The planned batches of a trace."""
    plan, names = recorded.plan, recorded.header.buckets
    bucket = plan["bucket"]

    def summed(column: str) -> I64:
        # exact: sums of whole numbers up to 2^53
        return np.bincount(bucket, weights=plan[column], minlength=len(names)).astype(np.int64)

    return Shapes(
        buckets=names,
        bucket=bucket,
        length=plan["length"],
        tokens=summed("tokens"),
        slots=summed("slots"),
        samples=summed("samples"),
        batches=np.bincount(bucket, minlength=len(names)).astype(np.int64),
    )


def mixing_of(done: Commits) -> Mixing:
    """How the steps mixed."""
    counts = np.bincount(done.buckets) if len(done.buckets) else np.zeros(1, np.int64)
    every = max(-(-(len(done.length) - 1) // _POINTS), 1)
    return Mixing(counts.astype(np.int64), done.length[:-1][::every], done.length[1:][::every], every)


def batches_table(key: str, shapes: Shapes) -> Table:
    """The plan by bucket."""
    rows: list[tuple[Value, ...]] = []
    for number, name in enumerate(shapes.buckets):
        slots = int(shapes.slots[number])
        padding = float(shapes.padding[number]) if slots else None
        counts = (int(each[number]) for each in (shapes.batches, shapes.samples, shapes.tokens))
        rows.append((name, *counts, slots, padding))
    sums = (int(each.sum()) for each in (shapes.batches, shapes.samples, shapes.tokens, shapes.slots))
    rows.append(("all", *sums, shapes.padding_share))
    columns = ("bucket", "batches", "samples", "tokens", "slots", "padding share")
    return Table(key=key, title="Batches planned", columns=columns, rows=tuple(rows))

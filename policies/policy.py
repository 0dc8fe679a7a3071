"""What a policy is: two small choices over the lanes it is shown.

A policy is any class with the methods of `Policy`; it need not inherit from anything. The mechanism (waiting,
capacity, leases, the end, losses) is the dispatcher's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

WAIT: Final = -1
"""A policy's answer "nothing here for this consumer yet". Answering WAIT must not change the policy's state."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a policy may know of its hop when it lays out the lanes."""

    producers: int
    """Number of producers (the loader, or the targets)."""
    consumers: int
    """Number of consumers (the targets, or the drafters)."""
    depth: int
    """The user's per-lane number, at least 1."""
    capacity: int | None = None
    """Exact capacity of a lane (of all lanes together for a policy with a bound); overrides `depth`."""
    buckets: tuple[str, ...] = ("all",)
    """Names of the length buckets that have a planned batch, in rising order."""
    mix: str = "prefer"
    """"prefer" or "require": how hard steps must mix buckets (`bucketed`)."""
    min_buckets: int = 2
    """Different buckets a step must hold under "require" while the data allow it."""

    def per_lane(self) -> int:
        """Capacity of a lane that belongs to one consumer."""
        return self.depth if self.capacity is None else self.capacity


@dataclass(frozen=True, kw_only=True)
class LaneSpec:
    """One FIFO of a hop."""

    name: str
    capacity: int
    """The most batches that may wait here; 0 hands over to a waiting consumer only."""
    reader: int | None = None
    """The only consumer that takes from it; None means every consumer. A lost reader's lane is drained by all."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The lanes of a hop, and optionally one bound over all of them.

    Under a bound each lane that still has batches to come keeps one reserved slot, so that no bucket is locked
    out by the others; the bound is at least the number of lanes.
    """

    lanes: tuple[LaneSpec, ...]
    bound: int | None = None


class LaneView(Protocol):
    """A lane as a policy sees it."""

    @property
    def name(self) -> str: ...

    @property
    def capacity(self) -> int: ...

    def __len__(self) -> int:
        """Number of waiting batches."""
        ...


class View(Protocol):
    """A hop as a policy sees it; nothing here may be changed by the policy."""

    @property
    def lanes(self) -> Sequence[LaneView]: ...

    @property
    def consumers(self) -> Sequence[int]:
        """The live consumers, in order of their numbers."""
        ...

    @property
    def to_come(self) -> Sequence[int]:
        """For each bucket, the batches that have not been offered yet."""
        ...

    def bucket(self, batch: int) -> int:
        """The bucket of a batch."""
        ...

    def window_buckets(self, consumer: int) -> frozenset[int]:
        """The buckets that the consumer's open optimizer step already holds."""
        ...

    def window_room(self, consumer: int) -> int:
        """How many more micro-batches the consumer's open optimizer step takes."""
        ...

    def may_arrive(self, consumer: int, lane: int) -> bool:
        """Whether a batch can still enter the lane without this consumer taking first."""
        ...


class Policy(Protocol):
    """Which lane an offered batch goes to, and which lane a waiting consumer takes from."""

    def layout(self, shape: Shape) -> Layout:
        """The lanes of the hop; called once, before anything else."""
        ...

    def put(self, producer: int, batch: int, view: View) -> int:
        """The lane for a batch; called once for each offer (again if the lane's reader is lost meanwhile)."""
        ...

    def take(self, consumer: int, view: View) -> int:
        """The non-empty lane the consumer takes from now, or WAIT. An answered lane is always carried out."""
        ...

    def reach(self, producer: int, view: View) -> Sequence[int]:
        """The lanes that an offer still to come from this producer may go to; used to judge who is dry."""
        ...

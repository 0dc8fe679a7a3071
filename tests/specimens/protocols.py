"""The stop protocols that the field tried, over one plain bounded queue; each worker is a few readable lines.

A worker is a generator that yields one operation at a time and is sent its result. It touches nothing but its own
variables and what it yields, so that an explorer may interleave the operations in every way. Targets pull their work
from one list; every drafter takes from the one queue. `None` in the queue is an end marker.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

BATCH = "batch"
"""Any batch: a protocol cannot tell one from another, so the explorer need not either."""


@dataclass(frozen=True)
class Put:
    """Put into the queue; waits while it is full."""

    item: str | None


@dataclass(frozen=True)
class PutNoWait:
    """Put into the queue if it has room; whether it had."""

    item: str | None


@dataclass(frozen=True)
class Get:
    """Take from the queue; waits while it is empty."""


@dataclass(frozen=True)
class IsEmpty:
    """Whether the queue looks empty."""


@dataclass(frozen=True)
class NextWork:
    """The next batch of the work list, computed; None when there is none left."""


@dataclass(frozen=True)
class CountDown:
    """One target fewer is at work, under a lock; how many still are."""


@dataclass(frozen=True)
class StillAtWork:
    """How many targets are at work."""


Operation = Put | PutNoWait | Get | IsEmpty | NextWork | CountDown | StillAtWork
Worker = Generator[Operation, object, None]


@dataclass(frozen=True)
class Protocol:
    """What each target and each drafter does; a target is told how many of both there are."""

    name: str
    target: Callable[[int, int], Worker]
    drafter: Callable[[], Worker]


def leave_at_the_first_marker() -> Worker:
    """The drafter of every protocol but one."""
    while (yield Get()):
        pass  # trains the batch


# Those that fail --------------------------------------------------------------------------------------------------


def one_marker_per_target(targets: int, drafters: int) -> Worker:
    while (yield NextWork()):
        yield Put(BATCH)
    yield Put(None)


def markers_up_front(targets: int, drafters: int) -> Worker:
    """The first target to start places them, one per drafter, before any work."""
    if (yield CountDown()) == targets - 1:
        for _ in range(drafters):
            yield Put(None)
    while (yield NextWork()):
        yield Put(BATCH)


def one_marker_for_all(targets: int, drafters: int) -> Worker:
    while (yield NextWork()):
        yield Put(BATCH)
    if (yield CountDown()) == 0:
        yield Put(None)


def bounce_the_marker() -> Worker:
    """Hands the marker back for the others, and leaves when the queue is empty: it never is, the marker is in it."""
    while True:
        if not (yield Get()):
            yield Put(None)
            if (yield IsEmpty()):
                return


def markers_without_waiting(targets: int, drafters: int) -> Worker:
    while (yield NextWork()):
        yield Put(BATCH)
    if (yield CountDown()) == 0:
        for _ in range(drafters):
            yield PutNoWait(None)


# The one that works, and how it fails without the lock ------------------------------------------------------------


def last_one_counted_under_a_lock(targets: int, drafters: int) -> Worker:
    while (yield NextWork()):
        yield Put(BATCH)
    if (yield CountDown()) == 0:
        for _ in range(drafters):
            yield Put(None)


def last_one_looked_up_after_the_lock(targets: int, drafters: int) -> Worker:
    """Counts under the lock, but looks at the count afterwards: two targets may both believe that they are last."""
    while (yield NextWork()):
        yield Put(BATCH)
    yield CountDown()
    if (yield StillAtWork()) == 0:
        for _ in range(drafters):
            yield Put(None)


CLASSIC = Protocol("the last target puts one per drafter", last_one_counted_under_a_lock, leave_at_the_first_marker)
BROKEN = (
    Protocol("one None per target", one_marker_per_target, leave_at_the_first_marker),
    Protocol("Nones placed up front", markers_up_front, leave_at_the_first_marker),
    Protocol("a bounced None", one_marker_for_all, bounce_the_marker),
    Protocol("a None put without waiting", markers_without_waiting, leave_at_the_first_marker),
    Protocol("two targets believe they are last", last_one_looked_up_after_the_lock, leave_at_the_first_marker),
)

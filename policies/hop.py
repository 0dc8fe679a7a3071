"""The mechanism of one stage boundary: lanes, producers that hold an offer, consumers that wait.

Only this file changes what waits in a hop. It decides nothing by itself: the policy names lanes, the dispatcher says
who may take and is told, through `Moves`, of every batch that moves. Ties go by the order in which workers asked.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from policies.policy import WAIT, LaneSpec, Policy, PolicyError, Shape


class Moves(Protocol):
    """Who is told of what moves through a hop, and who decides whether a consumer may take now."""

    def admitted(self, producer: int, batch: int, lane: int) -> None: ...

    def delivered(self, consumer: int, batch: int, lane: int) -> None: ...

    def may_take(self, consumer: int) -> bool: ...

    def window_buckets(self, consumer: int) -> frozenset[int]: ...

    def window_room(self, consumer: int) -> int: ...

    def open_producers(self) -> Iterable[int]: ...


class Lane:
    """One FIFO of waiting batches."""

    __slots__ = ("capacity", "name", "orphan", "reader", "waiting")

    def __init__(self, spec: LaneSpec) -> None:
        self.name = spec.name
        self.capacity = spec.capacity
        self.reader = spec.reader
        self.orphan = False
        self.waiting: deque[int] = deque()

    def __len__(self) -> int:
        return len(self.waiting)

    def read_by(self, consumer: int) -> bool:
        """Whether this consumer may take from the lane."""
        return self.reader is None or self.reader == consumer or self.orphan


class Hop:
    """Lanes between producers and consumers; also the `View` that the policy is shown."""

    def __init__(
        self, policy: Policy, shape: Shape, moves: Moves, bucket_of: Sequence[int], to_come: list[int]
    ) -> None:
        layout = policy.layout(shape)
        self.policy = policy
        self.lanes: tuple[Lane, ...] = tuple(Lane(spec) for spec in layout.lanes)
        self.bound = layout.bound
        self.consumers: list[int] = list(range(shape.consumers))
        self.to_come = to_come
        self.held: list[tuple[int, int, int]] = []
        """(producer, batch, lane) of offers that no lane admits yet, in the order they were made."""
        self.waiting: list[int] = []
        """Consumers that asked and have not been served, in the order they asked."""
        self._moves = moves
        self._bucket_of = bucket_of
        self._orphans: list[int] = []

    # What a policy may ask ------------------------------------------------------------------------------------

    def bucket(self, batch: int) -> int:
        return self._bucket_of[batch]

    def window_buckets(self, consumer: int) -> frozenset[int]:
        return self._moves.window_buckets(consumer)

    def window_room(self, consumer: int) -> int:
        return self._moves.window_room(consumer)

    def may_arrive(self, consumer: int, lane: int) -> bool:
        """Whether a batch can still enter `lane` without this consumer taking first.

        A held offer for the lane counts only if the lane admits it now; a computing producer counts if its next
        offer may go there. When every open producer is blocked nothing arrives before somebody takes.
        """
        blocked = {producer for producer, _, _ in self.held}
        movers = (p for p in self._moves.open_producers() if p not in blocked)
        return self._fits(lane) and any(lane in self.policy.reach(p, self) for p in movers)

    # Inputs ---------------------------------------------------------------------------------------------------

    def offer(self, producer: int, batch: int) -> None:
        """A producer has a finished batch: admit it, or hold it until its lane has room."""
        lane = self._lane_for(producer, batch)
        if self._fits(lane):
            self._admit(producer, batch, lane)
        elif not self._hand_over(producer, batch, lane):
            self.held.append((producer, batch, lane))
        if self.waiting:
            self.serve()

    def take(self, consumer: int) -> None:
        """A consumer asks for one batch: deliver it, or let it wait its turn."""
        self.waiting.append(consumer)
        self._serve_at(len(self.waiting) - 1)
        if self.held:
            self.serve()

    def serve(self) -> None:
        """Deliver and admit until nothing more can move."""
        moved = True
        while moved:
            moved = False
            index = 0
            while index < len(self.waiting):
                if self._serve_at(index):
                    moved = True
                else:
                    index += 1
            if self.held and self._admit_held():
                moved = True

    # Losses ---------------------------------------------------------------------------------------------------

    def put_back(self, batch: int, lane: int) -> None:
        """A batch that was taken waits again, first in its lane and outside capacity."""
        self.lanes[lane].waiting.appendleft(batch)

    def lose_consumer(self, consumer: int) -> None:
        """Its lanes are drained by the survivors; offers held for them are dealt again."""
        self.consumers.remove(consumer)
        self.waiting = [c for c in self.waiting if c != consumer]
        for index, lane in enumerate(self.lanes):
            if lane.reader == consumer:
                lane.orphan = True
                self._orphans.append(index)
        if not self.consumers:
            return
        held, self.held = self.held, []
        for producer, batch, index in held:
            again = self._lane_for(producer, batch) if self.lanes[index].orphan else index
            self.held.append((producer, batch, again))

    def withdraw(self, producer: int) -> int | None:
        """The producer is lost: forget the batch it holds and return it."""
        for index, (owner, batch, _) in enumerate(self.held):
            if owner == producer:
                del self.held[index]
                return batch
        return None

    def remove(self, batches: Iterable[int]) -> list[tuple[int, int]]:
        """Take these batches out of their lanes; returns (batch, lane) for those that waited."""
        gone = set(batches)
        found = []
        for index, lane in enumerate(self.lanes):
            found += [(batch, index) for batch in lane.waiting if batch in gone]
            lane.waiting = deque(batch for batch in lane.waiting if batch not in gone)
        return found

    # What the dispatcher asks ---------------------------------------------------------------------------------

    def lane_for(self, producer: int, batch: int) -> int:
        """The lane the policy gives a batch that comes back."""
        return self._lane_for(producer, batch)

    def reachable(self, consumer: int) -> bool:
        """Whether any batch, waiting, held or still to come, can reach this consumer. If not, it is dry."""
        lanes = self.lanes
        if any(lane.waiting and lane.read_by(consumer) for lane in lanes):
            return True
        if any(lanes[lane].read_by(consumer) for _, _, lane in self.held):
            return True
        for producer in self._moves.open_producers():
            if any(lanes[lane].read_by(consumer) for lane in self.policy.reach(producer, self)):
                return True
        return False

    # Inside ---------------------------------------------------------------------------------------------------

    def _fits(self, index: int) -> bool:
        waiting = len(self.lanes[index].waiting)
        if self.bound is None:
            return waiting < self.lanes[index].capacity
        total = reserved = 0
        for k, lane in enumerate(self.lanes):
            count = len(lane.waiting)
            total += count
            reserved += count or self._to_be_admitted(k)
        return total < self.bound and (waiting == 0 or reserved < self.bound)

    def _to_be_admitted(self, lane: int) -> bool:
        """Whether the lane keeps a reserved slot: batches of its bucket are still to come, or held."""
        return self.to_come[lane] > 0 or any(held == lane for _, _, held in self.held)

    def _admit(self, producer: int, batch: int, lane: int) -> None:
        self.lanes[lane].waiting.append(batch)
        self._moves.admitted(producer, batch, lane)

    def _admit_held(self) -> bool:
        for index, (producer, batch, lane) in enumerate(self.held):
            if self._fits(lane):
                del self.held[index]
                self._admit(producer, batch, lane)
                return True
            if self._hand_over(producer, batch, lane):
                del self.held[index]
                return True
        return False

    def _hand_over(self, producer: int, batch: int, index: int) -> bool:
        """Give the batch through a lane of capacity 0 to a consumer that waits for it, if there is one."""
        lane = self.lanes[index]
        if lane.capacity > 0 or lane.waiting:
            return False
        lane.waiting.append(batch)
        for position, consumer in enumerate(self.waiting):
            if self._moves.may_take(consumer) and self._choose(consumer) == index:
                self._moves.admitted(producer, batch, index)
                del self.waiting[position]
                self._moves.delivered(consumer, lane.waiting.popleft(), index)
                return True
        lane.waiting.pop()
        return False

    def _serve_at(self, position: int) -> bool:
        """Deliver to the consumer at this position of the waiting line, if it may take and finds something."""
        consumer = self.waiting[position]
        if not self._moves.may_take(consumer):
            return False
        lane = self._choose(consumer)
        if lane == WAIT:
            return False
        del self.waiting[position]
        self._moves.delivered(consumer, self.lanes[lane].waiting.popleft(), lane)
        return True

    def _choose(self, consumer: int) -> int:
        for index in self._orphans:
            if self.lanes[index].waiting:
                return index
        lane = self.policy.take(consumer, self)
        if lane != WAIT:
            self._check_take(consumer, lane)
        return lane

    def _lane_for(self, producer: int, batch: int) -> int:
        lane = self.policy.put(producer, batch, self)
        if not 0 <= lane < len(self.lanes) or self.lanes[lane].orphan:
            rule = f"a lane from 0 to {len(self.lanes) - 1} whose reader lives"
            raise PolicyError(f"{type(self.policy).__name__}.put answered {lane!r} for batch {batch}: give {rule}")
        return lane

    def _check_take(self, consumer: int, lane: int) -> None:
        if not 0 <= lane < len(self.lanes) or not self.lanes[lane].waiting:
            raise PolicyError(
                f"{type(self.policy).__name__}.take answered {lane!r} for consumer {consumer}: "
                "give a lane with a waiting batch, or WAIT"
            )
        if not self.lanes[lane].read_by(consumer):
            raise PolicyError(
                f"{type(self.policy).__name__}.take gave consumer {consumer} lane {self.lanes[lane].name!r}, "
                f"which only consumer {self.lanes[lane].reader} reads"
            )



"""The mechanism of one stage boundary: lanes, producers that hold an offer, consumers that wait.

Only this file changes what waits in a hop. It decides nothing by itself: the policy names lanes, the dispatcher says
who may take and is told, through `Moves`, of every batch that moves. Ties go by the order in which workers asked.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from policies.errors import PolicyError
from policies.policy import WAIT, LaneSpec, Layout, Policy, Shape


class Moves:
    """Who is told of what moves through a hop, and who decides whether a consumer may take now."""

    def admitted(self, producer: int, batch: int, lane: int) -> None:
        """A lane admits the producer's batch."""
        raise NotImplementedError

    def delivered(self, consumer: int, batch: int, lane: int) -> None:
        """The consumer gets the batch."""
        raise NotImplementedError

    def may_take(self, consumer: int) -> bool:
        """Whether the consumer may be given a batch now."""
        raise NotImplementedError

    def window_buckets(self, consumer: int) -> frozenset[int]:
        """The buckets that the step of the consumer's next take holds already."""
        raise NotImplementedError

    def window_room(self, consumer: int) -> int:
        """How many places that step has left."""
        raise NotImplementedError

    def open_producers(self) -> Iterable[int]:
        """Those that may still make an offer."""
        raise NotImplementedError

    def arriving(self) -> Iterable[int]:
        """Those of them whose next offer comes although no consumer takes anything."""
        raise NotImplementedError


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


class Reached:
    """The consumers that may take from some of these lanes; lanes are looked at once, and only as far as is asked."""

    __slots__ = ("_all", "_found", "_lanes", "_left")

    def __init__(self, lanes: Sequence[Lane], some: Iterator[int]) -> None:
        self._lanes = lanes
        self._left = some
        self._found: set[int] = set()
        self._all = False
        """Whether all may take from one of them."""

    def __contains__(self, consumer: int) -> bool:
        if self._all or consumer in self._found:
            return True
        for index in self._left:
            lane = self._lanes[index]
            if lane.reader is None or lane.orphan:
                self._all = True
                return True
            self._found.add(lane.reader)
            if lane.reader == consumer:
                return True
        return False


class Hop:
    """Lanes between producers and consumers; also the `View` that the policy is shown."""

    def __init__(
        self, policy: Policy, shape: Shape, moves: Moves, bucket_of: Sequence[int], to_come: list[int]
    ) -> None:
        layout = policy.layout(shape)
        _check_layout(policy, layout, shape)
        self.policy = policy
        self.lanes: tuple[Lane, ...] = tuple(Lane(spec) for spec in layout.lanes)
        self.bound = layout.bound
        self.consumers: list[int] = list(range(shape.consumers))
        self.to_come = to_come
        self.held: list[tuple[int, int, int]] = []
        """(producer, batch, lane) of offers that no lane admits yet, in the order they were made."""
        self.waiting: list[int] = []
        """Consumers that asked and have not been served, in the order they asked."""
        self.declined = False
        """Whether the policy let a consumer wait although it could take: it must be asked again."""
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

        When every open producer is blocked, or waits for one that is, nothing arrives before somebody takes.
        """
        return self._fits(lane) and any(lane in self.policy.reach(p, self) for p in self._moves.arriving())

    # Inputs ---------------------------------------------------------------------------------------------------

    def offer(self, producer: int, batch: int) -> None:
        """A producer has a finished batch: admit it, or hold it until its lane has room."""
        lane = self.lane_for(producer, batch)
        if self._fits(lane):
            self.lanes[lane].waiting.append(batch)
            self._moves.admitted(producer, batch, lane)
        elif not self._hand_over(producer, batch, lane):
            self.held.append((producer, batch, lane))
        if self.waiting:
            self.serve()

    def take(self, consumer: int) -> None:
        """A consumer asks for one batch: deliver it, or let it wait its turn."""
        if not self._serve_one(consumer):
            self.waiting.append(consumer)
        if self.held:
            self.serve()

    def wait(self, consumer: int) -> None:
        """A consumer asks for one batch, and is served with all the others by the next `serve`."""
        self.waiting.append(consumer)

    def serve(self) -> None:
        """Deliver and admit until nothing more can move."""
        moved = True
        while moved:
            moved = self.declined = False
            for consumer in tuple(self.waiting):
                if self._serve_one(consumer):
                    self.waiting.remove(consumer)
                    moved = True
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
            again = self.lane_for(producer, batch) if self.lanes[index].orphan else index
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
        """The lane the policy gives to a batch that is offered, or that comes back."""
        lane = self.policy.put(producer, batch, self)
        if type(lane) is not int or not 0 <= lane < len(self.lanes) or self.lanes[lane].orphan:
            rule = f"a lane from 0 to {len(self.lanes) - 1} whose reader lives"
            raise PolicyError(f"{named(self.policy)}.put answered {lane!r} for batch {batch}: give {rule}")
        return lane

    def reached(self) -> "Reached":
        """Whom any batch, waiting, held or still to come, can reach; the others are dry. True until something moves."""
        return Reached(self.lanes, self._lanes_in_use())

    def _lanes_in_use(self) -> Iterator[int]:
        """The lanes in which batches wait, those that offers are held for, and those that may still get some."""
        for index, lane in enumerate(self.lanes):
            if lane.waiting:
                yield index
        for _, _, index in self.held:
            yield index
        for producer in self._moves.open_producers():
            yield from self.policy.reach(producer, self)

    # Inside ---------------------------------------------------------------------------------------------------

    def _fits(self, index: int) -> bool:
        lane = self.lanes[index]
        if self.bound is None:
            return len(lane.waiting) < lane.capacity
        total = reserved = 0
        for k, each in enumerate(self.lanes):
            count = len(each.waiting)
            total += count
            reserved += count or self._to_be_admitted(k)
        return total < self.bound and (not lane.waiting or reserved < self.bound)

    def _to_be_admitted(self, lane: int) -> bool:
        """Whether the lane keeps a reserved slot: batches of its bucket are still to come, or held."""
        return self.to_come[lane] > 0 or any(held == lane for _, _, held in self.held)

    def _admit_held(self) -> bool:
        for index, (producer, batch, lane) in enumerate(self.held):
            if self._fits(lane):
                del self.held[index]
                self.lanes[lane].waiting.append(batch)
                self._moves.admitted(producer, batch, lane)
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
        for consumer in self.waiting:
            chosen = self._choose(consumer) if self._moves.may_take(consumer) else WAIT
            if chosen == WAIT:
                continue
            self.waiting.remove(consumer)
            if chosen == index:
                self._moves.admitted(producer, batch, index)
                self._moves.delivered(consumer, lane.waiting.popleft(), index)
                return True
            lane.waiting.pop()  # an answer is always carried out: the batch waits for another consumer
            self._moves.delivered(consumer, self.lanes[chosen].waiting.popleft(), chosen)
            return self._hand_over(producer, batch, index)
        lane.waiting.pop()
        return False

    def _serve_one(self, consumer: int) -> bool:
        """Deliver to the consumer, if it may take and finds something."""
        if not self._moves.may_take(consumer):
            return False
        lane = self._choose(consumer)
        if lane == WAIT:
            if not self.declined:
                self.declined = any([lane.waiting and lane.read_by(consumer) for lane in self.lanes])
            return False
        self._moves.delivered(consumer, self.lanes[lane].waiting.popleft(), lane)
        return True

    def _choose(self, consumer: int) -> int:
        for index in self._orphans:
            if self.lanes[index].waiting:
                return index
        index = self.policy.take(consumer, self)
        if index == WAIT:
            return WAIT
        if type(index) is not int or not 0 <= index < len(self.lanes) or not self.lanes[index].waiting:
            raise PolicyError(
                f"{named(self.policy)}.take answered {index!r} for consumer {consumer}: "
                "give a lane with a waiting batch, or WAIT"
            )
        lane = self.lanes[index]
        if lane.reader is not None and lane.reader != consumer:
            raise PolicyError(
                f"{named(self.policy)}.take gave consumer {consumer} lane {lane.name!r}, "
                f"which only consumer {lane.reader} reads"
            )
        return index


def named(policy: Policy) -> str:
    """The policy's name for messages: its own, or its class."""
    return str(getattr(policy, "name", type(policy).__name__))


def _check_layout(policy: Policy, layout: Layout, shape: Shape) -> None:
    """Refuse lanes that nobody can use: each fault names what was answered and the rule."""
    lanes, bound = layout.lanes, layout.bound
    faults = [] if lanes else ["no lane: give at least one"]
    for lane in lanes:
        if type(lane.capacity) is not int or lane.capacity < 0:
            faults.append(f"capacity {lane.capacity!r} for lane {lane.name!r}: give an integer, at least 0")
        if lane.reader is not None and lane.reader not in range(shape.consumers):
            rule = f"give None or a number from 0 to {shape.consumers - 1}"
            faults.append(f"reader {lane.reader!r} for lane {lane.name!r}: {rule}")
    if bound is not None and (len(lanes) != len(shape.buckets) or bound < len(lanes)):
        rule = f"a bound needs one lane for each of the {len(shape.buckets)} buckets, and room for one batch in each"
        faults.append(f"a bound of {bound!r} over {len(lanes)} lanes: {rule}")
    if faults:
        raise PolicyError(f"{named(policy)}.layout answered {'; '.join(faults)}")

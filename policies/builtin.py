"""The four built-in policies: round_robin, rotating, shared, bucketed."""

from collections.abc import Sequence

from policies.policy import WAIT, LaneSpec, Layout, Policy, Shape, View


def _lane_per_consumer(shape: Shape, prefix: str) -> Layout:
    lanes = (
        LaneSpec(name=f"{prefix}/{c}", capacity=shape.per_lane(), reader=c) for c in range(shape.consumers)
    )
    return Layout(lanes=tuple(lanes))


class RoundRobin:
    """One lane per drafter; target *i* always feeds drafter *i mod D* (over the live drafters)."""

    def layout(self, shape: Shape) -> Layout:
        return _lane_per_consumer(shape, "lane")

    def put(self, producer: int, batch: int, view: View) -> int:
        live = view.consumers
        return live[producer % len(live)]

    def take(self, consumer: int, view: View) -> int:
        return consumer if len(view.lanes[consumer]) else WAIT

    def reach(self, producer: int, view: View) -> Sequence[int]:
        return (self.put(producer, 0, view),)


class Rotating:
    """One lane per consumer; the *k*-th offer goes to lane *k mod D*, dealt when it is made."""

    def __init__(self) -> None:
        self._dealt = 0

    def layout(self, shape: Shape) -> Layout:
        return _lane_per_consumer(shape, "lane")

    def put(self, producer: int, batch: int, view: View) -> int:
        live = view.consumers
        lane = live[self._dealt % len(live)]
        self._dealt += 1
        return lane

    def take(self, consumer: int, view: View) -> int:
        return consumer if len(view.lanes[consumer]) else WAIT

    def reach(self, producer: int, view: View) -> Sequence[int]:
        live = view.consumers
        turns = min(len(live), sum(view.to_come))
        return [live[(self._dealt + k) % len(live)] for k in range(turns)]


class Shared:
    """One lane from which every consumer takes; capacity = depth × max(consumers, 2)."""

    def layout(self, shape: Shape) -> Layout:
        capacity = shape.depth * max(shape.consumers, 2) if shape.capacity is None else shape.capacity
        return Layout(lanes=(LaneSpec(name="shared", capacity=capacity),))

    def put(self, producer: int, batch: int, view: View) -> int:
        return 0

    def take(self, consumer: int, view: View) -> int:
        return 0 if len(view.lanes[0]) else WAIT

    def reach(self, producer: int, view: View) -> Sequence[int]:
        return (0,)


class Bucketed:
    """One lane per length bucket under one bound; drafters rotate over the non-empty buckets.

    Each drafter has a cursor of its own that starts at its own offset: a shared cursor aligns with the number of
    drafters and leaves their steps unmixed. `prefer` takes the next non-empty bucket and never waits, so the oldest
    batch of a bucket is passed over at most D × (buckets − 1) times: each drafter's cursor comes past it within
    that many takes. `require` waits for a bucket that the open step does not hold yet, while it needs one, only as
    long as such a bucket can still arrive without this drafter taking first: that wait ends by a completion or
    by the condition turning false, never by another wait, so it cannot be part of a deadlock.
    """

    def __init__(self) -> None:
        self._cursor: list[int] = []
        self._require = 0

    def layout(self, shape: Shape) -> Layout:
        count = len(shape.buckets)
        bound = shape.depth * count if shape.capacity is None else shape.capacity
        self._cursor = [c % count for c in range(shape.consumers)]
        self._require = shape.min_buckets if shape.mix == "require" else 0
        lanes = tuple(LaneSpec(name=name, capacity=bound) for name in shape.buckets)
        return Layout(lanes=lanes, bound=bound)

    def put(self, producer: int, batch: int, view: View) -> int:
        return view.bucket(batch)

    def take(self, consumer: int, view: View) -> int:
        lane = self._next(consumer, view) if not self._require else self._required(consumer, view)
        if lane != WAIT:
            self._cursor[consumer] = (lane + 1) % len(view.lanes)
        return lane

    def reach(self, producer: int, view: View) -> Sequence[int]:
        return [bucket for bucket, count in enumerate(view.to_come) if count]

    def _next(self, consumer: int, view: View, skip: frozenset[int] = frozenset()) -> int:
        lanes = view.lanes
        start, count = self._cursor[consumer], len(lanes)
        for k in range(start, start + count):
            lane = k % count
            if len(lanes[lane]) and lane not in skip:
                return lane
        return WAIT

    def _required(self, consumer: int, view: View) -> int:
        """The next bucket, held to new ones while the step's last places are needed for them."""
        held = view.window_buckets(consumer)
        missing = self._require - len(held)
        if missing < view.window_room(consumer) or missing <= 0:
            return self._next(consumer, view)
        lane = self._next(consumer, view, skip=held)
        if lane != WAIT:
            return lane
        others = (b for b in range(len(view.lanes)) if b not in held)
        if any(view.may_arrive(consumer, b) for b in others):
            return WAIT
        return self._next(consumer, view)


BUILTIN: dict[str, type[Policy]] = {
    "round_robin": RoundRobin,
    "rotating": Rotating,
    "shared": Shared,
    "bucketed": Bucketed,
}

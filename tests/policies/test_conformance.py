"""The conformance kit: it passes what is right, and catches what is not with a small case and a clear message."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from policies.builtin import BUILTIN, Bucketed, RoundRobin, Shared
from policies.conformance import ConformanceError, conformance_test
from policies.policy import WAIT, LaneSpec, Layout, Policy, Shape, View

ROOT = Path(__file__).parents[2]


def readme_policy() -> type[Policy]:
    """The policy that the README shows."""
    source = next(text for text in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S))
    names: dict[str, type[Policy]] = {}
    exec(source, names)
    return names["ShortestLane"]


CONFORMING = {**BUILTIN, "the README's": readme_policy()}
"""A new policy is tested by adding its name here (a built-in one is there already)."""


@pytest.mark.parametrize("name", CONFORMING)
def test_every_policy_of_the_table_conforms_to_the_rules(name: str) -> None:
    conformance_test(CONFORMING[name])()


class LaneEach:
    """One lane per bucket, and no bound: what the broken policies below have in common."""

    def layout(self, shape: Shape) -> Layout:
        return Layout(lanes=tuple(LaneSpec(name=name, capacity=shape.per_lane()) for name in shape.buckets))

    def put(self, producer: int, batch: int, view: View) -> int:
        return view.bucket(batch)

    def take(self, consumer: int, view: View) -> int:
        return next((k for k, lane in enumerate(view.lanes) if len(lane)), WAIT)

    def reach(self, producer: int, view: View) -> Sequence[int]:
        return range(len(view.lanes))


class NeverTakesOneLane(LaneEach):
    """Drops whatever is in the second lane."""

    def take(self, consumer: int, view: View) -> int:
        return 0 if len(view.lanes[0]) else WAIT


class LowestLaneFirst(LaneEach):
    """The second lane starves while the first is refilled."""


class FirstConsumerFirst(Shared):
    """The second consumer waits as long as anything can still come."""

    def take(self, consumer: int, view: View) -> int:
        if consumer and 0 in view.consumers and view.may_arrive(consumer, 0):
            return WAIT
        return super().take(consumer, view)


class TakesFromEmptyLanes(Shared):
    """Hands out a batch that is not there."""

    def take(self, consumer: int, view: View) -> int:
        return 0


class IgnoresCapacity(RoundRobin):
    """Over-fills: a lane more than the user's number."""

    def layout(self, shape: Shape) -> Layout:
        lanes = super().layout(shape).lanes
        return Layout(lanes=tuple(LaneSpec(name=x.name, capacity=x.capacity + 1, reader=x.reader) for x in lanes))


class IgnoresDepth(Shared):
    """Over-fills where only a depth is given."""

    def layout(self, shape: Shape) -> Layout:
        return super().layout(shape) if shape.capacity is not None else Layout(lanes=(LaneSpec(name="x", capacity=99),))


class IgnoresTheBound(Bucketed):
    """Over-fills: twice the user's number over all lanes."""

    def layout(self, shape: Shape) -> Layout:
        layout = super().layout(shape)
        assert layout.bound is not None
        return Layout(lanes=layout.lanes, bound=2 * layout.bound)


class MovesBatchesItself(Shared):
    """Takes a batch out of the deque behind the view."""

    def take(self, consumer: int, view: View) -> int:
        if len(view.lanes[0]) > 1:
            view.lanes[0].waiting.rotate()  # type: ignore[attr-defined]
        return super().take(consumer, view)


class WidensItsLane(Shared):
    """Changes a capacity while the run goes on."""

    def put(self, producer: int, batch: int, view: View) -> int:
        view.lanes[0].capacity += 1  # type: ignore[misc]
        return 0


class CountsItsWaits(Shared):
    """Changes state when it answers WAIT."""

    def __init__(self) -> None:
        self.waits = [0]

    def take(self, consumer: int, view: View) -> int:
        lane = super().take(consumer, view)
        self.waits[0] += lane == WAIT
        return lane


class Throws(LaneEach):
    """Asks a global source of chance."""

    def take(self, consumer: int, view: View) -> int:
        waiting = [k for k, lane in enumerate(view.lanes) if len(lane)]
        return random.choice(waiting) if waiting else WAIT


class OneMemoryForAll(LaneEach):
    """State that belongs to the class: two instances disturb each other."""

    turns: ClassVar[list[int]] = [0]

    def take(self, consumer: int, view: View) -> int:
        waiting = [k for k, lane in enumerate(view.lanes) if len(lane)]
        self.turns[0] += bool(waiting)
        return waiting[self.turns[0] % len(waiting)] if waiting else WAIT


class OrderOfASet(RoundRobin):
    """Picks by the order of a set of strings, which differs between processes."""

    def put(self, producer: int, batch: int, view: View) -> int:
        names = {view.lanes[lane].name for lane in view.consumers}
        return [lane.name for lane in view.lanes].index(next(iter(names)))

    def reach(self, producer: int, view: View) -> Sequence[int]:
        return view.consumers


class ByAddress(OrderOfASet):
    """Picks by id()."""

    def __init__(self) -> None:
        self.marks = [object() for _ in range(8)]

    def put(self, producer: int, batch: int, view: View) -> int:
        return min(view.consumers, key=lambda lane: hash(self.marks[(lane + batch) % 8]) % 97)


class HidesALane(RoundRobin):
    """`reach` names a lane that its batches do not go to."""

    def put(self, producer: int, batch: int, view: View) -> int:
        return view.consumers[batch % len(view.consumers)]

    def reach(self, producer: int, view: View) -> Sequence[int]:
        return view.consumers[:1]


class CannotLoseAnybody(RoundRobin):
    """Fails when a drafter is lost."""

    def put(self, producer: int, batch: int, view: View) -> int:
        return list(view.consumers).index(producer % len(view.lanes))


BROKEN: dict[type[Policy], str] = {
    NeverTakesOneLane: r"WAIT for consumer \d for ever, beside .*'b1'.*\nrule: every waiting batch is taken",
    LowestLaneFirst: r"take starves lane 'b1': batch \d+, the oldest there, was passed over \d+ times",
    FirstConsumerFirst: r"take starves consumer 1: \d+ times in a row it was told to WAIT beside a waiting batch",
    TakesFromEmptyLanes: r"take answered 0 for consumer 0: give a lane with a waiting batch, or WAIT",
    IgnoresCapacity: r"layout gave lanes of capacity \[1\] for capacity=0\nrule: Shape.capacity is the most",
    IgnoresDepth: r"layout lets 99 batches wait in 1 lane\(s\) .* at depth=1\nrule: at most depth",
    IgnoresTheBound: r"layout gave a bound of \d for capacity=\d\nrule",
    MovesBatchesItself: r"take\(consumer 0\) changed what it was shown: lane 'shared' from \[0, 1\] to \[1, 0\]",
    WidensItsLane: r"put\(producer 0, batch 0\) changed what it was shown: capacity, reader of 'shared'",
    CountsItsWaits: r"take answered WAIT for consumer 0 and changed its own state\nbefore: .*\[0\].*\nafter: .*\[1\]",
    Throws: r"Throws is not deterministic: told the same, a second instance led to",
    OneMemoryForAll: r"OneMemoryForAll is not deterministic: told the same",
    OrderOfASet: r"OrderOfASet is not deterministic: two processes with different PYTHONHASHSEED",
    ByAddress: r"ByAddress (is not deterministic: told the same|broke a rule once and not the next time)",
    HidesALane: r"put sent batch 1 of producer 0 to lane 1, but reach\(0\) had named only the lanes \[0\]\nrule: reach",
    CannotLoseAnybody: r"put raised ValueError: .*\nasked: put\(producer \d, batch \d\)",
}


@pytest.mark.parametrize("policy", BROKEN, ids=lambda policy: policy.__name__)
def test_a_broken_policy_is_caught_with_its_rule_and_a_small_case(policy: type[Policy]) -> None:
    with pytest.raises(ConformanceError, match=BROKEN[policy]) as caught:
        conformance_test(policy)()
    print(caught.value)
    assert policy is OrderOfASet or len(str(caught.value).splitlines()) < 60

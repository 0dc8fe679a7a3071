"""The conformance kit: it passes what is right, and catches what is not with a small case and a clear message."""

import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from policies.builtin import BUILTIN, Bucketed, Rotating, RoundRobin, Shared
from policies.conformance import ConformanceError, _Trial, conformance_test
from policies.effects import Effect, Step
from policies.ledger import HELD
from policies.policy import WAIT, LaneSpec, Layout, Policy, Shape, View
from policies.world import Action, Setup, World

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
    CannotLoseAnybody: r"(put|reach) raised ValueError: .*\nasked: (put|reach)\(producer \d",
}


@pytest.mark.parametrize("policy", BROKEN, ids=lambda policy: policy.__name__)
def test_a_broken_policy_is_caught_with_its_rule_and_a_small_case(policy: type[Policy]) -> None:
    with pytest.raises(ConformanceError, match=BROKEN[policy]) as caught:
        conformance_test(policy)()
    assert policy is OrderOfASet or len(str(caught.value).splitlines()) < 60


def test_a_bucket_is_passed_over_no_more_often_than_the_rotation_allows() -> None:
    """At most D × (non-empty buckets − 1) takes of other buckets, from when a batch is the oldest of its own."""
    waits: Counter[int] = Counter()
    for seed in range(150):
        rng = random.Random(seed)
        setup = bucketed_setup(rng, "prefer", sync=rng.choice(["none", "step", "pooled"]))
        policy = Rotation()
        world = World(setup, setup.dispatcher(dispatch=policy))
        drive(world, rng)
        assert policy.seen, f"seed {seed}: nothing was taken"
        for passed, others in policy.seen:
            assert passed <= setup.drafters * others, f"seed {seed}: passed over {passed} times, {others} other buckets"
            waits[passed] += 1
    assert max(waits) >= 4, "the bound is not reached for"


def test_a_required_mix_is_kept_while_the_remaining_data_allow_it() -> None:
    """A step's last places go to a bucket it holds only if no other waits, and no target that is free computes one."""
    mixed = short = 0
    for seed in range(150):
        rng = random.Random(seed)
        sync = rng.choice(["none", "step", "pooled"])
        setup = bucketed_setup(rng, "require", sync=sync, accumulate=rng.randint(2, 4))
        policy = Required()
        world = policy.world = World(setup, setup.dispatcher(dispatch=policy))
        for step in [effect for effect in drive(world, rng) if isinstance(effect, Step)]:
            if len(step.batches) < setup.accumulate * len(step.drafters):
                continue  # the data ended before it was full
            kinds = len({setup.buckets[batch] for batch in step.batches})
            enough = kinds >= min(setup.min_buckets, len(step.batches))
            mixed, short = mixed + enough, short + (not enough)
            assert enough or step.step in policy.excused, f"seed {seed}: {step} could be mixed"
    assert mixed > 10 * short > 0, f"{mixed} steps mixed, {short} not"


class Rotation(Bucketed):
    """Counts, for every batch that was the oldest of its bucket, the takes of others and the other buckets seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []
        self._passed: dict[int, int] = {}
        self._others: dict[int, set[int]] = {}

    def take(self, consumer: int, view: View) -> int:
        lane = super().take(consumer, view)
        if lane == WAIT:
            return lane
        nonempty = {k for k, each in enumerate(view.lanes) if len(each)}
        for k in nonempty:
            oldest = view.lanes[k].waiting[0]  # type: ignore[attr-defined]
            self._others.setdefault(oldest, set()).update(nonempty - {k})
            if k == lane:
                self.seen.append((self._passed.pop(oldest, 0), len(self._others.pop(oldest))))
            else:
                self._passed[oldest] = self._passed.get(oldest, 0) + 1
        return lane


class Required(Bucketed):
    """Notes the steps that took a bucket twice for lack of another; fails where there was another."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.excused: set[int] = set()

    def take(self, consumer: int, view: View) -> int:
        lane = super().take(consumer, view)
        held, room = view.window_buckets(consumer), view.window_room(consumer)
        setup = self.world.setup
        if lane in held and 0 < setup.min_buckets - len(held) >= room:
            waiting = {k for k, each in enumerate(view.lanes) if len(each)}
            assert waiting <= held, f"bucket {lane} was taken again though {waiting - held} wait"
            hands = [self.world.hand[t] for t, at in self.world.targets.items() if at == "computing"]
            coming = {setup.buckets[batch] for batch in hands} - held
            room_for = {k for k in coming if self.world.core.dispatch._fits(k)}
            assert not room_for, f"bucket {lane} was taken again though targets compute {room_for}"
            window = self.world.core.windows[consumer]
            ahead = window.room(consumer) <= 0
            self.excused.add(window._step_ahead(window.parts[consumer]) if ahead else window.step)
        return lane


def bucketed_setup(rng: random.Random, mix: str, sync: str, accumulate: int = 1) -> Setup:
    kinds = rng.randint(2, 4)
    return Setup(
        targets=rng.randint(1, 4),
        drafters=rng.randint(1, 3),
        buckets=(*range(kinds), *(rng.randrange(kinds) for _ in range(rng.randint(10, 40)))),
        policy="bucketed",
        mix=mix,
        min_buckets=rng.randint(2, min(3, kinds)),
        capacity=rng.randint(1, 3),
        sync=sync,
        accumulate=accumulate,
        prefetch=rng.randint(0, 2),
    )


def drive(world: World, rng: random.Random) -> list[Effect]:
    """Workers of different speeds, nothing goes wrong, to the end; all effects."""
    pace: dict[Action, float] = {}
    told: list[Effect] = []
    while world.ended is None:
        effects = world.tell(world.choose(rng, lambda action: pace.setdefault(action[:2], rng.choice([0.05, 1, 1, 5]))))
        world.follow(effects)
        world.check()
        told += effects
    return told


def test_nothing_else_in_the_package_imports_the_kit() -> None:
    kit = re.compile(r"^\s*(from|import) policies\.(conformance|watching|world)\b", re.M)
    users = {path.name for path in (ROOT / "policies").rglob("*.py") if kit.search(path.read_text())}
    assert users <= {"conformance.py"}


def test_without_hypothesis_the_kit_says_what_to_install() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import policies.conformance"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert told.returncode == 1 and "pip install hypothesis" in told.stderr


def test_a_refused_batch_that_comes_back_may_go_to_a_lane_that_reach_no_longer_named() -> None:
    """Found by Hypothesis: what was promised before a batch came back counts no more."""
    setup = Setup(targets=2, drafters=3, buckets=(0, 0, 0, 0, 0), capacity=0, sync="none")
    trial = _Trial(Rotating, setup, False, None)
    for action in (
        ("load", 1), ("target_ready", 0), ("target_lost", 1), ("load", 2), ("loader_stops",), ("offer", 0),
        ("drafter_ready", 0), ("offer", 0), ("received", 0, 0), ("computed", 0), ("drafter_ready", 1),
        ("refused", 1, 0), ("offer", 0), ("drafter_ready", 2), ("offer", 0),
    ):  # fmt: skip
        trial.do(action)
    assert trial.world.place[1] == HELD


class _NoLayout(Shared):
    def layout(self, shape: Shape) -> Layout:
        return None  # type: ignore[return-value]


class _TextCapacity(Shared):
    def layout(self, shape: Shape) -> Layout:
        return Layout(lanes=(LaneSpec(name="all", capacity="3"),))  # type: ignore[arg-type]


class _Exits(Shared):
    def put(self, producer: int, batch: int, view: View) -> int:
        raise SystemExit


class _NeedsAnArgument(Shared):
    def __init__(self, depth: int) -> None:
        self.depth = depth


@pytest.mark.parametrize("policy", [_NoLayout, _TextCapacity, _Exits, _NeedsAnArgument])
def test_a_policy_that_cannot_be_used_at_all_fails_as_any_other_does(policy: type[Policy]) -> None:
    with pytest.raises(ConformanceError):
        conformance_test(policy)()

"""The dispatcher, input by input: what it answers, and what it refuses."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from policies.builtin import Rotating, RoundRobin
from policies.dispatcher import Dispatcher
from policies.effects import (
    Admit,
    Assign,
    Deliver,
    Drop,
    Effect,
    End,
    Flush,
    Join,
    Loaded,
    PutBack,
    Recall,
    Recompute,
    Step,
)
from policies.errors import PolicyError, ProtocolError
from policies.ledger import FEED, HELD, RECEIVED, STAGED, TAKEN, TARGET, TRAINED
from policies.policy import WAIT, LaneSpec, Layout, Policy, Shape, View
from policies.world import Setup, World

POLICIES = ["round_robin", "rotating", "shared", "bucketed"]
SYNCS = ["none", "step", "pooled"]


class Directed:
    """A feed with a lane for each target, which gives a batch to the target that the test names."""

    target = 0

    def layout(self, shape: Shape) -> Layout:
        return Layout(lanes=tuple(LaneSpec(name=str(c), capacity=99, reader=c) for c in range(shape.consumers)))

    def put(self, producer: int, batch: int, view: View) -> int:
        return self.target if self.target in view.consumers else view.consumers[0]

    def take(self, consumer: int, view: View) -> int:
        return consumer if len(view.lanes[consumer]) else WAIT

    def reach(self, producer: int, view: View) -> Sequence[int]:
        return view.consumers


def dispatcher(batches: int | Sequence[int] = 8, **kwargs: object) -> Dispatcher:
    """A fresh one, whose feed goes to the targets as the test says unless it names a policy."""
    return setup(batches, **kwargs).dispatcher(None if "feed" in kwargs else Directed())


def setup(batches: int | Sequence[int] = 8, **kwargs: object) -> Setup:
    buckets = (0,) * batches if isinstance(batches, int) else tuple(batches)
    return Setup(buckets=buckets, **{"sync": "none", "feed_depth": 9, **kwargs})  # type: ignore[arg-type]


def assign(core: Dispatcher, target: int, batch: int) -> None:
    """The target, which starts now if it has not yet, is given the batch."""
    if target not in core._ready_targets:
        core.target_ready(target)
    if isinstance(core.feed.policy, Directed):
        core.feed.policy.target = target
    told = core.load(batch, 1)
    assert [effect.batch for effect in told if isinstance(effect, Assign) and effect.target == target] == [batch]


def produce(core: Dispatcher, target: int, batch: int) -> list[Effect]:
    """The target is given the batch, computes and offers it."""
    assign(core, target, batch)
    return core.offer(target, batch)


def train(core: Dispatcher, drafter: int, batch: int) -> list[Effect]:
    core.received(drafter, batch)
    return core.computed(drafter, batch)


def moves(effects: Sequence[Effect]) -> list[tuple[str, int, int]]:
    """Admissions and deliveries as (which, worker, batch)."""
    found = [("admit", e.target, e.batch) if isinstance(e, Admit) else e for e in effects]
    found = [("deliver", e.drafter, e.batch) if isinstance(e, Deliver) else e for e in found]
    return [e for e in found if isinstance(e, tuple)]


def lanes(effects: Sequence[Effect]) -> list[int]:
    return [effect.lane for effect in effects if isinstance(effect, Admit)]


def finish(world: World, seed: int = 0) -> World:
    """Let the workers go on, in a random order, to the end."""
    rng = random.Random(seed)
    while world.ended is None:
        world.do(world.choose(rng))
    return world


def deliveries(effects: Sequence[Effect]) -> list[Deliver]:
    return [effect for effect in effects if isinstance(effect, Deliver)]


def trained(world: World) -> list[int]:
    owners = Counter(world.trained_by.values())
    return [owners[drafter] for drafter in range(world.setup.drafters)]


# Order of service ---------------------------------------------------------------------------------------------


def test_drafters_are_served_in_the_order_they_asked() -> None:
    core = dispatcher(drafters=2)
    core.drafter_ready(1)
    core.drafter_ready(0)
    assert moves(produce(core, 0, 0)) == [("admit", 0, 0), ("deliver", 1, 0)]
    assert moves(produce(core, 0, 1)) == [("admit", 0, 1), ("deliver", 0, 1)]


def test_a_drafter_asks_again_when_it_has_computed_a_batch_and_joined() -> None:
    core = dispatcher(drafters=2, prefetch=1, capacity=8)
    for batch in range(4):
        produce(core, 0, batch)
    assert core.drafter_ready(1) == [Deliver(1, 0, 0, 0, 1, True), Deliver(1, 1, 0, 0, 3, True)]
    assert train(core, 1, 0) == [Step(1, (1,), (0,))]
    assert core.dispatch.waiting == [1], "one batch ahead is all that it may have while the step is applied"
    assert core.commit(1, (0,)) == [Deliver(1, 2, 0, 0, 5, True)]
    assert train(core, 1, 1) == [Step(3, (1,), (1,))]
    assert core.commit(3, (1,)) == [Deliver(1, 3, 0, 0, 7, True)]
    assert core.dispatch.waiting == []
    core = dispatcher(drafters=1, prefetch=1, capacity=8, accumulate=2)
    for batch in range(3):
        produce(core, 0, batch)
    core.drafter_ready(0)
    assert train(core, 0, 0) == [Deliver(0, 2, 0, 0, 1, False)]


def test_targets_are_served_in_the_order_they_asked() -> None:
    core = dispatcher(targets=3, feed="shared")
    for target in (2, 0, 1):
        assert core.target_ready(target) == []
    assert [core.load(batch, 1) for batch in range(3)] == [
        [Loaded(batch, 0), Assign(target, batch, 0)] for batch, target in enumerate((2, 0, 1))
    ]


def test_a_target_asks_again_when_its_batch_is_admitted() -> None:
    core = dispatcher(targets=2, feed="shared", capacity=1)
    core.target_ready(0), core.target_ready(1)
    core.load(0, 4)
    assert core.offer(1, 1) == [Admit(1, 1, 0), Assign(1, 2, 0)]
    assert core.offer(0, 0) == [], "held: it computes nothing meanwhile"
    assert core.drafter_ready(0) == [Deliver(0, 1, 0, 1, 0, True), Admit(0, 0, 0), Assign(0, 3, 0)]
    assert core.offer(1, 2) == []
    train(core, 0, 1)
    assert core.commit(0, (1,)) == [Deliver(0, 0, 0, 0, 1, True), Admit(1, 2, 0)]
    assert core.feed.waiting == [1]


def test_a_batch_handed_over_lets_its_target_ask_before_the_drafter_has_it() -> None:
    core = dispatcher(capacity=0, feed="shared")
    core.target_ready(0), core.drafter_ready(0), core.load(0, 2)
    assert core.offer(0, 0) == [Admit(0, 0, 0), Assign(0, 1, 0), Deliver(0, 0, 0, 0, 0, True)]


def test_held_offers_are_admitted_in_the_order_they_were_made() -> None:
    core = dispatcher(targets=3, drafters=2, capacity=1)
    assert moves(produce(core, 0, 0)) == [("admit", 0, 0)]
    assert produce(core, 2, 1) == produce(core, 1, 2) == []
    assert moves(core.drafter_ready(0)) == [("deliver", 0, 0), ("admit", 2, 1)]
    assert moves(core.drafter_ready(1)) == [("deliver", 1, 1), ("admit", 1, 2)]


def test_capacity_0_hands_over_to_a_waiting_drafter_only() -> None:
    core = dispatcher(capacity=0)
    assert produce(core, 0, 0) == []
    assert moves(core.drafter_ready(0)) == [("admit", 0, 0), ("deliver", 0, 0)]
    train(core, 0, 0)
    core.commit(0, [0])
    assert moves(produce(core, 0, 1)) == [("admit", 0, 1), ("deliver", 0, 1)]
    assert produce(core, 0, 2) == []


def test_capacity_0_serves_the_drafters_in_the_order_they_asked() -> None:
    core = dispatcher(drafters=3, capacity=0)
    for drafter in (2, 0, 1):
        core.drafter_ready(drafter)
    assert [moves(produce(core, 0, batch))[1] for batch in range(3)] == [
        ("deliver", 2, 0), ("deliver", 0, 1), ("deliver", 1, 2)
    ]  # fmt: skip


# The loader ---------------------------------------------------------------------------------------------------


def test_the_loader_waits_for_room_and_is_answered_when_there_is_some() -> None:
    core = dispatcher(feed_depth=1, targets=1, feed="shared")
    capacity = core.feed.lanes[0].capacity
    for batch in range(capacity):
        assert core.load(batch, 1) == [Loaded(batch, 0)]
    assert core.load(capacity, 1) == []
    assert core.target_ready(0) == [Assign(0, 0, 0), Loaded(capacity, 0)]


def test_the_loader_is_answered_for_the_last_of_the_batches_that_it_has_ready_only() -> None:
    core = dispatcher(6, targets=2, feed="shared")
    assert core.load(0, 2) == [Loaded(1, 0)]
    assert core.target_ready(0) == [Assign(0, 0, 0)]
    assert core.load(2, 1) == [Loaded(2, 0)]
    assert core.target_ready(1) == [Assign(1, 1, 0)]
    assert core.load(3, 3) == [Loaded(5, 0)]


def test_what_the_loader_has_ready_goes_to_the_targets_that_wait() -> None:
    core = dispatcher(6, targets=3, feed="shared", feed_depth=1)
    for target in (1, 2, 0):
        core.target_ready(target)
    assert core.load(0, 6) == [Assign(1, 0, 0), Assign(2, 1, 0), Assign(0, 2, 0), Loaded(5, 0)]


def test_every_ask_lets_the_feed_admit_more_of_what_the_loader_has_ready() -> None:
    core = dispatcher(feed_depth=1, feed="shared", capacity=9)
    assert core.load(0, 5) == []
    assert _feed(core) == ([[0, 1]], [2], [3, 4])
    assert core.target_ready(0) == [Assign(0, 0, 0)]
    assert _feed(core) == ([[1, 2]], [3], [4])
    assert core.offer(0, 0) == [Admit(0, 0, 0), Assign(0, 1, 0)]
    assert _feed(core) == ([[2, 3]], [4], [])
    assert core.offer(0, 1) == [Admit(0, 1, 0), Assign(0, 2, 0), Loaded(4, 0)]
    assert _feed(core) == ([[3, 4]], [], [])


def test_a_drafter_that_makes_room_makes_room_in_the_feed() -> None:
    core = dispatcher(feed_depth=1, feed="shared", capacity=0)
    core.target_ready(0), core.load(0, 4)
    assert core.offer(0, 0) == []
    assert _feed(core) == ([[1, 2]], [3], [])
    told = core.drafter_ready(0)
    assert told == [Admit(0, 0, 0), Assign(0, 1, 0), Loaded(3, 0), Deliver(0, 0, 0, 0, 0, True)]


def test_a_feed_in_turns_waits_for_the_target_whose_turn_it_is() -> None:
    core = dispatcher(6, targets=2, feed="rotating", feed_depth=1)
    core.target_ready(1)
    assert core.load(0, 6) == [Assign(1, 1, 1)]
    assert _feed(core) == ([[0], []], [2], [3, 4, 5])
    assert core.target_ready(0) == [Assign(0, 0, 0)]
    assert _feed(core) == ([[2], [3]], [4], [5])


def test_a_loss_lets_the_feed_admit_more_of_what_the_loader_has_ready() -> None:
    core = dispatcher(6, targets=2, feed="rotating", feed_depth=1)
    core.target_ready(1), core.load(0, 6)
    assert core.target_lost(0) == []
    assert _feed(core) == ([[0], [2]], [3], [4, 5])
    assert core.offer(1, 1) == [Admit(1, 1, 0), Assign(1, 0, 0)], "the lost target's lane is drained first"


def test_the_loader_may_be_done_when_all_it_had_is_admitted() -> None:
    core = dispatcher(3, feed="shared", feed_depth=1, drafters=1)
    core.drafter_ready(0), core.load(0, 3)
    with pytest.raises(ProtocolError, match="cannot be done: the feed has not admitted the last batch it had ready"):
        core.loader_done()
    core.target_ready(0)
    assert core.loader_done() == []


def _feed(core: Dispatcher) -> tuple[list[list[int]], list[int], list[int]]:
    """What waits in the feed's lanes, what the loader holds, and what it has ready behind that."""
    ready = range(core._next_load, core._next_load + core._supply)
    return [list(lane.waiting) for lane in core.feed.lanes], [batch for _, batch, _ in core.feed.held], list(ready)


# Which lane ---------------------------------------------------------------------------------------------------


def test_round_robin_gives_target_i_the_lane_i_mod_d() -> None:
    core = dispatcher(policy="round_robin", targets=5, drafters=3, capacity=2)
    assert [lanes(produce(core, target, target)) for target in range(5)] == [[0], [1], [2], [0], [1]]


def test_round_robin_goes_on_over_the_live_drafters() -> None:
    core = dispatcher(policy="round_robin", targets=4, drafters=3, capacity=4)
    core.drafter_lost(1)
    assert [lanes(produce(core, target, target)) for target in range(4)] == [[0], [2], [0], [2]]


def test_rotating_deals_offers_in_turn_whoever_makes_them() -> None:
    core = dispatcher(policy="rotating", targets=2, drafters=3, capacity=4)
    assert [lanes(produce(core, target, batch)) for batch, target in enumerate((1, 1, 0, 1, 0))] == [
        [0], [1], [2], [0], [1]
    ]  # fmt: skip


def test_rotating_blocks_only_the_target_that_was_dealt_the_full_lane() -> None:
    core = dispatcher(policy="rotating", targets=2, drafters=2, capacity=1)
    produce(core, 0, 0), produce(core, 0, 1)
    assert produce(core, 1, 2) == []  # lane 0 is full
    core.drafter_ready(1)
    assert lanes(produce(core, 0, 3)) == [1]
    assert moves(core.drafter_ready(0)) == [("deliver", 0, 0), ("admit", 1, 2)]


def test_shared_holds_depth_times_the_drafters_and_at_least_two() -> None:
    for drafters, capacity in ((1, 6), (2, 6), (4, 12)):
        core = Dispatcher(
            feed=_Shared(), feed_shape=Shape(producers=1, consumers=1, depth=4),
            dispatch=_Shared(), dispatch_shape=Shape(producers=1, consumers=drafters, depth=3), bucket_of=[0],
        )  # fmt: skip
        assert [lane.capacity for lane in core.dispatch.lanes] == [capacity]


def test_bucketed_cursors_start_at_their_own_offset() -> None:
    core = dispatcher((0, 0, 1, 1), policy="bucketed", drafters=2, capacity=2)
    for batch in range(4):
        produce(core, 0, batch)
    assert moves(core.drafter_ready(0)) == [("deliver", 0, 0)]
    assert moves(core.drafter_ready(1)) == [("deliver", 1, 2)]


def test_bucketed_steps_of_every_drafter_mix_buckets_while_there_is_a_choice() -> None:
    core = dispatcher((0, 1, 2) * 12, policy="bucketed", drafters=3, accumulate=2, capacity=12)
    for batch in range(36):
        produce(core, 0, batch)
    steps: dict[int, set[int]] = {}
    for told in train_all(core, [effect for drafter in range(3) for effect in core.drafter_ready(drafter)]):
        steps.setdefault(told.step, set()).add(told.batch % 3)
    assert len(steps) == 18
    assert all(len(buckets) == 2 for buckets in steps.values())


def train_all(core: Dispatcher, effects: list[Effect]) -> list[Deliver]:
    """Train and commit what was delivered, in order, until nothing more comes; returns all of it."""
    found = deliveries(effects)
    for told in found:
        for effect in train(core, told.drafter, told.batch):
            answer = core.commit(effect.step, effect.batches) if isinstance(effect, Step) else [effect]
            found += deliveries(answer)
    return found


def test_one_bucket_cannot_lock_out_the_others() -> None:
    core = dispatcher((0, 0, 0, 0, 0, 1), policy="bucketed", targets=2, capacity=2, feed="shared")
    assert core.dispatch.bound == 4
    assert [lanes(produce(core, 0, batch)) for batch in range(4)] == [[0], [0], [0], []]
    core.target_ready(1)
    core.load(4, 2)
    core.target_lost(1)  # batch 4 comes back, before batch 5
    assert core.drafter_ready(0)[1:] == [Admit(0, 3, 0), Assign(0, 4, 0)]
    assert core.offer(0, 4) == [], "the last slot is kept for bucket 1"


def test_the_reserved_slot_is_given_to_the_bucket_it_was_kept_for() -> None:
    core = dispatcher((0, 0, 0, 0, 1), policy="bucketed", targets=2, capacity=2)
    for batch in range(4):
        produce(core, 0, batch)
    assert moves(produce(core, 1, 4)) == [("admit", 1, 4)]
    assert core.dispatch.held == [(0, 3, 0)]


def test_a_bucket_without_batches_to_come_keeps_no_slot() -> None:
    core = dispatcher((1, 0, 0, 0, 0), policy="bucketed", capacity=2)
    produce(core, 0, 0)
    core.drafter_ready(0)
    assert [lanes(produce(core, 0, batch)) for batch in range(1, 5)] == [[0]] * 4


@pytest.mark.parametrize("seed", range(20))
def test_prefer_passes_the_oldest_batch_of_a_bucket_over_at_most_d_times_buckets_minus_1(seed: int) -> None:
    rng = random.Random(seed)
    drafters, kinds = rng.randint(1, 4), rng.randint(2, 4)
    buckets = [rng.randrange(kinds) for _ in range(60)]
    world = World(setup(buckets, policy="bucketed", targets=2, drafters=drafters, capacity=3))
    passed = [0] * kinds
    while world.ended is None:
        before = [lane.waiting[0] if lane.waiting else -1 for lane in world.core.dispatch.lanes]
        world.do(world.choose(rng))
        for told in world.core._out:
            if isinstance(told, Deliver):
                for lane, oldest in enumerate(before):
                    passed[lane] = passed[lane] + 1 if lane != told.lane and oldest >= 0 else 0
                assert max(passed) <= drafters * (kinds - 1)
                before = [lane.waiting[0] if lane.waiting else -1 for lane in world.core.dispatch.lanes]


def test_a_batch_that_comes_back_for_a_bucket_that_was_done_respects_the_bound() -> None:
    core = dispatcher((1, 0, 0, 0, 0), policy="bucketed", drafters=2, capacity=2)
    core.drafter_ready(0)
    produce(core, 0, 0)
    core.received(0, 0)
    for batch in range(1, 5):
        produce(core, 0, batch)
    core.drafter_lost(0)
    assert core.offer(0, 0) == [], "four batches wait"
    assert moves(core.drafter_ready(1)) == [("deliver", 1, 1), ("admit", 0, 0)]


# bucketed, mix: require ---------------------------------------------------------------------------------------


def requiring(batches: Sequence[int], **kwargs: object) -> Dispatcher:
    core = dispatcher(batches, policy="bucketed", mix="require", **{"accumulate": 2, "capacity": 2, **kwargs})
    core.drafter_ready(0)
    produce(core, 0, 0)
    train(core, 0, 0)
    return core


def test_require_waits_for_a_bucket_that_the_step_lacks_while_it_can_arrive() -> None:
    core = requiring((0, 0, 1))
    assert produce(core, 0, 1) == [Admit(0, 1, 0)]
    assert moves(produce(core, 0, 2)) == [("admit", 0, 2), ("deliver", 0, 2)]


def test_require_does_not_wait_for_a_bucket_that_never_comes() -> None:
    core = requiring((0, 0, 0))
    assert moves(produce(core, 0, 1)) == [("admit", 0, 1), ("deliver", 0, 1)]


def test_require_stops_waiting_when_every_open_target_is_blocked() -> None:
    core = requiring((0, 0, 0, 0, 0, 1), capacity=1)
    assert produce(core, 0, 1) == [Admit(0, 1, 0)]
    assert moves(produce(core, 0, 2)) == [("deliver", 0, 1), ("admit", 0, 2)]


def test_require_stops_waiting_when_the_loader_ends_early() -> None:
    core = requiring((0, 0, 1))
    assert produce(core, 0, 1) == [Admit(0, 1, 0)]
    assert moves(core.loader_done()) == [("deliver", 0, 1)]


def test_require_does_not_wait_for_targets_that_wait_for_a_blocked_one() -> None:
    """The feed deals in turns: its loader is stuck behind target 0, so target 1 will bring nothing."""
    core = dispatcher(
        (0,) * 9 + (1,), policy="bucketed", mix="require", targets=2, accumulate=2, feed="rotating", feed_depth=1
    )
    core.drafter_ready(0)
    assign(core, 0, 0)
    produce(core, 1, 1)
    train(core, 0, 1)
    assert core.load(2, 1) == [Loaded(2, 0)]
    assert produce(core, 1, 3) == [Admit(1, 3, 0)], "target 0 may bring another bucket"
    assert core.load(4, 1) == []
    assert core.offer(0, 0)[:3] == [Deliver(0, 3, 0, 1, 0, True), Admit(0, 0, 0), Assign(0, 2, 0)]


def test_require_counts_the_places_of_the_step_that_a_batch_taken_ahead_belongs_to() -> None:
    core = dispatcher((0, 1, 0, 0, 1), policy="bucketed", mix="require", accumulate=2, capacity=9, prefetch=3)
    for batch in range(4):
        produce(core, 0, batch)
    assert moves(core.drafter_ready(0)) == [("deliver", 0, batch) for batch in range(3)]
    assert moves(produce(core, 0, 4)) == [("admit", 0, 4), ("deliver", 0, 4)]


def test_require_looks_at_the_step_that_a_batch_taken_ahead_belongs_to() -> None:
    core = dispatcher(
        (0, 1, 0, 0, 1, 1), policy="bucketed", mix="require", accumulate=2, capacity=9, prefetch=2
    )
    for batch in range(6):
        produce(core, 0, batch)
    told = core.drafter_ready(0)
    assert [effect.step for effect in deliveries(told)] == [0, 0, 1]
    steps: dict[int, set[int]] = {}
    for effect in train_all(core, told):
        steps.setdefault(effect.step, set()).add((0, 1, 0, 0, 1, 1)[effect.batch])
    assert steps == {step: {0, 1} for step in range(3)}


# Steps --------------------------------------------------------------------------------------------------------


def test_under_none_a_drafter_steps_by_itself_and_its_steps_are_its_own() -> None:
    core = dispatcher(drafters=2, capacity=8, accumulate=2)
    for batch in range(4):
        produce(core, 0, batch)
    assert core.drafter_ready(1) == [Deliver(1, 0, 0, 0, 1, False)]
    assert train(core, 1, 0) == [Deliver(1, 1, 0, 0, 1, True)]
    assert train(core, 1, 1) == [Step(1, (1,), (0, 1))]
    assert core.commit(1, [0, 1]) == [Deliver(1, 2, 0, 0, 3, False)]
    assert core.steps == 1 and core.ledger.count(TRAINED) == 2


def test_under_step_every_drafter_gives_its_share_and_the_last_to_compute_completes_the_step() -> None:
    core = dispatcher(drafters=2, capacity=8, sync="step")
    for batch in range(4):
        produce(core, 0, batch)
    for drafter in (0, 1):
        assert core.drafter_ready(drafter) == [Deliver(drafter, drafter, 0, 0, 0, True)]
    assert train(core, 1, 1) == [Join(1, 0)]
    assert train(core, 0, 0) == [Step(0, (0, 1), (0, 1))]
    assert core.commit(0, [0, 1]) == [Deliver(1, 2, 0, 0, 1, True), Deliver(0, 3, 0, 0, 1, True)]


def test_under_pooled_a_step_takes_from_whoever_is_free_and_then_all_meet() -> None:
    core = dispatcher(drafters=2, capacity=8, sync="pooled")
    for batch in range(4):
        produce(core, 0, batch)
    assert core.drafter_ready(0) == [Deliver(0, 0, 0, 0, 0, False)]
    assert train(core, 0, 0) == [Deliver(0, 1, 0, 0, 0, True), Flush(1, 0), Join(1, 0)]
    assert core.drafter_ready(1) == [], "the next batch is delivered when the step is applied"
    assert train(core, 0, 1) == [Step(0, (0, 1), (0, 1))]
    assert moves(core.commit(0, [0, 1])) == [("deliver", 1, 2), ("deliver", 0, 3)]


def test_under_pooled_nothing_is_taken_ahead_of_the_step() -> None:
    core = dispatcher(drafters=2, capacity=8, sync="pooled", prefetch=2)
    for batch in range(4):
        produce(core, 0, batch)
    assert [(told.batch, told.step) for told in deliveries(core.drafter_ready(0))] == [(0, 0), (1, 0)]
    assert core.dispatch.waiting == [0]


def test_what_is_taken_ahead_belongs_to_later_steps_and_is_not_computed_before() -> None:
    core = dispatcher(capacity=8, prefetch=2)
    for batch in range(4):
        produce(core, 0, batch)
    told = deliveries(core.drafter_ready(0))
    assert [(effect.step, effect.closes) for effect in told] == [(0, True), (1, True), (2, True)]
    core.received(0, 1)
    with pytest.raises(ProtocolError, match="drafter 0 computed batch 1; step 0 waits for"):
        core.computed(0, 1)


def test_shares_ahead_fill_one_step_after_the_other() -> None:
    core = dispatcher(capacity=8, prefetch=4, accumulate=2)
    for batch in range(5):
        produce(core, 0, batch)
    told = deliveries(core.drafter_ready(0))
    assert [effect.step for effect in told] == [0, 0, 1, 1, 2]
    assert [effect.closes for effect in told] == [False, True, False, True, False]


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_partial_last_window_is_stepped(policy: str, sync: str) -> None:
    world = finish(World(setup(10, policy=policy, sync=sync, accumulate=4)))
    assert world.core.steps == 3 and trained(world) == [10]


def test_the_last_partial_window_of_each_drafter_is_stepped_under_none() -> None:
    world = finish(World(setup(7, drafters=3, capacity=3, accumulate=4)))
    assert sum(trained(world)) == 7


@pytest.mark.parametrize("seed", range(5))
def test_part_windows_end_when_each_drafter_is_judged_by_what_reaches_it(seed: int) -> None:
    case = setup(23, policy="round_robin", targets=5, drafters=3, capacity=8, sync="step", accumulate=4)
    assert sum(trained(finish(World(case), seed))) == 23


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("policy", POLICIES)
def test_uneven_shares_are_all_trained(policy: str, sync: str) -> None:
    assert sum(trained(finish(World(setup(23, policy=policy, targets=3, drafters=2, capacity=2, sync=sync))))) == 23


def test_a_drafter_that_is_never_fed_does_not_stop_the_others() -> None:
    world = finish(World(setup(9, policy="round_robin", drafters=2, capacity=2, sync="step")))
    assert trained(world) == [9, 0] and world.core.steps == 9


def test_a_dry_drafter_joins_with_weight_zero() -> None:
    core = dispatcher(3, policy="round_robin", targets=1, drafters=2, capacity=2, sync="step")
    core.drafter_ready(1)
    assert core.drafter_ready(0) == []
    assert produce(core, 0, 0) == [
        Admit(0, 0, 0), Deliver(0, 0, 0, 0, 0, True), Flush(1, 0), Join(1, 0)
    ]  # fmt: skip
    assert train(core, 0, 0) == [Step(0, (0, 1), (0,))]


def test_a_flushed_drafter_takes_again_when_work_returns() -> None:
    world = World(setup(2, drafters=2, capacity=2, sync="step", accumulate=2))
    for action in [("drafter_ready", 0), ("drafter_ready", 1), ("target_ready", 0), ("load", 2), ("loader_done",)]:
        world.do(action)
    for action in [("offer", 0), ("offer", 0), ("received", 0, 0), ("computed", 0)]:
        world.do(action)
    assert Flush(0, 0) in world.core._out, "both batches are given out"
    world.do(("drafter_lost", 1))
    assert trained(finish(world)) == [2, 0]


@pytest.mark.parametrize("sync", SYNCS)
def test_no_batches_end_at_once(sync: str) -> None:
    assert dispatcher(0, sync=sync).loader_done() == [End("data_exhausted")]


def test_the_first_to_start_without_any_batches_is_told_the_end() -> None:
    assert dispatcher(0, sync="step").target_ready(0) == [End("data_exhausted")]
    assert dispatcher(0, sync="step").drafter_ready(0) == [End("data_exhausted")]


def test_max_steps_ends_the_run() -> None:
    core = Dispatcher(
        feed=_Shared(), feed_shape=Shape(producers=1, consumers=1, depth=4),
        dispatch=_Shared(), dispatch_shape=Shape(producers=1, consumers=1, depth=4), bucket_of=[0] * 5, max_steps=1,
    )  # fmt: skip
    core.drafter_ready(0)
    produce(core, 0, 0)
    train(core, 0, 0)
    assert core.commit(0, [0]) == [End("max_steps")]


# When nothing moves -------------------------------------------------------------------------------------------


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the rule for a pipeline at rest flushed somebody."""
    counted: list[int] = []
    rule = Dispatcher._flush_starved

    def count(self: Dispatcher) -> None:
        before = len(self._out)
        rule(self)
        counted.extend([1] * (len(self._out) > before))

    monkeypatch.setattr(Dispatcher, "_flush_starved", count)
    return counted


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_a_feed_dealt_in_turns_before_fixed_lanes_cannot_stop_a_step(
    seed: int, prefetch: int, quiet: list[int]
) -> None:
    """Targets 0 and 2 fill lane 0; the loader waits for them; drafter 1 waits for target 1, drafter 0 for the step."""
    case = setup(
        60, policy="round_robin", targets=3, drafters=2, sync="step", feed="rotating", feed_depth=1, prefetch=prefetch
    )
    assert sum(trained(finish(World(case), seed))) == 60
    assert quiet


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_load_that_comes_last_finds_the_pipeline_at_rest(count: int, quiet: list[int]) -> None:
    case = setup(60, policy="round_robin", targets=3, drafters=2, sync="step", feed="rotating", feed_depth=1)
    world = World(case)
    while world.ended is None:
        actions = world.completions()
        world.do(next((action for action in actions if action[0] != "load"), actions[:count][-1]))
    assert sum(trained(world)) == 60 and quiet


@pytest.mark.parametrize("batches", [8, 30])
def test_lanes_made_uneven_by_a_loss_cannot_stop_a_step(batches: int, quiet: list[int]) -> None:
    """Batches that wait in lane 0 die with their target; lane 1 keeps its own, is full, and blocks the last target."""
    world = World(setup(batches, policy="rotating", targets=2, drafters=2, capacity=2, sync="step"))
    for action in [("drafter_ready", 0), ("drafter_ready", 1), ("target_ready", 0), ("target_ready", 1)]:
        world.do(action)
    for target in (0, 1, 0, 1, 0, 1, 0):
        world.do(("load", 1))
        world.do(("offer", target))
    world.do(("target_lost", 0))
    assert [list(lane.waiting) for lane in world.core.dispatch.lanes] == [[], [3, 5]]
    for action in [("offer", 1), ("received", 1, 0), ("computed", 1)]:
        world.do(action)
    assert not quiet
    assert sum(trained(finish(world))) == batches
    assert quiet


def test_a_drafter_that_has_not_started_is_not_at_rest() -> None:
    core = dispatcher(5, policy="rotating", drafters=2, capacity=1, sync="step", accumulate=2)
    core.drafter_ready(1)
    produce(core, 0, 0), produce(core, 0, 1)
    assert train(core, 1, 1) == []
    core.load(2, 3)
    assert core.offer(0, 2) == [], "lane 0 is full: drafter 1 will be fed when drafter 0 has started"
    assert moves(core.drafter_ready(0)) == [("deliver", 0, 0), ("admit", 0, 2)]


# Losses of targets --------------------------------------------------------------------------------------------


def with_batch_at(place: int, **kwargs: object) -> Dispatcher:
    """Two targets; batch 0, of target 0, is at this place, and batch 1 is loaded behind it."""
    capacity = 2 if place != HELD else 0
    core = dispatcher(2, targets=2, drafters=2, capacity=capacity, sync="step", feed="shared", **kwargs)
    if place >= TARGET:
        core.target_ready(0)
    core.load(0, 1 if place > HELD else 2)
    if place >= HELD:
        core.offer(0, 0)
    if place >= TAKEN:
        core.drafter_ready(0)
    if place >= RECEIVED:
        core.received(0, 0)
    if place > HELD:
        assert core.load(1, 1) == [Loaded(1, 0), Assign(0, 1, 0)]
    assert core.ledger.place(0) == place
    return core


@pytest.mark.parametrize(
    ("place", "effects"),
    [
        (FEED, []),
        (TARGET, [Recompute(0, TARGET, -1, 0)]),
        (HELD, [Recompute(0, HELD, -1, 0)]),
        (STAGED, [Recompute(0, STAGED, 0, -1)]),
        (TAKEN, [Recompute(0, TAKEN, -1, 0), Recall(0, 0)]),
        (RECEIVED, []),
    ],
)
def test_what_lay_at_a_lost_target_is_computed_again(place: int, effects: list[Effect]) -> None:
    core = with_batch_at(place)
    computing = [Recompute(1, TARGET, -1, 0)] if place > HELD else []
    assert core.target_lost(0) == [*computing, *effects]
    again = place not in (FEED, RECEIVED)
    assert core.ledger.place(0) == (FEED if again else place)
    first = 1 if place == RECEIVED else 0
    assert core.target_ready(1) == [Assign(1, first, 0)], "it comes before what is younger or was never computed"


def test_what_lay_at_a_lost_target_goes_to_the_targets_that_wait_oldest_first() -> None:
    """Nobody is served before all of it is in the feed again, though a recalled drafter asks at once."""
    core = dispatcher(4, targets=2, drafters=2, capacity=1)
    core.drafter_ready(0), core.drafter_ready(1)
    produce(core, 0, 0), produce(core, 0, 1)
    produce(core, 1, 2)
    assert produce(core, 1, 3) == []
    assert core.target_lost(0) == [
        Recompute(1, TAKEN, -1, 1), Recall(1, 1), Recompute(0, TAKEN, -1, 0), Recall(0, 0),
        Deliver(1, 2, 0, 1, 1, True), Admit(1, 3, 0), Assign(1, 0, 1), Deliver(0, 3, 0, 1, 0, True),
    ]  # fmt: skip


def test_a_drafter_that_loses_several_batches_takes_the_next_for_its_open_step() -> None:
    core = dispatcher(4, targets=2, capacity=2, prefetch=1)
    core.drafter_ready(0)
    produce(core, 0, 0), produce(core, 0, 1)
    produce(core, 1, 2), produce(core, 1, 3)
    assert [(told.batch, told.step) for told in deliveries(core.target_lost(0))] == [(2, 0), (3, 1)]


def test_a_drafter_whose_batch_is_recalled_asks_again() -> None:
    core = with_batch_at(TAKEN)
    core.target_lost(0)
    assert core.dispatch.waiting == [0]
    core.target_ready(1)
    assert moves(core.offer(1, 0)) == [("admit", 1, 0), ("deliver", 0, 0)]


def test_the_run_ends_with_its_last_target_while_anything_must_be_computed() -> None:
    core = dispatcher(2)
    core.load(0, 1)
    assert core.target_lost(0) == [End("worker_lost")]


def test_the_run_outlives_its_targets_when_all_was_received() -> None:
    core = dispatcher(1)
    core.drafter_ready(0)
    produce(core, 0, 0)
    core.loader_done()
    core.received(0, 0)
    assert core.target_lost(0) == []
    core.computed(0, 0)
    assert core.commit(0, [0]) == [End("data_exhausted")]


def test_a_drafter_lost_after_the_last_target_ends_the_run_if_it_had_anything() -> None:
    core = dispatcher(1, drafters=2)
    core.drafter_ready(0)
    produce(core, 0, 0)
    core.received(0, 0)
    core.target_lost(0)
    assert core.drafter_lost(0) == [Recompute(0, RECEIVED, -1, 0), End("worker_lost")]


def test_offers_of_the_survivors_of_a_feed_in_turns_drain_the_lost_targets_lane() -> None:
    core = dispatcher(4, targets=2, feed="rotating", feed_depth=2, capacity=4)
    core.load(0, 4)
    core.target_lost(1)
    told = core.target_ready(0)
    got = []
    while told:
        (batch,) = [effect.batch for effect in told if isinstance(effect, Assign)]
        got.append(batch)
        told = core.offer(0, batch)[1:]
    assert sorted(got) == [0, 1, 2, 3]


def test_a_step_that_loses_all_it_had_is_dropped_so_that_those_who_closed_it_can_take_again() -> None:
    """Drafter 1 is dry and has joined; the only batch of the step is recalled and now comes to drafter 1."""
    core = dispatcher(1, policy="round_robin", targets=2, drafters=2, capacity=2, sync="step")
    core.drafter_ready(0)
    core.drafter_ready(1)
    produce(core, 0, 0)
    core.loader_done()
    assert core.target_lost(0) == [Recompute(0, TAKEN, -1, 0), Recall(0, 0), Drop(0, (0, 1))]
    core.target_ready(1)
    assert core.offer(1, 0)[:2] == [Admit(1, 0, 1), Deliver(1, 0, 1, 1, 1, True)]


def test_a_batch_taken_ahead_keeps_its_step_when_one_before_it_is_recalled() -> None:
    core = dispatcher(3, targets=2, capacity=4, prefetch=1, accumulate=2)
    core.drafter_ready(0)
    produce(core, 0, 0)
    train(core, 0, 0)
    produce(core, 0, 1)
    assert produce(core, 1, 2)[1:] == [Deliver(0, 2, 0, 1, 1, False)]
    assert core.target_lost(0) == [Recompute(1, TAKEN, -1, 0), Recall(0, 1), Assign(1, 1, 1)]
    assert core.offer(1, 1)[1:] == [Deliver(0, 1, 0, 1, 0, True)]


def test_a_batch_taken_ahead_is_reached_when_all_before_it_is_recalled() -> None:
    core = dispatcher(2, targets=2, drafters=2, policy="round_robin", capacity=4, prefetch=1)
    core.drafter_ready(0)
    produce(core, 0, 0)
    assert moves(produce(core, 0, 1)) == [("admit", 0, 1), ("deliver", 0, 1)]
    core.received(0, 1)
    assert core.target_lost(0)[-1] == Drop(0, (0,))
    assert core.computed(0, 1) == [Step(2, (0,), (1,))]


# Losses of drafters -------------------------------------------------------------------------------------------


def test_what_a_lost_drafter_had_not_received_goes_back_to_the_front_of_its_lane_outside_capacity() -> None:
    core = dispatcher(4, drafters=2, capacity=1, sync="step", prefetch=1)
    core.drafter_ready(0)
    for batch in range(3):
        produce(core, 0, batch)
    assert core.drafter_lost(0) == [PutBack(1, 0, 0), PutBack(0, 0, 0)]
    assert list(core.dispatch.lanes[0].waiting) == [0, 1, 2]
    assert produce(core, 0, 3) == []


def test_what_a_lost_drafter_had_received_or_computed_is_computed_again_in_order() -> None:
    core = dispatcher(4, drafters=2, capacity=4, sync="step", accumulate=3)
    core.drafter_ready(0)
    for batch in range(3):
        produce(core, 0, batch)
        core.received(0, batch)
        if batch < 2:
            core.computed(0, batch)
    assert core.drafter_lost(0) == [*(Recompute(batch, RECEIVED, -1, 0) for batch in (2, 1, 0)), Assign(0, 0, 0)]


def test_a_lost_drafters_lane_is_drained_by_the_survivors() -> None:
    core = dispatcher(6, policy="round_robin", targets=2, drafters=2, capacity=2)
    for batch in range(4):
        produce(core, batch % 2, batch)
    core.drafter_lost(1)
    assert sorted(told.batch for told in train_all(core, core.drafter_ready(0))) == [0, 1, 2, 3]


def test_an_offer_held_for_a_lost_drafters_lane_is_dealt_again() -> None:
    core = dispatcher(6, policy="round_robin", targets=2, drafters=2, capacity=1)
    produce(core, 1, 0)
    assert produce(core, 1, 1) == []
    assert core.drafter_lost(1) == [Admit(1, 1, 0)]


def test_a_step_that_is_being_applied_counts_what_a_drafter_lost_meanwhile_gave_it() -> None:
    core = dispatcher(4, drafters=2, capacity=4, sync="step")
    core.drafter_ready(0), core.drafter_ready(1)
    produce(core, 0, 0), produce(core, 0, 1)
    train(core, 0, 0)
    assert train(core, 1, 1) == [Step(0, (0, 1), (0, 1))]
    assert core.drafter_lost(0) == []
    assert core.commit(0, (0, 1)) == []
    assert core.ledger.count(TRAINED) == 2


def test_a_step_whose_last_drafter_is_lost_while_it_is_applied_is_not_trained() -> None:
    core = dispatcher(4, drafters=2, capacity=4, sync="step")
    core.drafter_ready(0), core.drafter_ready(1)
    produce(core, 0, 0), produce(core, 0, 1)
    train(core, 0, 0), train(core, 1, 1)
    core.drafter_lost(0)
    assert core.drafter_lost(1) == [
        Recompute(1, RECEIVED, -1, 1), Recompute(0, RECEIVED, -1, 1), End("worker_lost")
    ]  # fmt: skip
    assert core.ledger.count(TRAINED) == 0


def test_a_loss_completes_the_step_that_waited_for_the_lost_drafter() -> None:
    core = dispatcher(4, drafters=2, capacity=4, sync="step")
    core.drafter_ready(0)
    produce(core, 0, 0)
    assert train(core, 0, 0) == [Join(0, 0)]
    assert core.drafter_lost(1) == [Step(0, (0,), (0,))]


def test_a_pooled_budget_that_shrinks_below_what_was_given_out_closes_the_step() -> None:
    core = dispatcher(6, drafters=2, capacity=6, sync="pooled", accumulate=2)
    core.drafter_ready(0)
    for batch in range(3):
        produce(core, 0, batch)
        assert train(core, 0, batch) == []
    assert core.drafter_lost(1) == [Flush(0, 0), Step(0, (0,), (0, 1, 2))]


def test_a_pooled_budget_that_shrank_is_still_given_out_when_a_batch_is_recalled() -> None:
    core = dispatcher(6, targets=2, drafters=2, capacity=6, sync="pooled", accumulate=2)
    for drafter in (0, 1):
        core.drafter_ready(drafter)
    for batch, target, drafter in ((0, 0, 0), (1, 0, 1), (2, 0, 0)):
        assert moves(produce(core, target, batch))[1:] == [("deliver", drafter, batch)]
        if drafter == 0:
            train(core, 0, batch)
    produce(core, 1, 3)  # drafter 0 has it: the budget of four is given out
    core.drafter_lost(1)
    assert Step(0, (0,), (0, 2)) in core.target_lost(1), "two of two"


def test_a_step_left_with_nothing_by_a_loss_is_dropped_for_those_who_joined() -> None:
    core = dispatcher(1, drafters=2, capacity=2, sync="step")
    core.drafter_ready(0), core.drafter_ready(1)
    assert Flush(1, 0) in produce(core, 0, 0)
    assert core.drafter_lost(0) == [PutBack(0, 0, 0), Drop(0, (1,)), Deliver(1, 0, 0, 0, 1, True)]


def test_under_none_what_a_lost_drafter_had_trained_is_lost_and_nothing_else() -> None:
    world = World(setup(12, targets=2, drafters=2, capacity=2))
    rng = random.Random(1)
    while len(world.trained_by) < 6:
        world.do(world.choose(rng))
    mine = {batch for batch, owner in world.trained_by.items() if owner == 0}
    world.do(("drafter_lost", 0))
    assert mine and world.lost == mine
    finish(world)
    assert world.core.ledger.counts()["lost"] == len(mine)
    assert world.core.ledger.counts()["trained"] == 12 - len(mine)


def test_the_run_ends_with_its_last_drafter() -> None:
    assert dispatcher(2).drafter_lost(0) == [End("worker_lost")]


# Abandon, stop, an early end ----------------------------------------------------------------------------------


def test_an_abandoned_step_is_computed_again_for_a_later_one() -> None:
    core = dispatcher(4, drafters=2, capacity=4, sync="step")
    core.drafter_ready(0), core.drafter_ready(1)
    produce(core, 0, 0), produce(core, 0, 1)
    train(core, 0, 0), train(core, 1, 1)
    assert core.abandon(0) == [
        Recompute(1, RECEIVED, -1, -1), Recompute(0, RECEIVED, -1, -1), Drop(0, (0, 1)), Assign(0, 0, 0)
    ]  # fmt: skip
    assert core.offer(0, 0) == [Admit(0, 0, 0), Assign(0, 1, 0), Deliver(0, 0, 0, 0, 1, True)]
    assert core.steps == 0


def test_an_abandoned_step_lets_waiting_drafters_take_again() -> None:
    core = dispatcher(3, capacity=4)
    core.drafter_ready(0)
    produce(core, 0, 0), produce(core, 0, 1)
    train(core, 0, 0)
    assert Deliver(0, 1, 0, 0, 1, True) in core.abandon(0)


def test_an_abandoned_step_leaves_what_was_taken_ahead_where_it_is() -> None:
    core = dispatcher(3, capacity=4, prefetch=1)
    core.drafter_ready(0)
    produce(core, 0, 0), produce(core, 0, 1)
    train(core, 0, 0)
    core.received(0, 1)
    assert core.abandon(0) == [Recompute(0, RECEIVED, -1, -1), Drop(0, (0,)), Assign(0, 0, 0)]
    assert core.computed(0, 1) == [Step(1, (0,), (1,))]


def test_a_stop_ends_the_run_where_it_is() -> None:
    core = dispatcher(4)
    core.drafter_ready(0)
    produce(core, 0, 0)
    assert core.stop("interrupted") == [End("interrupted")]
    assert core.ledger.place(0) == TAKEN
    with pytest.raises(ProtocolError, match="the run has ended"):
        core.received(0, 0)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_loader_that_ends_early_ends_the_run_after_what_it_loaded(policy: str, sync: str) -> None:
    case = setup((0, 1) * 10 if policy == "bucketed" else 20, policy=policy, targets=2, drafters=2, sync=sync)
    world = World(case)
    rng = random.Random(3)
    while world.next < 7 or world.loading is not None:
        left = 7 - world.next
        world.do(rng.choice([action for action in world.completions() if action[0] != "load" or action[1] <= left]))
    world.do(("loader_stops",))
    finish(world)
    assert len(world.trained_by) == world.next == 7
    assert world.core.ledger.counts()["feed"] == 20 - world.next


def test_a_loader_that_ends_early_frees_the_reserved_slots() -> None:
    core = dispatcher((0, 0, 0, 0, 1), policy="bucketed", capacity=2)
    for batch in range(4):
        produce(core, 0, batch)
    assert core.dispatch.held
    assert core.loader_done() == [Admit(0, 3, 0)]


class Asked:
    """A policy that counts how often it is asked whom a producer reaches."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.count = policy, 0
        self.layout, self.put, self.take = policy.layout, policy.put, policy.take

    def reach(self, producer: int, view: View) -> Sequence[int]:
        self.count += 1
        return self.policy.reach(producer, view)


def test_who_is_dry_is_judged_for_all_drafters_at_once() -> None:
    """No input asks the policies more than once about each producer."""
    feed, fixed, rng = Asked(Rotating()), Asked(RoundRobin()), random.Random(5)
    case = setup(150, targets=9, drafters=6, policy="round_robin", sync="step", feed="rotating", feed_depth=2)
    world = World(case, case.dispatcher(feed, fixed))
    most = 0
    while world.ended is None:
        feed.count = fixed.count = 0
        world.follow(world.tell(world.choose(rng)))
        most = max(most, fixed.count)
        assert feed.count <= 1 and fixed.count <= 9
    assert most > 1 and all(place == TRAINED for place in world.place)


# What is refused ----------------------------------------------------------------------------------------------


class _Shared:
    """Everything in one lane; the answers can be replaced."""

    lanes: Sequence[LaneSpec] = (LaneSpec(name="one", capacity=6), LaneSpec(name="two", capacity=6, reader=1))
    bound: int | None = None
    put_answer: object = 0
    take_answer: object = None

    def layout(self, shape: Shape) -> Layout:
        if self.lanes is not _Shared.lanes or self.bound is not None:
            return Layout(lanes=tuple(self.lanes), bound=self.bound)
        return Layout(lanes=(LaneSpec(name="one", capacity=shape.depth * max(shape.consumers, 2)),))

    def put(self, producer: int, batch: int, view: View) -> int:
        return self.put_answer  # type: ignore[return-value]

    def take(self, consumer: int, view: View) -> int:
        if self.take_answer is not None:
            return self.take_answer  # type: ignore[return-value]
        return 0 if len(view.lanes[0]) else WAIT

    def reach(self, producer: int, view: View) -> Sequence[int]:
        return (0,)


def with_policy(**answers: object) -> Dispatcher:
    policy = type("Mine", (_Shared,), answers)()
    return Dispatcher(
        feed=_Shared(), feed_shape=Shape(producers=1, consumers=2, depth=4),
        dispatch=policy, dispatch_shape=Shape(producers=2, consumers=2, depth=4), bucket_of=[0] * 4,
    )  # fmt: skip


@pytest.mark.parametrize("answer", [-1, 1, 7, None, 0.0, "0", True])
def test_a_policy_that_puts_a_batch_nowhere_is_refused(answer: object) -> None:
    core = with_policy(put_answer=answer)
    with pytest.raises(PolicyError, match=r"Mine\.put answered .* for batch 0: give a lane from 0 to 0"):
        produce(core, 0, 0)


@pytest.mark.parametrize("answer", [0, 1, 7, -2, 0.0, "0", True])
def test_a_policy_that_takes_from_an_empty_lane_or_none_is_refused(answer: object) -> None:
    core = with_policy(take_answer=answer)
    with pytest.raises(PolicyError, match=r"Mine\.take answered .* for consumer 0: give a lane with a waiting batch"):
        core.drafter_ready(0)


def test_a_policy_that_takes_from_another_drafters_lane_is_refused() -> None:
    core = with_policy(lanes=list(_Shared.lanes), put_answer=1, take_answer=1)
    produce(core, 0, 0)
    with pytest.raises(PolicyError, match="lane 'two', which only consumer 1 reads"):
        core.drafter_ready(0)


@pytest.mark.parametrize(
    ("answers", "rule"),
    [
        ({"lanes": []}, "at least one"),
        ({"lanes": [LaneSpec(name="x", capacity=-1)]}, "capacity -1 for lane 'x': give an integer, at least 0"),
        ({"lanes": [LaneSpec(name="x", capacity=1.5)]}, "capacity 1.5"),  # type: ignore[arg-type]
        ({"lanes": [LaneSpec(name="x", capacity=1, reader=2)]}, "reader 2 for lane 'x': give None or a number"),
        ({"lanes": list(_Shared.lanes), "bound": 4}, "a bound needs one lane for each of the 1 buckets"),
        ({"lanes": [LaneSpec(name="x", capacity=1)], "bound": 0}, "room for one batch in each"),
    ],
)
def test_a_layout_that_nobody_could_use_is_refused(answers: dict[str, object], rule: str) -> None:
    with pytest.raises(PolicyError, match=rule):
        with_policy(**answers)


@pytest.mark.parametrize(
    ("name", "args"),
    [("load", (1, 1)), ("load", (1, 3)), ("target_ready", (1,)), ("loader_done", ()), ("offer", (0, 1))],
)
def test_a_policy_that_lets_a_drafter_wait_is_asked_again_after_every_input(name: str, args: tuple[int, ...]) -> None:
    core = with_policy(take_answer=WAIT)
    core.drafter_ready(0)
    produce(core, 0, 0)
    if name == "offer":
        assign(core, 0, 1)
    core.dispatch.policy.take_answer = None  # type: ignore[attr-defined]
    assert moves(getattr(core, name)(*args))[-1] == ("deliver", 0, 0)


def busy() -> Dispatcher:
    """Batch 0 received and 1 delivered to drafter 0 (open step 0), 2 staged, target 0 computes 3."""
    core = dispatcher(6, targets=2, drafters=2, capacity=2, prefetch=1, sync="step")
    core.drafter_ready(0)
    for batch in range(3):
        produce(core, 0, batch)
    core.received(0, 0)
    assign(core, 0, 3)
    return core


LIES: dict[str, tuple[Callable[[Dispatcher], object], str]] = {
    "is ready while it computes": (lambda core: core.target_ready(0), "target 0 is ready for the second time"),
    "is ready twice": (lambda core: (core.target_ready(1), core.target_ready(1)), "target 1 is ready for the second"),
    "is ready while it holds": (lambda core: _hold(core), "target 1 is ready for the second time"),
    "offers what it was not given": (lambda core: core.offer(0, 2), "offered batch 2, but computes 3"),
    "offers twice": (lambda core: (core.offer(0, 3), core.offer(0, 3)), "offered batch 3, but computes -1"),
    "offers for another": (lambda core: core.offer(1, 3), "target 1 offered batch 3"),
    "is ready after its loss": (lambda core: (core.target_lost(1), core.target_ready(1)), "target 1 is .* or lost"),
    "offers after its loss": (lambda core: (core.target_lost(0), core.offer(0, 3)), "target 0 offered"),
    "is lost twice": (lambda core: (core.target_lost(0), core.target_lost(0)), "target 0 was lost before"),
    "drafter is ready twice": (lambda core: core.drafter_ready(0), "drafter 0 is ready for the second time"),
    "drafter is ready after its loss": (
        lambda core: (core.drafter_lost(1), core.drafter_ready(1)), "drafter 1 is .* or lost"
    ),
    "receives twice": (lambda core: core.received(0, 0), "batch 0 cannot go from taken to received"),
    "receives what it was not given": (lambda core: core.received(1, 1), "not delivered to it"),
    "receives what waits": (lambda core: core.received(0, 2), "batch 2, which was not delivered to it"),
    "receives after its loss": (
        lambda core: (core.drafter_lost(0), core.received(0, 1)), "batch 1 cannot go from taken to received: it is at s"
    ),
    "receives what was recalled": (
        lambda core: (core.target_lost(0), core.received(0, 1)), "batch 1 cannot go from taken to received: it is at f"
    ),
    "computes what it has not received": (lambda core: core.computed(0, 1), "has not received"),
    "computes twice": (lambda core: (core.computed(0, 0), core.computed(0, 0)), "computed batch 0"),
    "computes after its loss": (lambda core: (core.drafter_lost(0), core.computed(0, 0)), "not received"),
    "computes again what is applied": (lambda core: (_joint(core), core.computed(0, 0)), "drafter 0 computed batch 0"),
    "drafter is lost twice": (lambda core: (core.drafter_lost(0), core.drafter_lost(0)), "drafter 0 was lost before"),
    "commits an open step": (lambda core: core.commit(0, []), "step 0 is not being applied: step 0 is open"),
    "commits a step to come": (lambda core: core.commit(1, []), "step 1 is not being applied"),
    "abandons an open step": (lambda core: core.abandon(0), "step 0 is not being applied"),
    "commits other batches": (lambda core: (_apply(core), core.commit(0, [1])), r"the batches \(0,\), not \(1,\)"),
    "commits twice": (lambda core: (_apply(core), core.commit(0, [0]), core.commit(0, [0])), "step 0 is not"),
    "loads too much": (
        lambda core: (core.load(4, 1), core.load(5, 1), core.load(6, 1)),
        "cannot load 1 from batch 6 on: 0 are to come, from batch 6 on",
    ),
    "loads too many": (lambda core: core.load(4, 3), "cannot load 3 from batch 4 on: 2 are to come, from batch 4 on"),
    "loads nothing": (lambda core: core.load(4, 0), "cannot load 0 from batch 4 on"),
    "loads fewer than nothing": (lambda core: core.load(4, -1), "cannot load -1 from batch 4 on"),
    "loads twice": (lambda core: core.load(2, 1), "cannot load 1 from batch 2 on: 2 are to come, from batch 4 on"),
    "skips a batch": (lambda core: core.load(5, 1), "cannot load 1 from batch 5 on: 2 are to come, from batch 4 on"),
    "loads after it is done": (lambda core: (core.loader_done(), core.load(4, 1)), "0 are to come"),
}  # fmt: skip


def _hold(core: Dispatcher) -> None:
    produce(core, 1, 4)
    assert produce(core, 1, 5) == []
    core.target_ready(1)


def _joint(core: Dispatcher) -> None:
    """Step 0 is applied when drafter 0, whose batch is in it, is lost."""
    core.drafter_ready(1)
    train(core, 1, 2)
    core.computed(0, 0)
    core.drafter_lost(0)


def _apply(core: Dispatcher) -> None:
    core.computed(0, 0)
    core.drafter_lost(1)


@pytest.mark.parametrize("lie", LIES)
def test_a_driver_that_lies_is_told_so(lie: str) -> None:
    tell, message = LIES[lie]
    with pytest.raises(ProtocolError, match=message):
        tell(busy())


def test_a_loader_that_does_not_wait_is_told_so() -> None:
    for count in (3, 4):
        core = dispatcher(6, feed_depth=1, feed="shared")
        core.load(0, count)
        with pytest.raises(ProtocolError, match="cannot load 1 from batch .* on: the feed has not admitted the last"):
            core.load(count, 1)


def test_a_batch_that_does_not_arrive_whole_is_computed_again_and_trained_once() -> None:
    world = World(Setup(targets=1, drafters=1, buckets=(0, 0), prefetch=1))
    for action in [("load", 2), ("target_ready", 0), ("offer", 0), ("drafter_ready", 0), ("refused", 0, 0)]:
        world.do(action)
    assert world.place[0] == FEED
    world.do(("offer", 0))
    while world.ended is None:
        world.do(next(action for action in world.completions() if action[0] != "load"))
    assert world.ended == "data_exhausted" and world.core.ledger.counts()["trained"] == 2


def test_a_batch_that_was_received_cannot_be_refused_any_more() -> None:
    core = Setup(buckets=(0,)).dispatcher()
    core.load(0, 1)
    core.target_ready(0)
    core.offer(0, 0)
    core.drafter_ready(0)
    core.received(0, 0)
    with pytest.raises(ProtocolError, match="is not fetching"):
        core.refused(0, 0)

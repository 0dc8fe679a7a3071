"""What the mutation run showed that no other test pins: what policies are shown and asked, and rarely taken ways.

`make mutate` changes the code in every small way; each test here fails for changes that all others let pass.
"""

from collections.abc import Sequence

import pytest
from test_dispatcher import assign, deliveries, dispatcher, lanes, moves, produce, requiring, setup, train, with_policy
from test_machine import run

from policies.builtin import BUILTIN, Bucketed
from policies.dispatcher import LOADER, Dispatcher
from policies.effects import Admit, Assign, Deliver, Flush, Join, Loaded, Recall, Recompute
from policies.errors import PolicyError, ProtocolError
from policies.ledger import MOVES, TAKEN, Ledger
from policies.policy import WAIT, LaneSpec, Layout, Shape, View


class Scripted:
    """Lanes as given; where batches go and who takes what is as the test says; remembers what it was asked."""

    name = "scripted"

    def __init__(self, *lanes: LaneSpec) -> None:
        self.lanes = lanes or (LaneSpec(name="only", capacity=9),)
        self.lane = 0
        self.takes: dict[int, int] = {}
        """For each consumer the lane that it takes from, once there is something; nobody else takes."""
        self.asked: list[tuple[int, int]] = []
        """(producer, batch) of every `put`."""
        self.reached: list[int] = []
        """The producer of every `reach`."""

    def layout(self, shape: Shape) -> Layout:
        return Layout(lanes=self.lanes)

    def put(self, producer: int, batch: int, view: View) -> int:
        self.asked.append((producer, batch))
        return self.lane

    def take(self, consumer: int, view: View) -> int:
        lane = self.takes.get(consumer, WAIT)
        return lane if lane != WAIT and len(view.lanes[lane]) else WAIT

    def reach(self, producer: int, view: View) -> Sequence[int]:
        self.reached.append(producer)
        return range(len(self.lanes))


def scripted(policy: Scripted, batches: int = 8, *, workers: int = 2, sync: str = "none") -> Dispatcher:
    """As many targets as drafters, between which the policy is; the feed never holds anybody up."""
    return setup(batches, targets=workers, drafters=workers, feed_depth=99, sync=sync).dispatcher(None, policy)


def fed_by(policy: object, batches: int = 8, targets: int = 2) -> Dispatcher:
    """A pipeline with this policy between the loader and the targets."""
    return setup(batches, targets=targets, capacity=9).dispatcher(policy)  # type: ignore[arg-type]


# What a policy is shown ---------------------------------------------------------------------------------------


def test_between_loader_and_targets_a_policy_sees_one_bucket_and_no_window() -> None:
    view = dispatcher(3, policy="bucketed").feed
    assert [view.bucket(batch) for batch in range(3)] == [0, 0, 0]
    assert view.window_buckets(0) == frozenset() and view.window_room(0) == 1


def test_a_batch_may_arrive_in_the_feed_while_the_loader_is_not_held_up() -> None:
    core = dispatcher(4, feed="shared", feed_depth=1)
    assert core.feed.may_arrive(0, 0)
    core.load(0, 3)
    assert core.feed.held and core.feed.to_come == [1]
    core.feed.lanes[0].waiting.pop()
    assert not core.feed.may_arrive(0, 0), "the loader waits, though there is room"
    core = dispatcher(1, feed="shared")
    core.load(0, 1)
    assert not core.feed.may_arrive(0, 0), "there is no other batch"


def test_a_batch_may_arrive_only_where_some_target_that_moves_sends_it() -> None:
    core = dispatcher(4, policy="round_robin", targets=2, drafters=2)
    assert core.dispatch.may_arrive(0, 0) and core.dispatch.may_arrive(0, 1)
    core.target_lost(1)
    assert core.dispatch.may_arrive(0, 0) and not core.dispatch.may_arrive(0, 1)


@pytest.mark.parametrize(("sync", "left"), [("none", [2, 3]), ("step", [5, 5]), ("pooled", [5, 5])])
def test_a_policy_sees_how_many_places_the_step_has_left(sync: str, left: list[int]) -> None:
    core = dispatcher(8, drafters=2, capacity=8, sync=sync, accumulate=3)
    core.drafter_ready(0)
    produce(core, 0, 0)
    assert [core.dispatch.window_room(drafter) for drafter in range(2)] == left


def test_a_policy_sees_how_many_places_the_step_taken_ahead_of_has_left() -> None:
    core = dispatcher(8, drafters=2, capacity=8, sync="step", accumulate=2, prefetch=2)
    core.drafter_ready(0)
    for batch in range(3):
        produce(core, 0, batch)
    assert [core.dispatch.window_room(drafter) for drafter in range(2)] == [3, 2]


def test_lanes_are_named_after_the_drafter_or_the_bucket_that_they_serve() -> None:
    shape = Shape(producers=1, consumers=2, depth=1, buckets=("short", "long"))
    names = {name: [lane.name for lane in policy().layout(shape).lanes] for name, policy in BUILTIN.items()}
    fixed = ["lane/0", "lane/1"]
    assert names == {"round_robin": fixed, "rotating": fixed, "shared": ["shared"], "bucketed": ["short", "long"]}


def test_bucketed_holds_depth_times_its_lanes_unless_a_capacity_is_given() -> None:
    for capacity, bound in ((None, 6), (5, 5)):
        layout = Bucketed().layout(Shape(producers=1, consumers=1, depth=3, capacity=capacity, buckets=("a", "b")))
        assert layout.bound == bound and [lane.capacity for lane in layout.lanes] == [bound, bound]


# What a policy is asked ---------------------------------------------------------------------------------------


def test_a_batch_that_comes_back_to_the_feed_is_put_there_as_the_loaders() -> None:
    policy = Scripted()
    policy.takes = {0: 0}
    core = fed_by(policy)
    core.target_ready(0)
    core.load(0, 2)
    assert policy.asked == [(LOADER, 0), (LOADER, 1)]
    core.target_lost(0)
    assert policy.asked[2:] == [(LOADER, 0)]


def test_an_offer_that_is_dealt_again_is_put_as_what_it_is() -> None:
    policy = Scripted(LaneSpec(name="a", capacity=0, reader=0), LaneSpec(name="b", capacity=0, reader=1))
    core = scripted(policy)
    produce(core, 1, 0)
    policy.lane = 1
    core.drafter_lost(0)
    assert policy.asked == [(1, 0), (1, 0)] and core.dispatch.held == [(1, 0, 1)]


def test_a_loss_deals_no_offer_again_whose_own_lane_is_still_read() -> None:
    core = dispatcher(9, policy="rotating", targets=3, drafters=3, capacity=0)
    assert [produce(core, target, target) for target in range(3)] == [[], [], []]
    core.drafter_lost(1)
    assert core.dispatch.held == [(0, 0, 0), (1, 1, 2), (2, 2, 2)]


def test_who_is_dry_is_asked_for_the_targets_that_are_open() -> None:
    policy = Scripted()
    policy.takes = {0: 0}
    core = scripted(policy, sync="step")
    core.drafter_ready(0), core.drafter_ready(1)
    core.target_lost(0)
    assert deliveries(produce(core, 1, 0))
    assert policy.reached == [1]


def test_rotating_reaches_the_lanes_whose_turn_comes_with_what_is_still_to_come() -> None:
    core = dispatcher(5, policy="rotating", drafters=3, capacity=9)
    for batch in range(3):
        produce(core, 0, batch)
    assert list(core.dispatch.policy.reach(0, core.dispatch)) == [0, 1]
    produce(core, 0, 3)
    assert list(core.dispatch.policy.reach(0, core.dispatch)) == [1]


def test_a_policy_with_a_name_of_its_own_is_called_by_it() -> None:
    policy = Scripted()
    policy.lane = 7
    with pytest.raises(PolicyError, match=r"^scripted\.put answered 7 for batch 0"):
        produce(scripted(policy), 0, 0)
    policy = Scripted(LaneSpec(name="a", capacity=9, reader=0), LaneSpec(name="b", capacity=9, reader=1))
    policy.takes = {1: 0}
    core = scripted(policy)
    core.drafter_ready(1)
    with pytest.raises(PolicyError, match=r"^scripted\.take gave consumer 1 lane 'a', which only consumer 0 reads$"):
        produce(core, 0, 0)


def test_an_answer_that_is_refused_is_shown_with_the_rule() -> None:
    core = with_policy(take_answer=7)
    rule = r"^Mine\.take answered 7 for consumer 0: give a lane with a waiting batch, or WAIT$"
    with pytest.raises(PolicyError, match=rule):
        core.drafter_ready(0)
    core = with_policy(put_answer=7)
    rule = r"^Mine\.put answered 7 for batch 0: give a lane from 0 to 0 whose reader lives$"
    with pytest.raises(PolicyError, match=rule):
        produce(core, 0, 0)


def test_a_layout_that_is_refused_is_named_with_all_that_is_wrong() -> None:
    policy = Scripted(LaneSpec(name="x", capacity=-1, reader=2))
    rule = (
        r"^scripted\.layout answered capacity -1 for lane 'x': give an integer, at least 0; "
        r"reader 2 for lane 'x': give None or a number from 0 to 1$"
    )
    with pytest.raises(PolicyError, match=rule):
        scripted(policy)
    policy = Scripted()
    policy.lanes = ()
    with pytest.raises(PolicyError, match=r"^scripted\.layout answered no lane: give at least one$"):
        scripted(policy)


# Who is served ------------------------------------------------------------------------------------------------


class SecondAfterFirst(Scripted):
    """Consumer 0 takes only after consumer 1 has."""

    def take(self, consumer: int, view: View) -> int:
        lane = super().take(consumer, view)
        if consumer == 1 and lane != WAIT:
            self.takes[0] = 0
        return lane


def test_who_was_told_to_wait_is_asked_again_when_another_was_served() -> None:
    policy = SecondAfterFirst()
    core = scripted(policy)
    core.drafter_ready(0), core.drafter_ready(1)
    produce(core, 0, 0), produce(core, 0, 1)
    assign(core, 0, 2)
    policy.takes = {1: 0}
    assert moves(core.offer(0, 2)) == [("admit", 0, 2), ("deliver", 1, 0), ("deliver", 0, 1)]


def test_who_was_told_to_wait_beside_a_lane_of_its_own_is_asked_again() -> None:
    policy = Scripted(LaneSpec(name="a", capacity=9, reader=0), LaneSpec(name="b", capacity=9, reader=1))
    core = scripted(policy)
    core.drafter_ready(0)
    produce(core, 0, 0)
    policy.takes = {0: 0}
    assert moves(core.load(1, 1)) == [("deliver", 0, 0)]


def test_all_held_offers_are_handed_over_when_a_step_sets_their_drafters_free() -> None:
    core = dispatcher(4, targets=2, drafters=2, capacity=0, sync="step")
    core.drafter_ready(0), core.drafter_ready(1)
    produce(core, 0, 0), produce(core, 1, 1)
    train(core, 0, 0), train(core, 1, 1)
    assert produce(core, 0, 2) == produce(core, 1, 3) == []
    assert moves(core.commit(0, (0, 1))) == [
        ("admit", 0, 2), ("deliver", 0, 2), ("admit", 1, 3), ("deliver", 1, 3)
    ]  # fmt: skip


def test_all_held_offers_are_admitted_that_a_lost_target_leaves_room_for() -> None:
    core = dispatcher(4, targets=3, capacity=2)
    produce(core, 0, 0), produce(core, 0, 1)
    assert produce(core, 1, 2) == produce(core, 2, 3) == []
    told = core.target_lost(0)
    assert [effect for effect in told if isinstance(effect, Admit)] == [Admit(1, 2, 0), Admit(2, 3, 0)]


def test_a_drafter_that_is_offered_one_batch_and_takes_another_lets_it_go_to_the_next() -> None:
    policy = Scripted(LaneSpec(name="handed", capacity=0), LaneSpec(name="kept", capacity=9))
    core = scripted(policy)
    core.drafter_ready(0), core.drafter_ready(1)
    policy.lane = 1
    produce(core, 0, 0)
    assign(core, 0, 1)
    policy.lane, policy.takes = 0, {0: 1, 1: 0}
    assert core.offer(0, 1)[:3] == [Deliver(0, 0, 1, 0, 0, True), Admit(0, 1, 0), Deliver(1, 1, 0, 0, 1, True)]


def test_a_drafter_that_is_offered_one_batch_and_takes_another_leaves_it_held_if_nobody_else_waits() -> None:
    policy = Scripted(LaneSpec(name="handed", capacity=0), LaneSpec(name="kept", capacity=9))
    core = scripted(policy)
    core.drafter_ready(0)
    policy.lane = 1
    produce(core, 0, 0)
    assign(core, 0, 1)
    policy.lane, policy.takes = 0, {0: 1}
    assert moves(core.offer(0, 1)) == [("deliver", 0, 0)]
    assert core.dispatch.held == [(0, 1, 0)] and not core.dispatch.lanes[0].waiting


def test_a_batch_is_being_fetched_from_its_delivery_until_it_is_received() -> None:
    core = dispatcher(4, drafters=2, capacity=4)
    produce(core, 0, 0)
    assert not core.is_fetching(0, 0)
    core.drafter_ready(0)
    assert core.is_fetching(0, 0) and not core.is_fetching(1, 0) and not core.is_fetching(0, 1)
    core.received(0, 0)
    assert not core.is_fetching(0, 0)


@pytest.mark.parametrize("feed", ["shared", "rotating"])
def test_a_blocked_target_for_which_the_feed_holds_a_batch_is_open(feed: str) -> None:
    core = setup(2, feed=feed, feed_depth=0, capacity=0).dispatcher()
    core.target_ready(0)
    core.load(0, 1)
    assert core.offer(0, 0) == core.load(1, 1) == []
    assert list(core.open_targets()) == [0]


# Buckets ------------------------------------------------------------------------------------------------------


def test_prefer_never_waits_for_a_bucket_that_the_step_lacks() -> None:
    core = dispatcher((0, 0, 1), policy="bucketed", accumulate=2, capacity=2)
    core.drafter_ready(0)
    produce(core, 0, 0)
    train(core, 0, 0)
    assert moves(produce(core, 0, 1)) == [("admit", 0, 1), ("deliver", 0, 1)]


def test_require_does_not_wait_while_the_step_has_places_enough_for_what_it_lacks() -> None:
    core = requiring((0, 0, 0, 1), accumulate=3)
    assert moves(produce(core, 0, 1)) == [("admit", 0, 1), ("deliver", 0, 1)]
    train(core, 0, 1)
    assert moves(produce(core, 0, 2)) == [("admit", 0, 2)], "the last place is kept for bucket 1"


def test_require_does_not_wait_once_the_step_holds_buckets_enough() -> None:
    core = requiring((0, 1, 0, 2), accumulate=3)
    produce(core, 0, 1)
    train(core, 0, 1)
    assert moves(produce(core, 0, 2)) == [("admit", 0, 2), ("deliver", 0, 2)]


def test_a_loader_that_ends_early_leaves_nothing_to_come() -> None:
    core = dispatcher((0, 1, 0, 1, 1), policy="bucketed", capacity=4)
    assign(core, 0, 0)
    core.load(1, 1)
    assert core.dispatch.to_come == [2, 3]
    core.loader_done()
    assert core.dispatch.to_come == [1, 1] and core.feed.to_come == [0]


def test_what_comes_back_is_to_come_again() -> None:
    core = dispatcher((0, 0, 1), policy="bucketed", targets=2, capacity=4)
    produce(core, 0, 0)
    assert core.dispatch.to_come == [1, 1]
    core.target_lost(0)
    assert core.dispatch.to_come == [2, 1]


# Steps --------------------------------------------------------------------------------------------------------


def test_a_flushed_part_stays_closed_when_a_batch_of_it_is_recalled() -> None:
    core = dispatcher(2, targets=2, drafters=2, capacity=4, sync="step", accumulate=3, prefetch=2)
    core.drafter_ready(0), core.drafter_ready(1)
    produce(core, 0, 0)
    assert produce(core, 1, 1)[2:] == [Flush(0, 0), Flush(1, 0), Join(1, 0)], "no other batch can reach them"
    assert core.target_lost(0) == [Recompute(0, TAKEN, -1, 0), Recall(0, 0), Assign(1, 0, 1)]
    assert deliveries(core.offer(1, 0)) == [Deliver(0, 0, 0, 1, 1, False)]


def test_a_pooled_budget_that_a_loss_does_not_use_up_stays_open() -> None:
    core = dispatcher(9, drafters=3, capacity=9, sync="pooled", accumulate=4)
    core.drafter_ready(0)
    for batch in range(3):
        produce(core, 0, batch)
        train(core, 0, batch)
    assert core.drafter_lost(2) == []


def test_nobody_is_flushed_while_a_step_is_applied_that_will_set_a_target_free() -> None:
    core = dispatcher(8, policy="rotating", drafters=2, accumulate=2)
    core.drafter_ready(0), core.drafter_ready(1)
    for batch in range(4):
        produce(core, 0, batch)
        train(core, batch % 2, batch)
    core.commit(1, (1, 3))
    produce(core, 0, 4), produce(core, 0, 5)
    train(core, 1, 5)
    assert produce(core, 0, 6) == [], "lane 0 is full until step 0 is applied"
    assert core.load(7, 1) == [Loaded(7, 0)], "drafter 1 gets batch 7 once step 0 is applied"
    assert lanes(core.commit(0, (0, 2))) == [0]


def test_a_step_that_is_not_the_one_being_applied_is_told_from_it() -> None:
    core = dispatcher(4)
    core.drafter_ready(0)
    produce(core, 0, 0)
    train(core, 0, 0)
    with pytest.raises(ProtocolError, match="^step 1 is not being applied: step 0 is being applied$"):
        core.commit(1, ())


def test_who_computes_a_batch_that_its_step_does_not_wait_for_is_told_what_it_waits_for() -> None:
    core = dispatcher(4, capacity=4, accumulate=2, prefetch=2)
    core.drafter_ready(0)
    for batch in range(3):
        produce(core, 0, batch)
    core.received(0, 2)
    with pytest.raises(ProtocolError, match=r"^drafter 0 computed batch 2; step 0 waits for \[0, 1\] of it$"):
        core.computed(0, 2)
    core = dispatcher(4, drafters=2, capacity=4, sync="step")
    core.drafter_ready(0), core.drafter_ready(1)
    produce(core, 0, 0), produce(core, 0, 1)
    train(core, 0, 0), train(core, 1, 1)
    core.drafter_lost(0)
    with pytest.raises(ProtocolError, match=r"^drafter 0 computed batch 0; step 0 waits for nothing of it$"):
        core.computed(0, 0)


# The ledger ---------------------------------------------------------------------------------------------------


def test_batches_move_as_the_table_of_the_ledger_says_and_in_all_of_its_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[tuple[int, int]] = set()
    move = Ledger.move

    def record(self: Ledger, batch: int, source: int, to: int) -> None:
        made.add((source, to))
        move(self, batch, source, to)

    monkeypatch.setattr(Ledger, "move", record)
    for seed in range(100):
        run(seed)
    assert made == MOVES

"""A driver that may do anything legal in any order, and checks the dispatcher after every input.

`World` keeps its own account of where everything is, from the effects alone, and compares: with the ledger, with the
lanes, with what each worker was told. The conformance kit, the random runs and the exhaustive exploration use it; the
product does not. What must hold is written as `assert`, so `python -O` would check nothing.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from policies.builtin import BUILTIN
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
    Lose,
    PutBack,
    Recall,
    Recompute,
    Release,
    Step,
)
from policies.ledger import FEED, HELD, LOST, RECEIVED, STAGED, TAKEN, TARGET, TRAINED
from policies.policy import WAIT, Policy, Shape

Action = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One pipeline; batch b is of bucket `buckets[b]`."""

    targets: int = 1
    drafters: int = 1
    buckets: tuple[int, ...] = ()
    policy: str = "shared"
    mix: str = "prefer"
    min_buckets: int = 2
    capacity: int = 1
    feed: str = "shared"
    feed_depth: int = 1
    """0 hands over to waiting targets only."""
    sync: str = "step"
    accumulate: int = 1
    prefetch: int = 0
    bounded: bool = False
    """Whether the dispatch policy has one bound over all lanes; `capacity` then counts for each bucket."""

    def feed_shape(self) -> Shape:
        """What the feed's policy is shown."""
        return Shape(
            producers=1,
            consumers=self.targets,
            depth=max(self.feed_depth, 1),
            capacity=None if self.feed_depth else 0,
        )

    def dispatch_shape(self) -> Shape:
        """What the dispatch policy is shown."""
        lanes = max(self.buckets, default=0) + 1
        bounded = self.bounded or self.policy == "bucketed"
        return Shape(
            producers=self.targets,
            consumers=self.drafters,
            depth=1,
            capacity=max(self.capacity, 1) * lanes if bounded else self.capacity,
            buckets=tuple(f"b{k}" for k in range(lanes)),
            mix=self.mix,
            min_buckets=self.min_buckets,
        )

    def dispatcher(self, feed: Policy | None = None, dispatch: Policy | None = None) -> Dispatcher:
        """A fresh dispatcher; `feed` and `dispatch` may be policies that are not built in."""
        return Dispatcher(
            feed=BUILTIN[self.feed]() if feed is None else feed,
            feed_shape=self.feed_shape(),
            dispatch=BUILTIN[self.policy]() if dispatch is None else dispatch,
            dispatch_shape=self.dispatch_shape(),
            bucket_of=list(self.buckets),
            sync=self.sync,
            accumulate=self.accumulate,
            prefetch=self.prefetch,
        )


class World:
    """The workers, as they see themselves."""

    def __init__(self, setup: Setup, dispatcher: Dispatcher | None = None) -> None:
        self.setup = setup
        self.core = setup.dispatcher() if dispatcher is None else dispatcher
        n, self.groups = len(setup.buckets), setup.drafters if setup.sync == "none" else 1
        self.place = [FEED] * n
        self.source = [-1] * n
        self.lane_of = [-1] * n
        self.outside: set[int] = set()
        """Put back into a lane of drafters' batches, or of the feed: they do not count for the capacity."""
        self.next = 0
        self.loading: int | None = None
        """The last batch that the loader has ready, while the feed has not admitted it."""
        self.loader_done = False
        self.targets = {t: "starting" for t in range(setup.targets)}
        self.hand = [-1] * setup.targets
        self.asking: list[int] = []
        """The targets that wait for a batch, in the order they asked."""
        self.passed_over = [0] * len(self.core.dispatch.lanes)
        """For each lane, takes from other lanes since it was last taken from or had nothing."""
        self.live = list(range(setup.drafters))
        self.asks = [0] * setup.drafters
        """Batches that each drafter may have and not have computed: 0 before it is ready."""
        self.open = [d if setup.sync == "none" else 0 for d in range(setup.drafters)]
        self.fetching: list[list[Deliver]] = [[] for _ in range(setup.drafters)]
        self.ready: list[list[Deliver]] = [[] for _ in range(setup.drafters)]
        self.computed: list[list[int]] = [[] for _ in range(setup.drafters)]
        self.flushed: set[tuple[int, int]] = set()
        """(drafter, step) told to close early."""
        self.joined: set[tuple[int, int]] = set()
        self.applying: dict[int, Step] = {}
        self.trained_by: dict[int, int] = {}
        self.lost: set[int] = set()
        self.ended: str | None = None
        self.losses = 0
        self.stopped_early = False

    # What can happen ------------------------------------------------------------------------------------------

    def completions(self, any_order: bool = True) -> list[Action]:
        """What workers may do next without anything going wrong."""
        found: list[Action] = []
        if self.loading is None and not self.loader_done:
            left = len(self.place) - self.next
            found += [("load", count) for count in range(1, left + 1)] or [("loader_done",)]
        for target, state in self.targets.items():
            if state == "starting":
                found.append(("target_ready", target))
            elif state == "computing":
                found.append(("offer", target))
        for drafter in self.live:
            if not self.asks[drafter]:
                found.append(("drafter_ready", drafter))
            for position in range(len(self.fetching[drafter]) if any_order else min(1, len(self.fetching[drafter]))):
                found.append(("received", drafter, position))
            if self._current(drafter) is not None:
                found.append(("computed", drafter))
        found += [("commit", step) for step in self.applying]
        return found

    def choose(self, rng: random.Random, weight: Callable[[Action], float] = lambda action: 1.0) -> Action:
        """One of the completions; to load any number of batches is one of them."""
        actions = self.completions()
        chosen = [action for action in actions if action[0] != "load" or action[1] == 1]
        action = rng.choices(chosen, [weight(action) for action in chosen])[0]
        return rng.choice([it for it in actions if it[0] == "load"]) if action[0] == "load" else action

    def disruptions(self) -> list[Action]:
        """What may go wrong next."""
        return [
            *(("target_lost", t) for t in self.targets),
            *(("drafter_lost", d) for d in self.live),
            *(("refused", d, k) for d in self.live for k in range(len(self.fetching[d]))),
            *(("abandon", step) for step in self.applying),
            *([("loader_stops",)] if self.loading is None and not self.loader_done else []),
        ]

    def do(self, action: Action) -> None:
        """Carry out one action, follow the effects, check everything."""
        self.act(action)
        self.check()

    def settle(self) -> None:
        """Prompt workers: they start, and what was delivered arrives, before anything else happens."""
        prompt = ("target_ready", "drafter_ready", "received")
        while self.ended is None:
            at_once = [action for action in self.completions(False) if action[0] in prompt]
            if not at_once:
                return
            self.act(at_once[0])

    def act(self, action: Action) -> None:
        """Carry out one action and follow its effects, each of which must be possible."""
        self.follow(self.tell(action))

    def tell(self, action: Action) -> list[Effect]:
        """Report one action to the dispatcher; its answer is to be followed."""
        name, *rest = action
        effects: list[Effect] = getattr(self, f"_{name}")(*rest)
        return effects

    def follow(self, effects: list[Effect]) -> None:
        """Carry out the dispatcher's answer, each part of which must be possible."""
        for effect in effects:
            assert self.ended is None, f"{effect} after the end"
            getattr(self, f"_on_{type(effect).__name__.lower()}")(effect)
        self._check_asks_after_admissions(effects)
        self._forget_lost()

    def _current(self, drafter: int) -> Deliver | None:
        """The micro-batch the drafter computes next: the first that arrived of its open step."""
        if any(drafter in told.drafters for told in self.applying.values()):
            return None
        return next((d for d in self.ready[drafter] if d.step == self.open[drafter]), None)

    # Inputs ---------------------------------------------------------------------------------------------------

    def _load(self, count: int) -> list[Effect]:
        first, self.next = self.next, self.next + count
        self.loading = self.next - 1
        return self.core.load(first, count)

    def _loader_done(self) -> list[Effect]:
        self.loader_done = True
        return self.core.loader_done()

    def _loader_stops(self) -> list[Effect]:
        self.losses += 1
        self.loader_done = self.stopped_early = True
        return self.core.loader_done()

    def _target_ready(self, target: int) -> list[Effect]:
        self.targets[target] = "asking"
        self.asking.append(target)
        return self.core.target_ready(target)

    def _offer(self, target: int) -> list[Effect]:
        batch = self.hand[target]
        self.targets[target] = "holding"
        self.place[batch], self.source[batch] = HELD, target
        return self.core.offer(target, batch)

    def _drafter_ready(self, drafter: int) -> list[Effect]:
        self.asks[drafter] = 1 + self.setup.prefetch
        return self.core.drafter_ready(drafter)

    def _received(self, drafter: int, position: int) -> list[Effect]:
        told = self.fetching[drafter].pop(position)
        self.ready[drafter].append(told)
        self.place[told.batch] = RECEIVED
        effects = self.core.received(drafter, told.batch)
        assert effects == [Release(self.source[told.batch], told.batch)]
        return effects

    def _refused(self, drafter: int, position: int) -> list[Effect]:
        self.losses += 1
        return self.core.refused(drafter, self.fetching[drafter][position].batch)

    def _computed(self, drafter: int) -> list[Effect]:
        told = self._current(drafter)
        assert told is not None
        self.ready[drafter].remove(told)
        self.computed[drafter].append(told.batch)
        return self.core.computed(drafter, told.batch)

    def _commit(self, step: int) -> list[Effect]:
        told = self.applying.pop(step)
        for batch in told.batches:
            assert self.place[batch] == RECEIVED, f"batch {batch} is trained twice or was never received"
            self.place[batch] = TRAINED
            self.trained_by[batch] = next(d for d in told.drafters if batch in self.computed[d])
        self._open_next(step, told.drafters)
        return self.core.commit(step, told.batches)

    def _abandon(self, step: int) -> list[Effect]:
        self.losses += 1
        self.applying.pop(step)
        return self.core.abandon(step)

    def _target_lost(self, target: int) -> list[Effect]:
        self.losses += 1
        del self.targets[target]
        self.asking = [t for t in self.asking if t != target]
        return self.core.target_lost(target)

    def _drafter_lost(self, drafter: int) -> list[Effect]:
        self.losses += 1
        self.live.remove(drafter)
        self.applying = {step: told for step, told in self.applying.items() if set(told.drafters) & set(self.live)}
        mine = [batch for batch, owner in self.trained_by.items() if owner == drafter]
        effects = self.core.drafter_lost(drafter)
        told = [batch for effect in effects if isinstance(effect, Lose) for batch in effect.batches]
        expected = sorted(mine) if self.setup.sync == "none" else []
        assert sorted(told) == expected, "lost must be exactly what the lost drafter had trained"
        self.fetching[drafter], self.ready[drafter] = [], []
        return effects

    def _stop(self) -> list[Effect]:
        return self.core.stop("stopped")

    # Effects --------------------------------------------------------------------------------------------------

    def _on_loaded(self, effect: Loaded) -> None:
        assert self.loading == effect.batch, "answered for the last batch that was ready, and once"
        self.loading = None

    def _on_assign(self, effect: Assign) -> None:
        assert self.targets[effect.target] == "asking" and self.place[effect.batch] == FEED
        assert effect.batch < self.next, "assigned before it was loaded"
        if self.setup.feed == "shared":
            assert effect.target == self.asking[0], f"target {self.asking[0]} asked before target {effect.target}"
        self.asking.remove(effect.target)
        self.outside.discard(effect.batch)
        self.targets[effect.target] = "computing"
        self.hand[effect.target] = effect.batch
        self.place[effect.batch] = TARGET

    def _on_admit(self, effect: Admit) -> None:
        assert self.targets[effect.target] == "holding" and self.hand[effect.target] == effect.batch
        self.targets[effect.target] = "asking"
        self.asking.append(effect.target)
        self.hand[effect.target] = -1
        self.place[effect.batch], self.lane_of[effect.batch] = STAGED, effect.lane

    def _on_deliver(self, effect: Deliver) -> None:
        drafter, batch, step = effect.drafter, effect.batch, effect.step
        assert drafter in self.live and self.place[batch] == STAGED and self.lane_of[batch] == effect.lane
        assert effect.source == self.source[batch] and effect.source in self.targets
        inside = len(self.fetching[drafter]) + len(self.ready[drafter])
        assert inside < self.asks[drafter], "delivered without an ask"
        assert step >= self.open[drafter] and (step - self.open[drafter]) % self.groups == 0
        assert (drafter, step) not in self.flushed | self.joined, "delivered into a closed part"
        assert step not in self.applying, "delivered into a step that is being applied"
        self.outside.discard(batch)
        self.place[batch] = TAKEN
        self._count_passed_over(effect.lane)
        self.fetching[drafter].append(effect)
        share, accumulate = self._share(drafter, step), self.setup.accumulate
        if self.setup.sync == "pooled":
            assert step == self.open[drafter], "a pooled step takes nothing ahead"
            total = sum(self._share(d, step) for d in self.live)
            assert total <= accumulate * len(self.live) and effect.closes == (total == accumulate * len(self.live))
        else:
            assert share <= accumulate and effect.closes == (share == accumulate)

    def _on_release(self, effect: Release) -> None:
        assert self.place[effect.batch] == RECEIVED

    def _on_flush(self, effect: Flush) -> None:
        assert effect.drafter in self.live and effect.step == self.open[effect.drafter]
        assert (effect.drafter, effect.step) not in self.flushed | self.joined, "its part is closed already"
        self.flushed.add((effect.drafter, effect.step))

    def _on_join(self, effect: Join) -> None:
        assert effect.step == self.open[effect.drafter]
        assert not self._uncomputed(effect.drafter, effect.step)
        self.joined.add((effect.drafter, effect.step))

    def _on_step(self, effect: Step) -> None:
        members = self.live if self.setup.sync != "none" else [effect.step % self.groups]
        assert list(effect.drafters) == members and effect.step not in self.applying
        assert list(effect.batches) == [b for d in effect.drafters for b in self.computed[d]] and effect.batches
        assert not any(self._uncomputed(d, effect.step) for d in effect.drafters)
        self.applying[effect.step] = effect

    def _on_drop(self, effect: Drop) -> None:
        assert all(self.open[d] == effect.step for d in effect.drafters)
        self._open_next(effect.step, effect.drafters)

    def _on_putback(self, effect: PutBack) -> None:
        assert self.place[effect.batch] == TAKEN and self.lane_of[effect.batch] == effect.lane
        assert effect.drafter not in self.live
        self.place[effect.batch] = STAGED
        self.outside.add(effect.batch)

    def _on_recompute(self, effect: Recompute) -> None:
        assert self.place[effect.batch] == effect.place
        assert effect.lane == (self.lane_of[effect.batch] if effect.place == STAGED else -1)
        self.place[effect.batch] = FEED
        self.outside.add(effect.batch)

    def _on_recall(self, effect: Recall) -> None:
        told = next(d for d in self.fetching[effect.drafter] if d.batch == effect.batch)
        self.fetching[effect.drafter].remove(told)

    def _on_lose(self, effect: Lose) -> None:
        for batch in effect.batches:
            assert self.place[batch] == TRAINED
            self.place[batch] = LOST
            self.lost.add(batch)

    def _on_end(self, effect: End) -> None:
        self.ended = effect.reason

    # Inside ---------------------------------------------------------------------------------------------------

    def _share(self, drafter: int, step: int) -> int:
        done = len(self.computed[drafter]) if step == self.open[drafter] else 0
        return done + self._uncomputed(drafter, step)

    def _count_passed_over(self, taken: int) -> None:
        """Under `bucketed` and `prefer` no bucket is passed over for ever, nor for long."""
        if self.setup.policy != "bucketed" or self.setup.mix != "prefer":
            return
        waiting = {self.lane_of[batch] for batch, at in enumerate(self.place) if at == STAGED} - {taken}
        self.passed_over = [(it + 1) * (lane in waiting) for lane, it in enumerate(self.passed_over)]
        most = self.setup.drafters * (len(self.passed_over) - 1)
        assert max(self.passed_over) <= most, f"a bucket is passed over more than {most} times"

    def _uncomputed(self, drafter: int, step: int) -> int:
        return sum(told.step == step for told in (*self.fetching[drafter], *self.ready[drafter]))

    def _open_next(self, step: int, drafters: tuple[int, ...]) -> None:
        for drafter in drafters:
            self.open[drafter] = step + self.groups
            self.computed[drafter] = []
            self.flushed.discard((drafter, step))
            self.joined.discard((drafter, step))

    def _forget_lost(self) -> None:
        """Drafters that are lost take what they had computed along, unless a step is being applied with it."""
        for drafter in range(self.setup.drafters):
            if drafter not in self.live and not any(drafter in told.drafters for told in self.applying.values()):
                self.computed[drafter] = []

    # What must hold -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Safety in this state; and that somebody can act, unless the run has ended."""
        core = self.core
        assert core.ended == self.ended
        self._check_places()
        self._check_asks()
        if self.ended is not None:
            self._check_end()
            return
        self._check_capacity()
        self._check_conservation_of_work()
        assert self.completions(), f"nobody can act: {core.ledger.counts()}"

    def _check_places(self) -> None:
        core, place = self.core, self.place
        assert [core.ledger.place(b) for b in range(len(place))] == place
        staged = [b for lane in core.dispatch.lanes for b in lane.waiting]
        assert Counter(staged) == Counter(b for b, at in enumerate(place) if at == STAGED)
        assert all(self.lane_of[b] == k for k, lane in enumerate(core.dispatch.lanes) for b in lane.waiting)
        held = {batch: target for target, batch, _ in core.dispatch.held}
        assert len(held) == len(core.dispatch.held)
        assert held == {self.hand[t]: t for t, state in self.targets.items() if state == "holding"}
        assert sorted(held) == [b for b, at in enumerate(place) if at == HELD]
        at_feed = [b for lane in core.feed.lanes for b in lane.waiting] + [b for _, b, _ in core.feed.held]
        at_feed += range(core._next_load, core._next_load + core._supply)
        assert Counter(at_feed) == Counter(b for b in range(self.next) if place[b] == FEED)
        computing = [self.hand[t] for t, state in self.targets.items() if state == "computing"]
        assert sorted(computing) == [b for b, at in enumerate(place) if at == TARGET]
        fetched = [told.batch for d in self.live for told in self.fetching[d]]
        assert sorted(fetched) == [b for b, at in enumerate(place) if at == TAKEN]
        applied = {b for told in self.applying.values() for b in told.batches}
        inside = {told.batch for d in self.live for told in self.ready[d]} | applied
        inside |= {b for d in self.live for b in self.computed[d]}
        assert sorted(inside) == [b for b, at in enumerate(place) if at == RECEIVED]
        to_come = [batch for batch, at in enumerate(place) if at in (FEED, TARGET)]
        to_come = [batch for batch in to_come if batch < self.next or not self.loader_done]
        by_bucket = Counter(self.setup.buckets[batch] for batch in to_come)
        assert all(count == by_bucket[bucket] for bucket, count in enumerate(core.dispatch.to_come))
        for drafter in self.live:
            ours = [told.batch for told in (*self.fetching[drafter], *self.ready[drafter])]
            assert sorted(core.windows[drafter].holding(drafter)) == sorted(ours)
            assert core.windows[drafter].step == self.open[drafter]

    def _check_asks(self) -> None:
        """No ask is lost and none is made twice: of targets, of drafters, or of the loader."""
        core = self.core
        assert sorted(core.feed.waiting) == [t for t, state in self.targets.items() if state == "asking"]
        assert set(core.dispatch.waiting) <= set(self.live)
        for drafter in self.live:
            holding = len(self.fetching[drafter]) + len(self.ready[drafter])
            assert core.dispatch.waiting.count(drafter) + holding == self.asks[drafter]
        unanswered = [*(b for _, b, _ in core.feed.held), *range(core._next_load, core._next_load + core._supply)]
        assert unanswered[-1:] == ([] if self.loading is None else [self.loading])
        assert core.feed.held or not core._supply, "the feed could be offered more"
        assert len(core.feed.held) <= 1
        assert core.feed.to_come[0] == (0 if self.loader_done else len(self.place) - self.next + core._supply)

    def _check_asks_after_admissions(self, effects: list[Effect]) -> None:
        """A target's next batch comes right after the admission of the one before.

        Under a feed in turns, unless its lane is empty: then a batch may come when another target's ask made room.
        """
        if self.setup.feed not in BUILTIN:
            return
        effects = [effect for effect in effects if not isinstance(effect, Loaded)]
        for k, effect in enumerate(effects):
            if isinstance(effect, Admit):
                assigned = [e for e in effects[k + 1 :] if isinstance(e, Assign)]
                at_once = effects[k + 1 : k + 2] == assigned[:1]
                ours = [e for e in assigned if e.target == effect.target]
                assert not (at_once and assigned) or ours[:1] == assigned[:1]
                assert not ours or at_once or self.setup.feed == "rotating"

    def _check_capacity(self) -> None:
        for hop in (self.core.feed, self.core.dispatch):
            inside = [sum(b not in self.outside for b in lane.waiting) for lane in hop.lanes]
            assert all(count <= lane.capacity for count, lane in zip(inside, hop.lanes, strict=True))
            assert hop.bound is None or sum(inside) <= hop.bound

    def _check_conservation_of_work(self) -> None:
        """Nobody waits who could be served: neither a consumer nor a producer that holds a batch."""
        for hop in (self.core.feed, self.core.dispatch):
            for consumer in hop.waiting:
                if hop._moves.may_take(consumer):
                    assert hop._choose(consumer) == WAIT, f"consumer {consumer} waits although it could take"
            for _, batch, index in hop.held:
                assert not hop._fits(index), f"batch {batch} is held although its lane has room"
                lane = hop.lanes[index]
                if lane.capacity == 0 and not lane.waiting:
                    able = [c for c in hop.waiting if hop._moves.may_take(c) and lane.read_by(c)]
                    lane.waiting.append(batch)
                    declined = all(hop._choose(c) == WAIT for c in able)
                    assert declined, f"batch {batch} is held although {able} wait for it"
                    lane.waiting.pop()

    def _check_end(self) -> None:
        if self.ended == "stopped":
            return
        assert self.ended in ("data_exhausted", "worker_lost")
        if self.ended == "data_exhausted":
            loaded = range(self.next) if self.stopped_early else range(len(self.place))
            assert all(self.place[b] in (TRAINED, LOST) for b in loaded), "the run ended early"
        else:
            stranded = any(at < RECEIVED for at in self.place)
            assert not self.live or (not self.targets and stranded)
        if self.setup.sync != "none":
            assert not self.lost, "nothing is lost under step and pooled"

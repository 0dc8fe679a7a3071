"""Every state that a small pipeline can come to, each visited once.

A state is the whole world: the workers, as they see themselves, and the dispatcher. Three reductions make them few;
each leaves out only what differs in names, or in the order of two acts that do not touch each other.

1. Names. Batches of one bucket, step numbers, and the numbers of workers that the policies treat alike do not tell
   states apart (`_Names` says which workers, and `key` which differences still matter while something may go wrong).
2. What may go wrong. Where from, by which lane and in what order a batch came matters only to a loss. Once no more
   losses are allowed these differences are dropped.
3. Arrival. `received` changes nothing but what a later loss brings back, so it commutes with all other acts. While a
   loss may come, batches arrive as late as they can: when they are computed, or, for each loss, every choice of what
   had arrived before it. Later they arrive at once. A drafter's batches arrive in the order they were delivered.

`explore(…, plain=True)` does without all three; `test_explore` compares the two.
"""

import hashlib
import marshal
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, get_args

from policies.effects import Effect
from policies.hop import Hop, Lane
from policies.ledger import HELD, LOST, RECEIVED, TAKEN, TRAINED
from policies.window import Part
from policies.world import Action, Setup, World

Path = tuple[Action, ...]
"""Acts that are carried out together: arrivals, then what they are needed for."""

LIMIT = 3_000_000
NAMED = 9
"""As if so many losses were to come that no name may be dropped."""
ATOMS = frozenset({int, bool, str, bytes, type(None), Setup, *get_args(Effect)})
"""What copies share, since it never changes."""
FLAT = ATOMS | {tuple}
PLAIN = (set, deque, bytearray)
SLOTS = {kind: kind.__slots__ for kind in (Lane, Part)}


@dataclass
class Explored:
    """What an exploration saw."""

    states: int = 0
    transitions: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    arrived: set[bytes] = field(default_factory=set, repr=False)
    """The keys of the states once all that was delivered has arrived."""


def explore(
    setup: Setup, losses: int, *, prompt: bool = False, plain: bool = False, compare: bool = False, limit: int = LIMIT
) -> Explored:
    """Visit every state that completions and at most `losses` disruptions can reach: losses of workers, abandoned
    steps, a loader that ends early.

    In each every check of `World` holds, so somebody can act unless the run has ended; and every completion is
    progress, so completions form no cycle. Hence every way of going on reaches the end. With `prompt` workers all have
    started before anything else happens. `compare` collects `arrived`.
    """
    start = World(setup)
    if prompt:
        for action in [act for act in start.completions() if str(act[0]).endswith("ready")]:
            start.act(action)
    start.check()
    found = Explored()
    visited = {key(start, NAMED if plain else losses, plain)}
    frontier = [start]
    while frontier:
        world = frontier.pop()
        before = progress(world)
        paths = list(_paths(world, losses, plain))
        for number, (path, completes) in enumerate(paths):
            after = world if number == len(paths) - 1 else copied(world)
            for action in path:
                after.act(action)
            left = losses - after.losses
            if not left and not plain:
                _receive_all(after)
            _check_sources(after)
            assert not completes or progress(after) > before, f"{path} is no progress"
            found.transitions += 1
            state = key(after, NAMED if plain else left, plain)
            if state in visited:
                continue
            visited.add(state)
            assert len(visited) <= limit, f"more than {limit} states"
            after.check()
            if compare:
                found.arrived.add(_arrived(after, left))
            if after.ended is None:
                frontier.append(after)
            else:
                found.ends[after.ended] += 1
    found.states = len(visited)
    return found


def _paths(world: World, losses: int, plain: bool) -> Iterator[tuple[Path, bool]]:
    """What may happen next, and whether it is a completion."""
    left = losses - world.losses
    acts = world.completions(any_order=False)
    if plain:
        yield from (((act,), True) for act in acts)
        yield from (((act,), False) for act in world.disruptions() if left)
        return
    yield from (((act,), True) for act in acts if act[0] != "received")
    if not left:
        return
    for drafter in world.live:
        arrivals = _until_it_can_compute(world, drafter)
        if arrivals:
            yield (*_arrivals({drafter: arrivals}), ("computed", drafter)), True
    for act in world.disruptions():
        for arrived in _arrived_before(world, act):
            yield (*_arrivals(arrived), act), False


def _until_it_can_compute(world: World, drafter: int) -> int:
    """How many batches must arrive so that the drafter can compute; 0 if it can already, or cannot at all."""
    if world._current(drafter) is not None or any(drafter in told.drafters for told in world.applying.values()):
        return 0
    steps = [told.step for told in world.fetching[drafter]]
    return steps.index(world.open[drafter]) + 1 if world.open[drafter] in steps else 0


def _arrived_before(world: World, act: Action) -> Iterator[dict[int, int]]:
    """For each drafter, how many batches had arrived before it; every choice that makes a difference to it."""
    most = {}
    if act[0] == "drafter_lost":
        most = {int(act[1]): len(world.fetching[int(act[1])])}
    elif act[0] == "target_lost":
        for drafter in world.live:
            mine = [k for k, told in enumerate(world.fetching[drafter]) if told.source == act[1]]
            most[drafter] = mine[-1] + 1 if mine else 0
    for counts in product(*(range(count + 1) for count in most.values())):
        yield dict(zip(most, counts, strict=True))


def _arrivals(counts: dict[int, int]) -> Path:
    return tuple(("received", drafter, 0) for drafter, count in counts.items() for _ in range(count))


def _receive_all(world: World) -> None:
    if world.ended is None:
        for drafter in world.live:
            while world.fetching[drafter]:
                world.act(("received", drafter, 0))


def _arrived(world: World, left: int) -> bytes:
    """The key of the state once all that was delivered has arrived."""
    world = copied(world)
    _receive_all(world)
    return key(world, left)


def progress(world: World) -> int:
    """Grows with every completion: loading, starting, a batch that moves on or is computed."""
    moved = sum(world.place) + sum(place == TRAINED for place in world.place)
    computed = sum(map(len, world.computed))
    started = sum(state != "starting" for state in world.targets.values()) + sum(asks > 0 for asks in world.asks)
    return world.next + world.loader_done + started + moved + computed


def _check_sources(world: World) -> None:
    """States that differ in where batches came from may count as one: here they are still apart."""
    source = world.core._source
    for batch, place in enumerate(world.place):
        assert not HELD <= place <= RECEIVED or source[batch] == world.source[batch], f"the source of batch {batch}"


# Copies -------------------------------------------------------------------------------------------------------


def copied(world: World) -> World:
    """A copy that shares nothing that can change: what `copy.deepcopy` makes, many times as fast.

    It relies on containers whose elements are of one kind, and on tuples in lists to hold nothing that can change.
    """
    copy: World = _copied(world, {})
    return copy


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    new = memo.get(id(value))
    if new is not None:
        return new
    kind = type(value)
    new = memo[id(value)] = kind.__new__(kind)
    slots = SLOTS.get(kind)
    if slots is not None:
        for name in slots:
            it = getattr(value, name)
            setattr(new, name, it if type(it) in ATOMS else it.copy())
        return new
    state = vars(new)
    state.update(vars(value))
    for name, it in state.items():
        kind = type(it)
        if kind in ATOMS:
            continue
        if kind is list:
            of = type(it[0]) if it else int
            if of in FLAT:
                state[name] = it[:]
            elif of is list:
                state[name] = [each[:] for each in it]
            elif id(it) in memo:
                state[name] = memo[id(it)]
            else:
                state[name] = memo[id(it)] = [_copied(each, memo) for each in it]
        elif kind is dict:
            flat = all(type(each) in ATOMS for each in it.values())
            state[name] = it.copy() if flat else {k: _copied(each, memo) for k, each in it.items()}
        elif kind is tuple:
            if it and type(it[0]) not in ATOMS:
                state[name] = tuple([_copied(each, memo) for each in it])
        elif kind in PLAIN:
            state[name] = it.copy()
        else:
            state[name] = _copied(it, memo)
    return new


# Names --------------------------------------------------------------------------------------------------------


class _Names:
    """The workers in an order that depends on what they do, not on their numbers, as far as policies treat them alike.

    Any order gives a right key: two states with the same key are the same up to names. The better the order, the more
    states are seen to be the same.

    * Under a feed that is shared, targets are alike; under `round_robin` those of one drafter, once nothing goes wrong
      any more. A feed in turns makes them a ring that begins with the next to be dealt to, once nothing goes wrong any
      more (a loss changes whose turn it is in a way that depends on the count of turns).
    * Drafters are alike under `shared` while at most one thing goes wrong; under `bucketed` and `round_robin` (each
      with its own targets) once nothing does. Under `rotating` they are a ring, likewise. What tells them apart before
      is an abandoned step, whose batches come back in the order of the drafters' numbers.
    """

    def __init__(self, world: World, left: int, plain: bool) -> None:
        setup, core = world.setup, world.core
        self.targets = list(range(setup.targets))
        self.drafters = list(range(setup.drafters))
        self.owner: list[int] = []
        """Under `round_robin`, the drafter of each target."""
        live = core.dispatch.consumers
        if setup.policy == "round_robin" and live:
            self.owner = [live[target % len(live)] for target in self.targets]
        if plain:
            return
        alike = setup.policy == "shared" and left < 2 or not left and setup.policy != "rotating"
        mates: list[tuple[object, ...]] = []
        if alike or setup.feed == "shared" and (not left or setup.policy != "round_robin"):
            mates = [self._target(world, t) for t in self.targets]
        if alike:
            mine = [sorted(mates[t] for t in self.targets if self.owner and self.owner[t] == d) for d in self.drafters]
            desks = [(*self._drafter(world, d), mine[d]) for d in self.drafters]
            self.drafters.sort(key=desks.__getitem__)  # type: ignore[arg-type]
        elif not left:
            self.drafters = _ring(self.drafters, core.dispatch)
        at = {d: k for k, d in enumerate(self.drafters)}
        if setup.feed == "shared" and (not left or setup.policy != "round_robin"):
            if left:
                mates = [(*mates[t], _whereabouts(world, t, at)) for t in self.targets]
            if self.owner:
                mates = [(at[self.owner[t]], *mates[t]) for t in self.targets]
            self.targets.sort(key=mates.__getitem__)  # type: ignore[arg-type]
        elif setup.feed == "rotating" and not left:
            self.targets = _ring(self.targets, core.feed)

    def _target(self, world: World, t: int) -> tuple[object, ...]:
        if t not in world.targets:
            return ("~lost",)
        state, hand = world.targets[t], world.hand[t]
        held = next((k for k, it in enumerate(world.core.dispatch.held) if it[0] == t), -1)
        asks = world.asking.index(t) if t in world.asking else -1
        return state, asks, held, world.setup.buckets[hand] if hand >= 0 else -1, hand in world.outside

    def _drafter(self, world: World, d: int) -> tuple[object, ...]:
        if d not in world.live:
            return (9,)
        part = world.core.windows[d].parts[d]
        waits = [k for k, it in enumerate(world.core.dispatch.waiting) if it == d]
        buckets, first = world.setup.buckets, world.open[d]
        desk = [[(buckets[it.batch], it.step - first) for it in at] for at in (world.fetching[d], world.ready[d])]
        lane = len(world.core.dispatch.lanes[d]) if world.setup.policy == "round_robin" else 0
        cursor = world.core.dispatch.policy._cursor[d] if world.setup.policy == "bucketed" else 0  # type: ignore
        return world.asks[d], waits, desk, len(world.computed[d]), part.closed, part.flushed, lane, cursor


def _ring(workers: list[int], hop: Hop) -> list[int]:
    """The live ones from the next to be dealt to, then the lost."""
    live = hop.consumers
    turn = hop.policy._dealt % len(live) if live else 0  # type: ignore[attr-defined]
    return [*live[turn:], *live[:turn], *(worker for worker in workers if worker not in live)]


def _whereabouts(world: World, t: int, at: dict[int, int]) -> list[tuple[int, int, int]]:
    """Where the target's batches wait, or are on their way to."""
    source = world.source
    staged = [(0, k, p) for k, lane in enumerate(world.core.dispatch.lanes)
              for p, batch in enumerate(lane.waiting) if source[batch] == t]  # fmt: skip
    taken = [(1, at[d], p) for d in world.live for p, told in enumerate(world.fetching[d]) if told.source == t]
    return staged + sorted(taken)


def key(world: World, left: int, plain: bool = False) -> bytes:
    """Everything that decides how the world goes on while at most `left` more things go wrong, without names."""
    core, setup = world.core, world.setup
    names = _Names(world, left, plain)
    target_at = [-1] * setup.targets
    for k, it in enumerate(names.targets):
        target_at[it] = k
    drafter_at = [-1] * setup.drafters
    for k, it in enumerate(names.drafters):
        drafter_at[it] = k
    order = _order(world, left)

    def named(batch: int) -> tuple[int, ...]:
        if batch < 0:
            return ()
        if not left:
            return setup.buckets[batch], batch in world.outside
        place = world.place[batch]
        source = target_at[world.source[batch]] if HELD <= place <= TAKEN else -1
        lane = lane_at(core.dispatch, drafter_at)[world.lane_of[batch]] if place == TAKEN else -1
        return setup.buckets[batch], batch in world.outside, source, lane, order[batch]

    def lane_at(it: Hop, at: list[int]) -> list[int]:
        return at if it.lanes[0].reader is not None else list(range(len(it.lanes)))

    def hop(it: Hop, producers: list[int], consumers: list[int], order: list[int]) -> tuple[object, ...]:
        lanes = lane_at(it, consumers)
        own = it.lanes[0].reader is not None
        waiting = [(tuple(map(named, it.lanes[k].waiting)), it.lanes[k].orphan)
                   for k in (order if own else range(len(it.lanes)))]  # fmt: skip
        held = [(producers[producer], named(batch), lanes[lane]) for producer, batch, lane in it.held]
        asked = [consumers[it] for it in it.waiting]
        orphans = [lanes[k] for k in it._orphans]
        rest = it.declined, tuple(orphans), tuple(it.to_come), turn(it, order)
        return tuple(waiting), tuple(held), tuple(asked), rest

    def turn(it: Hop, order: list[int]) -> tuple[int, ...]:
        state = vars(it.policy)
        if "_cursor" in state:
            return (*(state["_cursor"][d] for d in order), state["_require"])
        if "_dealt" in state:
            return (state["_dealt"] % 60 if left else 0,)
        assert not state, f"what is {state}?"
        return ()

    def drafter(d: int) -> tuple[object, ...]:
        if d not in world.live:
            return ()
        first = world.open[d]
        desk = tuple([
            tuple([(named(told.batch), told.step - first) for told in queue])
            for queue in (world.fetching[d], world.ready[d])
        ])  # fmt: skip
        window = core.windows[d]
        part = window.parts[d]
        computed = [named(batch) for batch in world.computed[d]]
        return (
            desk, tuple(computed if left else sorted(computed)), world.asks[d],
            part.closed, part.flushed, part.joined, (d, first) in world.flushed, (d, first) in world.joined,
            window.stepping, window._size, window._joined,
        )  # fmt: skip

    def applied(told: Any) -> tuple[object, ...]:
        batches = [named(batch) for batch in told.batches]
        return tuple(batches if left else sorted(batches)), tuple(sorted(drafter_at[d] for d in told.drafters))

    owners = world.trained_by.items() if setup.sync == "none" and left else ()
    hands = [(world.targets[t], named(world.hand[t])) if t in world.targets else () for t in names.targets]
    state = (
        (world.next, core._supply, world.loading is None, world.loader_done, world.stopped_early),
        tuple(hands),
        tuple([target_at[t] for t in world.asking]),
        tuple([drafter(d) for d in names.drafters]),
        tuple([drafter_at[names.owner[t]] for t in names.targets] if names.owner else ()),
        tuple(sorted(map(applied, world.applying.values()))),
        tuple(sorted([(drafter_at[owner], batch in world.lost) for batch, owner in owners])),
        # These follow from the rest while the dispatcher is right; when it is not, a wrong state must not pass for a
        # right one that was seen before.
        (core._unsettled, *(world.place.count(at) - core.ledger.count(at) for at in range(LOST + 1))),
        tuple(world.passed_over) if setup.policy == "bucketed" and setup.mix == "prefer" else (),
        hop(core.feed, [0], target_at, names.targets),
        hop(core.dispatch, target_at, drafter_at, names.drafters),
        world.losses,
        world.ended,
    )
    return hashlib.blake2b(marshal.dumps(state, 2), digest_size=16).digest()


def _order(world: World, left: int) -> list[int]:
    """For each batch its place in the order of numbers among those that a loss can bring back one before the other.

    Only a lost target asks for it: what was on its way from it is recalled in the order of numbers. While nothing has
    gone wrong yet a target's batches rise with the time, so with one loss to come only batches of one target need to be
    told apart; otherwise all that are not trained.
    """
    order = [0] * len(world.place)
    if left:
        apart = left > 1 or world.losses > 0
        count: Counter[int] = Counter()
        for batch, place in enumerate(world.place):
            if HELD <= place <= TAKEN or apart and place < TRAINED:
                group = -1 if apart else world.source[batch]
                order[batch] = count[group]
                count[group] += 1
    return order

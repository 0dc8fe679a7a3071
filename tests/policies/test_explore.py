"""Every interleaving of what workers may do, for small pipelines: safety in every state, and the end always reachable.

A state is the whole world (workers and dispatcher); two states that differ only in the names of batches of one bucket,
or in step numbers, are the same. In every state all checks of `machine.World` hold, so somebody can act unless the run
has ended; completions alone form no cycle; hence every way of going on reaches the end.
"""

import pickle
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from machine import Setup, World

from policies.hop import Hop
from policies.ledger import TAKEN


@dataclass
class Explored:
    """What an exploration saw."""

    states: int = 0
    ends: Counter[str] = field(default_factory=Counter)


def key(world: World) -> object:
    """Everything that decides how the world goes on, without the names of batches and the numbers of steps."""
    core, setup = world.core, world.setup

    def named(batch: int) -> tuple[int, int, int, bool]:
        lane = world.lane_of[batch] if world.place[batch] == TAKEN else -1
        source = world.source[batch] if world.place[batch] in range(2, 5) else -1
        return setup.buckets[batch], source, lane, batch in world.outside

    def hop(it: Hop) -> object:
        lanes = tuple((tuple(map(named, lane.waiting)), lane.orphan) for lane in it.lanes)
        held = tuple((producer, named(batch), lane) for producer, batch, lane in it.held)
        policy = {**vars(it.policy), "_dealt": getattr(it.policy, "_dealt", 0) % 60}
        return lanes, held, tuple(it.waiting), tuple(it._orphans), tuple(it.to_come), str(policy)

    def drafter(d: int) -> object:
        if d not in world.live:
            return None
        desk = [
            tuple((named(told.batch), told.step - world.open[d]) for told in queue)
            for queue in (world.fetching[d], world.ready[d])
        ]
        part = core.windows[d].parts[d]
        flags = part.closed, part.flushed, part.joined
        return tuple(desk), sorted(map(named, world.computed[d])), flags, world.asks[d], core.windows[d].stepping

    applied = [(sorted(map(named, told.batches)), told.drafters) for told in world.applying.values()]
    owners = world.trained_by.items() if setup.sync == "none" else ()
    trained = sorted((owner, batch in world.lost) for batch, owner in owners)
    workers = (
        [(t, state, named(world.hand[t]) if world.hand[t] >= 0 else -1) for t, state in world.targets.items()],
        [drafter(d) for d in range(setup.drafters)],
    )
    loader = world.next, world.loading is None, world.loader_done
    return repr((loader, workers, applied, trained, hop(core.feed), hop(core.dispatch), world.losses, world.ended))


def explore(setup: Setup, losses: int, *, prompt: bool = False, limit: int = 400_000) -> Explored:
    """Visit every state that completions and at most `losses` losses or abandoned steps can reach.

    With `prompt` workers, asking and fetching take no time: only computing, loading, steps and losses interleave.
    """
    start = World(setup)
    if prompt:
        start.settle()
    start.check()
    seen: dict[object, int] = {key(start): 0}
    frontier = [(0, pickle.dumps(start))]
    completions: dict[int, list[int]] = defaultdict(list)
    found = Explored()
    while frontier:
        number, packed = frontier.pop()
        world: World = pickle.loads(packed)
        if world.ended is not None:
            found.ends[world.ended] += 1
            continue
        fine = world.completions(any_order=False)
        for action in [*fine, *(world.disruptions() if world.losses < losses else [])]:
            after: World = pickle.loads(packed)
            after.act(action)
            if prompt:
                after.settle()
            state = key(after)
            if state not in seen:
                after.check()
                seen[state] = len(seen)
                assert len(seen) <= limit, f"more than {limit} states"
                frontier.append((seen[state], pickle.dumps(after)))
            if action in fine:
                completions[number].append(seen[state])
    found.states = len(seen)
    assert_acyclic(completions, found.states)
    return found


def assert_acyclic(edges: dict[int, list[int]], states: int) -> None:
    """Every completion is progress: following completions never comes back to a state."""
    entering = Counter(after for afters in edges.values() for after in afters)
    free = [state for state in range(states) if not entering[state]]
    done = 0
    while free:
        done += 1
        for after in edges.get(free.pop(), ()):
            entering[after] -= 1
            if not entering[after]:
                free.append(after)
    assert done == states, "a cycle without progress"


def setups(*, targets: int, drafters: int, batches: int) -> Iterator[Setup]:
    """All policies, feeds, sync modes, capacities 1 and 2, accumulate 1 and 2, with and without prefetch."""
    mixed = tuple(b % 2 for b in range(batches))
    policies = [
        ("round_robin", "prefer", (0,) * batches),
        ("rotating", "prefer", (0,) * batches),
        ("shared", "prefer", (0,) * batches),
        ("bucketed", "prefer", mixed),
        ("bucketed", "require", mixed),
    ]
    for (policy, mix, buckets), feed, sync, capacity, accumulate, prefetch in product(
        policies, ("shared", "rotating"), ("none", "step", "pooled"), (1, 2), (1, 2), (0, 1)
    ):
        if feed == "rotating" and targets == 1 or mix == "require" and accumulate == 1:
            continue
        if prefetch and (sync == "pooled" or capacity == 2):
            continue
        yield Setup(
            targets=targets,
            drafters=drafters,
            buckets=buckets,
            policy=policy,
            mix=mix,
            capacity=capacity,
            feed=feed,
            sync=sync,
            accumulate=accumulate,
            prefetch=prefetch,
        )

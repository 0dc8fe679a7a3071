"""Every interleaving of what workers may do, for small pipelines: safety in every state, and the end always reachable.

A state is the whole world (workers and dispatcher); two states that differ only in the names of batches of one bucket,
or in step numbers, are the same. In every state all checks of `policies.world.World` hold, so somebody can act
unless the run has ended; completions alone form no cycle; hence every way of going on reaches the end.
"""

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

import pytest

from policies.hop import Hop
from policies.ledger import LOST, TAKEN
from policies.world import Setup, World
from tests.conftest import Visited
from tests.specimens.explorer import Size, sizes


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
        return lanes, held, tuple(it.waiting), it.declined, tuple(it._orphans), tuple(it.to_come), str(policy)

    def drafter(d: int) -> object:
        if d not in world.live:
            return None
        desk = [
            tuple((named(told.batch), told.step - world.open[d]) for told in queue)
            for queue in (world.fetching[d], world.ready[d])
        ]
        part = core.windows[d].parts[d]
        flags = part.closed, part.flushed, part.joined
        window = core.windows[d]
        counts = window.stepping, window._size, window._joined
        return tuple(desk), sorted(map(named, world.computed[d])), flags, world.asks[d], counts

    applied = [(sorted(map(named, told.batches)), told.drafters) for told in world.applying.values()]
    owners = world.trained_by.items() if setup.sync == "none" else ()
    trained = sorted((owner, batch in world.lost) for batch, owner in owners)
    workers = (
        [(t, state, named(world.hand[t]) if world.hand[t] >= 0 else -1) for t, state in world.targets.items()],
        [drafter(d) for d in range(setup.drafters)],
    )
    loader = world.next, core._supply, world.loading is None, world.loader_done
    # These follow from the rest while the dispatcher is right; when it is not, a wrong state must not pass for a right
    # one that was seen before.
    settled = core._unsettled, [world.place.count(at) - core.ledger.count(at) for at in range(LOST + 1)]
    hops = hop(core.feed), hop(core.dispatch)
    return repr((loader, workers, applied, trained, settled, hops, world.losses, world.ended))


def explore(setup: Setup, losses: int, *, prompt: bool = False, limit: int = 400_000) -> Explored:
    """Visit every state that completions and at most `losses` disruptions can reach: losses of workers, abandoned
    steps, a loader that ends early.

    With `prompt` workers, starting and fetching take no time: only computing, loading, steps and losses interleave.
    """
    start = World(setup)
    if prompt:
        start.settle()
    start.check()
    seen: dict[object, int] = {key(start): 0}
    frontier = [(0, start.completions(any_order=False), start.disruptions() if losses else [], pickle.dumps(start))]
    edges: dict[int, list[int]] = {}
    found = Explored()
    while frontier:
        number, fine, wrong, packed = frontier.pop()
        reached = []
        for action in [*fine, *wrong]:
            after: World = pickle.loads(packed)
            after.act(action)
            if prompt:
                after.settle()
            state = key(after)
            if state not in seen:
                seen[state] = len(seen)
                assert len(seen) <= limit, f"more than {limit} states"
                after.check()
                if after.ended is None:
                    disruptions = after.disruptions() if after.losses < losses else []
                    frontier.append((seen[state], after.completions(False), disruptions, pickle.dumps(after)))
                else:
                    found.ends[after.ended] += 1
            reached.append(seen[state])
        edges[number] = reached[: len(fine)]
    found.states = len(seen)
    assert_acyclic(edges, found.states)
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


KINDS = [
    ("round_robin", "prefer"),
    ("rotating", "prefer"),
    ("shared", "prefer"),
    ("bucketed", "prefer"),
    ("bucketed", "require"),
]


def setups(
    kind: tuple[str, str], *, targets: int, drafters: int, batches: int, capacities: tuple[int, ...]
) -> Iterator[Setup]:
    """One policy with all feeds and sync modes, accumulate 1 and 2, with and without prefetch."""
    policy, mix = kind
    for feed, sync, capacity, accumulate, prefetch in product(
        ("shared", "rotating"), ("none", "step", "pooled"), capacities, (1, 2), (0, 1)
    ):
        if feed == "rotating" and targets == 1 or mix == "require" and accumulate == 1:
            continue
        if prefetch and (sync == "pooled" or capacity == 2):
            continue
        yield Setup(
            targets=targets,
            drafters=drafters,
            buckets=tuple(b % 2 if policy == "bucketed" else 0 for b in range(batches)),
            policy=policy,
            mix=mix,
            capacity=capacity,
            feed=feed,
            sync=sync,
            accumulate=accumulate,
            prefetch=prefetch,
        )


def explore_all(chosen: Iterable[Setup], losses: int, visited: Visited, *, prompt: bool) -> None:
    """Explore each; report how many states were visited."""
    ends: Counter[str] = Counter()
    for setup in chosen:
        found = explore(setup, losses, prompt=prompt)
        visited(label(setup, losses, prompt), found.states)
        ends += found.ends
    assert ends["data_exhausted"]


def label(setup: Setup, losses: int, prompt: bool) -> str:
    """What tells this exploration from the others."""
    said = [f"{setup.targets}+{setup.drafters}, {len(setup.buckets)} batches", setup.policy]
    said += [setup.mix] if setup.policy == "bucketed" else []
    said += [f"capacity {setup.capacity}", f"feed {setup.feed}", f"sync {setup.sync}", f"accumulate {setup.accumulate}"]
    said += [f"prefetch {setup.prefetch}"] if setup.prefetch else []
    said += [f"{losses} loss{'es' if losses > 1 else ''}"] if losses else []
    return ", ".join([*said, *(["prompt"] if prompt else [])])


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_every_interleaving_of_one_target_and_one_drafter_with_a_loss(kind: tuple[str, str], visited: Visited) -> None:
    explore_all(setups(kind, targets=1, drafters=1, batches=2, capacities=(1,)), 1, visited, prompt=False)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_every_interleaving_of_two_prompt_targets_and_drafters(kind: tuple[str, str], visited: Visited) -> None:
    explore_all(setups(kind, targets=2, drafters=2, batches=3, capacities=(1,)), 0, visited, prompt=True)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_every_interleaving_of_two_prompt_targets_and_drafters_with_a_loss(
    kind: tuple[str, str], visited: Visited
) -> None:
    explore_all(setups(kind, targets=2, drafters=2, batches=2, capacities=(1,)), 1, visited, prompt=True)


def test_every_interleaving_of_a_feed_in_turns_before_fixed_lanes(visited: Visited) -> None:
    """Three targets, two drafters, enough batches for the pipeline to come to rest in the middle of a step."""
    case = Setup(targets=3, drafters=2, buckets=(0,) * 9, policy="round_robin", feed="rotating", sync="step")
    explore_all([case], 0, visited, prompt=True)


@pytest.mark.parametrize("policy", ["round_robin", "rotating", "shared"])
def test_every_interleaving_where_batches_are_only_handed_over(policy: str, visited: Visited) -> None:
    chosen = [
        Setup(targets=2, drafters=2, buckets=(0,) * 3, policy=policy, capacity=0, feed_depth=0, feed=feed, sync=sync)
        for feed, sync in product(("shared", "rotating"), ("none", "step", "pooled"))
    ]
    explore_all(chosen, 1, visited, prompt=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize(
    ("targets", "drafters", "batches", "losses", "prompt"),
    [
        (1, 1, 3, 1, False),
        (1, 2, 3, 0, False),
        (2, 1, 3, 0, False),
        (1, 2, 2, 1, False),
        (2, 1, 2, 1, False),
        (2, 2, 2, 0, False),
        (1, 2, 3, 1, True),
        (2, 1, 3, 1, True),
        (2, 2, 4, 0, True),
        (2, 2, 3, 1, True),
        (2, 2, 2, 2, True),
        (3, 2, 4, 0, True),
        (2, 3, 4, 0, True),
    ],
)
def test_every_interleaving_of_more(
    kind: tuple[str, str], targets: int, drafters: int, batches: int, losses: int, prompt: bool, visited: Visited
) -> None:
    chosen = setups(kind, targets=targets, drafters=drafters, batches=batches, capacities=(1, 2))
    explore_all(chosen, losses, visited, prompt=prompt)


def ours(size: Size, visited: Visited) -> None:
    """The dispatcher at a size of the specimens' bound, with the same one queue."""
    batches = (0,) * size.batches
    setup = Setup(targets=size.targets, drafters=size.drafters, buckets=batches, capacity=size.capacity, sync="none")
    explore_all([setup], 0, visited, prompt=True)


def test_the_dispatcher_passes_where_the_broken_stop_protocols_fail(visited: Visited) -> None:
    for size in sizes(targets=2, drafters=2, batches=4, capacity=2):
        ours(size, visited)


@pytest.mark.slow
def test_the_dispatcher_passes_everywhere_in_the_bound_of_the_stop_protocols(visited: Visited) -> None:
    for size in sizes(targets=3, drafters=3, batches=4, capacity=2):
        ours(size, visited)

"""Every interleaving of what workers may do, for small pipelines: safety in every state, and the end always reachable.

What a state is, and which states count as one, is said in `exploring`. In each all checks of `policies.world.World`
hold, so somebody can act unless the run has ended; every completion is progress, so completions form no cycle; hence
every way of going on reaches the end.

`make explore` visits, for each policy (and both mixes of `bucketed`), both feeds, `sync` none, step and pooled, and
accumulate 1 and 2 (`require`: 2):

* in full while nothing goes wrong: up to 2 targets and 2 drafters with 1 to 5 batches, up to 3 and 3 with 5 batches,
  capacities 1 and 2;
* in full with one loss at any time (a target, a drafter, a step that is abandoned, a loader that ends early): up to 2
  and 2 with 1 to 3 batches, 3 and 2, 2 and 3, 3 and 3 with 2 batches; capacities 1 and 2 with 3 batches, else 1;
* bounded to prompt workers, which have all started before anything else happens: one loss with 3 targets, 3 drafters
  and 5 batches at capacity 1 under the shared feed; two losses with 2, 2 and 2;
* prefetch 1 with 2 targets and 2 drafters: 4 batches in full while nothing goes wrong, prompt with a loss.

In none of them does a drafter's second batch arrive before its first (without prefetch it has but one at a time).
Parts run apart: `pytest -m '' -v tests/policies/test_explore.py -k '3+3-5 and pooled and rotating'`.
"""

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import product

import pytest
from exploring import copied, explore

from policies.effects import Effect
from policies.world import Setup, World
from tests.conftest import Visited
from tests.specimens.explorer import Size, sizes

KINDS = [
    ("round_robin", "prefer"),
    ("rotating", "prefer"),
    ("shared", "prefer"),
    ("bucketed", "prefer"),
    ("bucketed", "require"),
]


FEEDS, SYNCS = ("shared", "rotating"), ("none", "step", "pooled")


def setups(
    kind: tuple[str, str],
    *,
    targets: int,
    drafters: int,
    batches: int,
    capacities: tuple[int, ...] = (1, 2),
    feeds: tuple[str, ...] = FEEDS,
    syncs: tuple[str, ...] = SYNCS,
    prefetch: tuple[int, ...] = (0,),
) -> Iterator[Setup]:
    """One policy with these feeds, sync modes and prefetch, accumulate 1 and 2.

    Left out is what cannot differ: turns among one target, a mix that one micro-batch a step cannot have, and what a
    pooled step would take ahead.
    """
    policy, mix = kind
    for feed, sync, capacity, accumulate, ahead in product(feeds, syncs, capacities, (1, 2), prefetch):
        if feed == "rotating" and targets == 1 or mix == "require" and accumulate == 1 or ahead and sync == "pooled":
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
            prefetch=ahead,
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


kinds = pytest.mark.parametrize("kind", KINDS, ids="-".join)


@kinds
def test_every_interleaving_of_one_target_and_one_drafter_with_a_loss(kind: tuple[str, str], visited: Visited) -> None:
    chosen = setups(kind, targets=1, drafters=1, batches=2, capacities=(1,), prefetch=(0, 1))
    explore_all(chosen, 1, visited, prompt=False)


@kinds
def test_every_interleaving_of_two_targets_and_drafters(kind: tuple[str, str], visited: Visited) -> None:
    explore_all(setups(kind, targets=2, drafters=2, batches=3, capacities=(1,)), 0, visited, prompt=False)


@kinds
def test_every_interleaving_of_two_prompt_targets_and_drafters_with_a_loss(
    kind: tuple[str, str], visited: Visited
) -> None:
    chosen = setups(kind, targets=2, drafters=2, batches=2, capacities=(1,))
    explore_all(chosen, 1, visited, prompt=True)


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


syncs = pytest.mark.parametrize("sync", SYNCS)
FEW = [(targets, drafters) for targets in (1, 2) for drafters in (1, 2)]
MANY = [(1, 3), (3, 1), (2, 3), (3, 2), (3, 3)]
FULL = [(*few, b) for few in FEW for b in range(1, 6)] + [(*many, 5) for many in MANY]
"""(targets, drafters, batches) that are explored in full while nothing goes wrong."""
LOSS = [(*few, b) for few in FEW for b in range(1, 4)] + [(3, 2, 2), (2, 3, 2), (3, 3, 2)]
"""Likewise where one thing may go wrong at any time; with two batches capacity 1 only."""


def sized(cases: list[tuple[int, int, int]]) -> pytest.MarkDecorator:
    names = [f"{targets}+{drafters}-{batches}-batches" for targets, drafters, batches in cases]
    return pytest.mark.parametrize(("targets", "drafters", "batches"), cases, ids=names)


@pytest.mark.slow
@kinds
@syncs
@sized(FULL)
def test_every_interleaving_of_up_to_three_targets_three_drafters_and_five_batches(
    kind: tuple[str, str], sync: str, targets: int, drafters: int, batches: int, visited: Visited
) -> None:
    chosen = setups(kind, targets=targets, drafters=drafters, batches=batches, syncs=(sync,))
    explore_all(chosen, 0, visited, prompt=False)


@pytest.mark.slow
@kinds
@syncs
@sized(LOSS)
def test_every_interleaving_of_up_to_three_targets_and_three_drafters_with_a_loss(
    kind: tuple[str, str], sync: str, targets: int, drafters: int, batches: int, visited: Visited
) -> None:
    capacities = (1, 2) if batches > 2 else (1,)
    chosen = setups(
        kind, targets=targets, drafters=drafters, batches=batches, capacities=capacities, syncs=(sync,)
    )  # fmt: skip
    explore_all(chosen, 1, visited, prompt=False)


@pytest.mark.slow
@kinds
@syncs
def test_every_interleaving_of_three_prompt_targets_three_drafters_and_five_batches_with_a_loss(
    kind: tuple[str, str], sync: str, visited: Visited
) -> None:
    """All workers have started first; only capacity 1, and a feed that all targets share."""
    chosen = setups(
        kind, targets=3, drafters=3, batches=5, capacities=(1,), feeds=("shared",), syncs=(sync,)
    )  # fmt: skip
    explore_all(chosen, 1, visited, prompt=True)


@pytest.mark.slow
@kinds
def test_every_interleaving_of_two_targets_and_drafters_with_prefetch(kind: tuple[str, str], visited: Visited) -> None:
    chosen = list(setups(kind, targets=2, drafters=2, batches=4, syncs=("none", "step"), prefetch=(1,)))
    explore_all(chosen, 0, visited, prompt=False)
    explore_all(chosen, 1, visited, prompt=True)


@pytest.mark.slow
@kinds
def test_every_interleaving_of_two_prompt_targets_and_drafters_with_two_losses(
    kind: tuple[str, str], visited: Visited
) -> None:
    explore_all(setups(kind, targets=2, drafters=2, batches=2, prefetch=(0, 1)), 2, visited, prompt=True)


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


# The explorer itself ------------------------------------------------------------------------------------------


def compare(chosen: Iterable[Setup], losses: int) -> None:
    """The reductions leave nothing out: the plain exploration comes to the same states, but for names and arrivals."""
    for setup in chosen:
        reduced, plain = (explore(setup, losses, plain=plain, compare=True) for plain in (False, True))
        assert reduced.arrived == plain.arrived, label(setup, losses, False)
        assert reduced.states <= plain.states and reduced.ends.keys() == plain.ends.keys()


@kinds
def test_reductions_leave_out_no_state_of_two_targets_and_two_drafters(kind: tuple[str, str]) -> None:
    compare(setups(kind, targets=2, drafters=2, batches=1, capacities=(1,), syncs=("step",)), 0)
    compare(setups(kind, targets=1, drafters=2, batches=1, capacities=(1,), syncs=("none", "pooled")), 1)


@pytest.mark.slow
@kinds
@syncs
def test_reductions_leave_out_no_state_of_larger_pipelines(kind: tuple[str, str], sync: str) -> None:
    compare(setups(kind, targets=2, drafters=2, batches=2, capacities=(1,), syncs=(sync,), prefetch=(0, 1)), 1)
    compare(setups(kind, targets=2, drafters=2, batches=1, capacities=(1,), syncs=(sync,)), 2)
    compare(setups(kind, targets=3, drafters=2, batches=2, capacities=(1,), syncs=(sync,)), 0)
    compare(setups(kind, targets=2, drafters=3, batches=2, capacities=(1,), syncs=(sync,)), 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_of_a_world_is_equal_and_shares_nothing_that_changes(seed: int) -> None:
    """The original goes on, and the copy is still what the original was; from there it goes the same way."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    world = World(rng.choice(list(setups(kind, targets=3, drafters=3, batches=5, prefetch=(0, 1)))))
    for _ in range(rng.randrange(30)):
        if world.ended is None:
            world.do(rng.choice(world.disruptions()) if rng.random() < 0.1 else world.choose(rng))
    before, copy = told(world), copied(world)
    assert told(copy) == before
    going = rng.getstate()
    for each in (world, copy):
        rng.setstate(going)
        while each.ended is None:
            each.do(each.choose(rng))
        if each is world:
            assert told(copy) == before
    assert told(copy) == told(world)


def told(world: World) -> str:
    """All that a world holds, as text."""
    return _told(world, {})


def _told(value: object, seen: dict[int, int]) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_told(it, seen)}' for key, it in value.items())}}}"
    if isinstance(value, list | tuple | deque):
        return f"[{', '.join(_told(it, seen) for it in value)}]"
    if isinstance(value, set):
        return str(sorted(value))
    if type(value).__module__.startswith("policies.") and not isinstance(value, Setup | Effect):
        if id(value) in seen:
            return f"#{seen[id(value)]}"
        seen[id(value)] = len(seen)
        names = getattr(type(value), "__slots__", None) or vars(value)
        return f"{type(value).__name__}({', '.join(f'{name}={_told(getattr(value, name), seen)}' for name in names)})"
    return repr(value)

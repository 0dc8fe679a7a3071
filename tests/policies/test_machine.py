"""Random drivers: any legal action in any order, over random pipelines; every check of `policies.world.World` holds."""

import random
from weakref import WeakSet

import pytest

from policies.builtin import Rotating, RoundRobin
from policies.dispatcher import Dispatcher
from policies.effects import Effect
from policies.world import Setup, World

SEEDS = 400


def random_setup(rng: random.Random) -> Setup:
    """Any pipeline of up to 4 × 4 workers and 14 batches."""
    policy = rng.choice(["round_robin", "rotating", "shared", "bucketed", "bucketed"])
    kinds = rng.randint(1, 3) if policy == "bucketed" else 1
    mix = rng.choice(["prefer", "require"])
    return Setup(
        targets=rng.randint(1, 4),
        drafters=rng.randint(1, 4),
        buckets=tuple(rng.randrange(kinds) for _ in range(rng.randint(0, 14))),
        policy=policy,
        mix=mix,
        min_buckets=rng.randint(2, 3),
        capacity=rng.randint(0, 3),
        feed=rng.choice(["shared", "rotating"]),
        feed_depth=rng.randint(0, 3),
        sync=rng.choice(["none", "step", "pooled"]),
        accumulate=rng.randint(1, 4),
        prefetch=rng.choice([0, 0, 1, 2, 3]),
    )


def run(seed: int) -> World:
    """One random run to its end; each worker has a pace of its own, and things go wrong at a random rate."""
    rng = random.Random(seed)
    world = World(random_setup(rng))
    trouble = rng.choice([0, 0, 0.02, 0.1])
    early = rng.random() < 0.1
    pace: dict[tuple[str | int, ...], float] = {}
    while world.ended is None:
        if trouble and rng.random() < trouble and world.losses < 6:
            disruptions = world.disruptions()
            if disruptions:
                world.do(rng.choice(disruptions))
                continue
        if early and not world.loader_done and world.loading is None and rng.random() < 0.05:
            world.do(("loader_stops",))
            continue
        world.do(world.choose(rng, lambda action: pace.setdefault(action[:2], rng.choice([0.05, 1, 1, 5]))))
    return world


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule for a pipeline at rest may flush somebody only where assignments are fixed."""
    rule, spoilt = Dispatcher._flush_starved, Dispatcher.refused
    refused = WeakSet[Dispatcher]()

    def refuse(self: Dispatcher, drafter: int, batch: int) -> list[Effect]:
        refused.add(self)
        return spoilt(self, drafter, batch)

    def flush(self: Dispatcher) -> None:
        before = len(self._out)
        rule(self)
        if len(self._out) > before:
            dispatch, lost = self.dispatch.policy, len(self.targets) < len(self.computing) or self.dispatch._orphans
            turns = isinstance(self.feed.policy, Rotating) and isinstance(dispatch, RoundRobin)
            uneven = isinstance(dispatch, Rotating | RoundRobin) and (lost or self in refused)
            assert turns or uneven, "the judgement of who is dry is incomplete"

    monkeypatch.setattr(Dispatcher, "_flush_starved", flush)
    monkeypatch.setattr(Dispatcher, "refused", refuse)


@pytest.mark.parametrize("block", range(8))
def test_any_driver_ends_with_everything_accounted_for(block: int) -> None:
    for seed in range(block * SEEDS // 8, (block + 1) * SEEDS // 8):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {random_setup(random.Random(seed))}") from error


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_drivers_end_with_everything_accounted_for(block: int) -> None:
    for seed in range(1_000_000 + 1000 * block, 1_000_000 + 1000 * (block + 1)):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {random_setup(random.Random(seed))}") from error

"""What holds in every simulated run, whatever the pipeline: identities, laws of queues, determinism, honest hangs."""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_sim.prediction import Work
from dflash_sim.simulator import CRASH, HANG, PlannedFault, Simulator
from policies.dispatcher import Dispatcher
from policies.effects import Admit, Deliver, PutBack, Recompute, Step
from policies.ledger import STAGED
from policies.world import Setup
from reports.metrics import Metrics
from reports.observer import Exchange, Log

SECONDS = [0.25, 1.0, 1.0, 2.0, 3.7]
"""Times that often coincide, and some that do not."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Service times in plain lists."""

    targets: list[list[float]]
    drafters: list[list[float]]
    loading: float = 0.0
    copying: float = 0.0
    stepping: float = 0.0

    @property
    def transfers(self) -> bool:
        return self.copying > 0

    @property
    def steps(self) -> bool:
        return self.stepping > 0

    def target(self, worker: int, batch: int) -> float:
        return self.targets[worker][batch]

    def drafter(self, worker: int, batch: int) -> float:
        return self.drafters[worker][batch]

    def loader(self, batch: int) -> float:
        return self.loading

    def transfer(self, batch: int) -> float:
        return self.copying

    def step(self, step: int) -> float:
        return self.stepping


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pipeline with its times and faults."""

    setup: Setup
    times: Times
    faults: tuple[PlannedFault, ...] = ()


@dataclass
class Seen:
    """A run that is over."""

    core: Dispatcher
    metrics: Metrics
    end: float
    failures: list[str]
    exchanges: list[Exchange] = field(default_factory=list)

    def observe(self, exchanges: Any) -> None:
        self.exchanges += exchanges


def simulate(case: Case) -> Seen:
    core, setup = case.setup.dispatcher(), case.setup
    ones = [1] * len(setup.buckets)
    metrics = Metrics(
        targets=setup.targets,
        drafters=setup.drafters,
        lanes=[(lane.name, lane.capacity) for lane in core.dispatch.lanes],
        work=Work(tokens=ones, bucket=list(setup.buckets), length=ones),
    )
    seen = Seen(core, metrics, 0.0, [])
    simulator = Simulator(
        dispatcher=core,
        times=case.times,  # type: ignore[arg-type]
        log=Log(metrics, seen),
        batches=len(setup.buckets),
        faults=case.faults,
    )
    seen.end = simulator.run()
    metrics.finish(seen.end)
    seen.failures = simulator.failures
    return seen


def random_case(rng: random.Random, *, faults: str | None = None, constant: bool = False, **fixed: Any) -> Case:
    """Any pipeline; `faults` is the kind of what goes wrong, `constant` gives each worker one time for all batches."""
    policy = fixed.get("policy") or rng.choice(["round_robin", "rotating", "shared", "bucketed"])
    kinds = rng.randint(1, 3) if policy == "bucketed" else 1
    count = len(fixed["buckets"]) if "buckets" in fixed else rng.randint(0, 40)
    chosen: dict[str, Any] = {
        "targets": rng.randint(1, 4),
        "drafters": rng.randint(1, 4),
        "buckets": tuple(rng.randrange(kinds) for _ in range(count)),
        "policy": policy,
        "mix": rng.choice(["prefer", "require"]),
        "capacity": rng.randint(0, 4),
        "feed": rng.choice(["shared", "rotating"]),
        "feed_depth": rng.randint(1, 3),
        "sync": rng.choice(["none", "step", "pooled"]),
        "accumulate": rng.randint(1, 4),
        "prefetch": rng.choice([0, 0, 1, 2]),
        **fixed,
    }
    setup = Setup(**chosen)

    def draws(workers: int) -> list[list[float]]:
        if constant:
            return [[rng.choice(SECONDS)] * count for _ in range(workers)]
        return [[rng.choice([*SECONDS, rng.expovariate(1.0)]) for _ in range(count)] for _ in range(workers)]

    times = Times(
        targets=draws(setup.targets),
        drafters=draws(setup.drafters),
        loading=rng.choice([0.0, 0.0, 0.3, 1.0]),
        copying=rng.choice([0.0, 0.0, 0.1, 1.0]),
        stepping=rng.choice([0.0, 0.0, 0.2]),
    )
    planned = []
    if faults is not None:
        workers = [("target", t) for t in range(setup.targets)] + [("drafter", d) for d in range(setup.drafters)]
        for role, worker in rng.sample(workers, rng.randint(1, min(3, len(workers)))):
            planned.append(PlannedFault(role=role, worker=worker, at_batch=rng.randint(1, 6), kind=faults))
    return Case(setup=setup, times=times, faults=tuple(planned))


seeds = st.integers(0, 2**48)
examples = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def check_times_add_up(seen: Seen) -> None:
    for meter in (*seen.metrics.targets, *seen.metrics.drafters):
        assert meter.end is not None and all(seconds >= 0 for seconds in meter.seconds)
        assert sum(meter.seconds) == pytest.approx(meter.end, abs=1e-9)
        assert meter.end <= seen.end + 1e-9
    assert all(a[0] <= b[0] for a, b in pairwise(seen.exchanges))


def check_littles_law(seen: Seen) -> None:
    """The area under each lane's depth is the sum of what its batches waited."""
    waits = [0.0] * len(seen.metrics.lanes)
    since: dict[int, tuple[float, int]] = {}

    def leave(now: float, batch: int) -> None:
        entered, lane = since.pop(batch)
        waits[lane] += now - entered

    for now, _, _, effects in seen.exchanges:
        for effect in effects:
            match effect:
                case Admit(_, batch, lane) | PutBack(batch, lane, _):
                    since[batch] = now, lane
                case Deliver():
                    leave(now, effect.batch)
                case Recompute(batch, place, _, _) if place == STAGED:
                    leave(now, batch)
    for batch in list(since):
        leave(seen.end, batch)
    assert [lane.area for lane in seen.metrics.lanes] == pytest.approx(waits, abs=1e-6)


@examples
@given(seeds)
def test_a_run_without_faults_trains_every_batch_once_and_its_times_add_up(seed: int) -> None:
    seen = simulate(random_case(random.Random(seed)))
    count = len(seen.core.ledger._place)
    assert seen.core.ended == "data_exhausted"
    assert seen.core.ledger.counts()["trained"] == count == sum(by[0] for by in seen.metrics.trained_by)
    committed = [batch for _, name, args, _ in seen.exchanges if name == "commit" for batch in args[1]]
    assert sorted(committed) == list(range(count))
    check_times_add_up(seen)
    check_littles_law(seen)


@examples
@given(seeds)
def test_a_run_with_crashes_ends_and_loses_only_what_lost_drafters_had_trained_apart(seed: int) -> None:
    case = random_case(random.Random(seed), faults=CRASH)
    seen = simulate(case)
    counts = seen.core.ledger.counts()
    assert seen.core.ended in ("data_exhausted", "worker_lost")
    survivors = seen.core.targets and seen.core.dispatch.consumers
    if survivors:
        assert seen.core.ended == "data_exhausted" and counts["trained"] + counts["lost"] == len(case.setup.buckets)
    if case.setup.sync != "none":
        assert counts["lost"] == 0
    check_times_add_up(seen)
    check_littles_law(seen)


def test_a_drafter_that_crashes_on_a_batch_its_own_step_brought_it_asks_no_more() -> None:
    times = Times(targets=[[0.1] * 8], drafters=[[1.0] * 8] * 2)
    setup = Setup(drafters=2, buckets=(0,) * 8, capacity=4, sync="pooled", accumulate=2, prefetch=1)
    for drafter in (0, 1):
        fault = PlannedFault(role="drafter", worker=drafter, at_batch=3, kind=CRASH)
        seen = simulate(Case(setup=setup, times=times, faults=(fault,)))
        assert seen.failures and seen.core.ledger.counts()["trained"] == 8


@examples
@given(seeds)
def test_a_hang_is_a_run_that_has_not_ended_and_never_a_short_makespan(seed: int) -> None:
    seen = simulate(random_case(random.Random(seed), faults=HANG))
    assert (seen.core.ended is None) == bool(seen.failures)
    check_times_add_up(seen)


@examples
@given(seeds)
def test_throughput_stays_below_the_fluid_limit(seed: int) -> None:
    rng = random.Random(seed)
    policy = rng.choice(["round_robin", "rotating", "shared"])
    case = random_case(rng, constant=True, sync="none", buckets=(0,) * 60, policy=policy)
    times, seen = case.times, simulate(case)
    supply = [1 / seconds[0] for seconds in times.targets]
    demand = [1 / seconds[0] for seconds in times.drafters]
    limit = min(sum(supply), sum(demand))
    share, drafters = 60 / seen.end, case.setup.drafters
    if case.setup.policy == "round_robin":
        limit = sum(min(sum(supply[j::drafters]), rate) for j, rate in enumerate(demand))
    if case.setup.policy == "rotating":
        share, limit = (60 // drafters) / seen.end, min(demand)
        assert 60 / seen.end <= sum(supply) * (1 + 1e-9)
    assert share <= limit * (1 + 1e-9)


@examples
@given(seeds)
def test_no_drafter_is_starved_while_a_batch_waits_in_the_shared_lane(seed: int) -> None:
    """A drafter asks when it is ready and with every batch it has computed; one that steps may not take."""
    case = random_case(random.Random(seed), policy="shared", sync="none", prefetch=0)
    depth = asking = stepping = 0
    for _, name, _, effects in simulate(case).exchanges:
        kinds = Counter(type(effect) for effect in effects)
        stepping += kinds[Step] - (name == "commit")
        asking += (name in ("drafter_ready", "computed")) - kinds[Deliver]
        depth += kinds[Admit] - kinds[Deliver]
        assert min(depth, stepping) >= 0 and (depth == 0 or asking == stepping)


@examples
@given(seeds)
def test_the_same_case_gives_the_same_run(seed: int) -> None:
    first, second = (simulate(random_case(random.Random(seed), faults=CRASH)) for _ in range(2))
    assert first.exchanges == second.exchanges and first.end == second.end


def digest() -> str:
    """Of forty runs, faults and all."""
    text = "".join(repr(simulate(random_case(random.Random(seed), faults=CRASH)).exchanges) for seed in range(40))
    return hashlib.sha256(text.encode()).hexdigest()


def test_runs_do_not_depend_on_the_hash_seed() -> None:
    code = "from tests.sim.test_simulator_properties import digest; print(digest())"
    for hash_seed in ("1", "2718"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == digest()


@examples
@given(seeds, st.integers(0, 4))
def test_one_target_and_one_drafter_equal_the_max_plus_recursion(seed: int, capacity: int) -> None:
    """Each batch is computed, admitted, taken, trained; for capacity 0 it is admitted when it is taken."""
    rng = random.Random(seed)
    count = rng.randint(1, 60)
    supply, work = ([rng.expovariate(1.0) for _ in range(count)] for _ in range(2))
    setup = Setup(buckets=(0,) * count, capacity=capacity, sync="none", feed_depth=2)
    seen = simulate(Case(setup=setup, times=Times(targets=[supply], drafters=[work])))
    admitted, taken, done = [], [], []
    for k in range(count):
        before = done[k - 1] if k else 0.0
        computed = (admitted[k - 1] if k else 0.0) + supply[k]
        if capacity:
            admitted.append(max(computed, taken[k - capacity]) if k >= capacity else computed)
        else:
            admitted.append(max(computed, before))
        taken.append(max(admitted[k], before))
        done.append(taken[k] + work[k])
    events = [(now, type(effect)) for now, _, _, effects in seen.exchanges for effect in effects]
    assert [now for now, kind in events if kind is Admit] == pytest.approx(admitted, rel=1e-9)
    assert [now for now, kind in events if kind is Deliver] == pytest.approx(taken, rel=1e-9)
    assert seen.end == pytest.approx(done[-1], rel=1e-9)

"""Workers that share a device slow each other down: services whose speed changes with who else is busy.

A worker's factor is how much longer its work takes while a set of others is busy. It is composed from pairs that were
measured at once, never from the topology itself:

    factor(i) = load · (1 + Σ over busy j of (f(i, j) − 1) − Σ over busy j on its GPU, but the first, of relief(i, j))

The sum and not the product: of k workers that each use a resource fully every one gets 1/k of it, so that a pair's
factor of 2 must become k for k workers (the sum gives 1 + (k − 1)·1), where the product would give 2^(k−1). Small
factors compose alike either way. `relief`, see `trios`, is what further neighbours cost less than the first, which is
the one of the greatest relief; it is never more than the neighbour's own f − 1, so that nobody makes anyone faster.
`load` is what pairs cannot show: on a host of C cores, workers that keep c cores each busy run at full speed up to C
of them and share the cores beyond: load = max(1, busy cores / C). On a GPU it is that of its power, see `power`. What a
pair's own load explains is not counted again in f.

A copy to a drafter, and a step, have factors of their own where the pairs were measured with them. A copy slows nobody:
it is short and leaves the processors alone.

Between two changes of the busy set all speeds are constant, so that remaining work falls linearly; at each change
what remains is settled and the next end is planned anew (processor sharing with state-dependent speed).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import combinations
from typing import Any, Final

import simpy
from simpy.events import Event, Timeout

from dflash_sim.interference import COMPUTE, COPY, STEP, Company, Index, Interference, Matrix
from dflash_sim.power import power_of
from dflash_sim.timings_file import REMEDY, InterferenceProfile, Profile, Role, TimingsError, shown
from dflash_sim.trios import SURE, Sides, reliefs
from policies.pipeline import Pipeline

Place = str | tuple[str, ...] | None
"""The device of a worker, or the GPUs that it spreads over; None: the file names none."""

_Factor = Callable[..., float]
"""(sides, devices): of a role beside another, on one of these."""

_CPU: Final = ("cpu",)
_HOST: Final = ("host",)
_MOST_THREADS: Final = 65536
_DONE: Final = 1e-12
"""Work below this share of the service is rounding."""


class _Service:
    """Work of one worker, or of several at once (a step)."""

    __slots__ = ("_value", "callback", "kind", "left", "order", "seconds", "since", "slow", "workers")

    def __init__(
        self,
        kind: str,
        workers: tuple[Index, ...],
        seconds: float,
        value: object,
        callback: Callable[[Any], None],
        order: int,
        now: float,
    ) -> None:
        self.kind = kind
        self.workers = workers
        self.seconds = seconds
        self._value = value  # named as an event's, whose place it takes in the callback
        self.callback = callback
        self.order = order
        self.left = seconds
        """Seconds that remain at full speed."""
        self.since = now
        """When `left` was true."""
        self.slow = 1.0
        """Its factor since then."""


class Sharing:
    """All services of one simulation whose workers can slow each other down."""

    def __init__(self, env: simpy.Environment, interference: Interference) -> None:
        self._env = env
        self._company = Company(interference)
        self._at_work: Counter[Index] = Counter()
        """How many services each worker has under way, copies left out."""
        self._services: list[_Service] = []
        """Those under way, in the order in which they began."""
        self._begun = 0
        self._next: _Service | None = None
        self._timer: Event | None = None
        self._ending = False
        """Whether a callback is under way, after which all is planned once."""

    def begin(
        self,
        workers: tuple[Index, ...],
        seconds: float,
        value: object,
        callback: Callable[[Any], None],
        kind: str = COMPUTE,
    ) -> None:
        """Work of so many seconds alone; `callback(it)` at its end, with `it._value` the value."""
        self._settle()
        service = _Service(kind, workers, seconds, value, callback, self._begun, self._env.now)
        self._services.append(service)
        self._begun += 1
        self._enter(service)
        self._plan()

    def drop(self, worker: Index) -> None:
        """A worker does nothing any more: nobody is slowed by it, its own work never ends, joint work goes on."""
        self._settle()
        for each in self._services:
            if worker in each.workers:
                self._leave(each, (worker,))
                each.workers = tuple(other for other in each.workers if other != worker)
        self._services = [each for each in self._services if each.workers]
        self._plan()

    def _enter(self, service: _Service) -> None:
        if service.kind == COPY:
            return
        for worker in service.workers:
            self._at_work[worker] += 1
            if self._at_work[worker] == 1:
                self._company.enter(worker)

    def _leave(self, service: _Service, workers: tuple[Index, ...]) -> None:
        if service.kind == COPY:
            return
        for worker in workers:
            self._at_work[worker] -= 1
            if not self._at_work[worker]:
                self._company.leave(worker)

    def _settle(self) -> None:
        """Bring what remains up to now."""
        now = self._env.now
        for each in self._services:
            if now > each.since:
                each.left = max(each.left - (now - each.since) / each.slow, 0.0)
            each.since = now

    def _plan(self) -> None:
        """New factors for those who are busy now, and a timer for the service that ends first."""
        if self._ending:
            return
        self._cancel()
        if not self._services:
            return
        factor = self._company.factor
        for each in self._services:
            workers, kind = each.workers, each.kind
            each.slow = factor(workers[0], kind) if len(workers) == 1 else max(factor(it, kind) for it in workers)
        first = min(self._services, key=lambda each: (_wait(each), each.order))
        self._next = first
        self._timer = Timeout(self._env, _wait(first))
        self._timer.callbacks.append(self._end)

    def _cancel(self) -> None:
        """Take the timer out of the queue: one that stayed would move the clock of a simulation that hangs."""
        if self._timer is None:
            return
        queue = self._env._queue
        for at, entry in enumerate(queue):
            if entry[3] is self._timer:
                queue[at] = queue[-1]
                queue.pop()
                heapq.heapify(queue)
                break
        self._timer = None

    def _end(self, event: Event) -> None:
        done, self._timer = self._next, None
        assert done is not None
        self._settle()
        self._services.remove(done)
        self._leave(done, done.workers)
        self._ending = True
        done.callback(done)  # what it begins at this moment is planned with all the rest
        self._ending = False
        self._plan()


def _wait(service: _Service) -> float:
    left = service.left if service.left > _DONE * service.seconds else 0.0
    return left * service.slow


def interference_of(pipeline: Pipeline, profile: Profile) -> Interference | None:
    """What the profile says of this topology; None where nobody slows anybody."""
    devices, roles = _workers(pipeline, profile)
    threads = _threads(profile) if any("cpu" in names for names in devices) else 1
    found = composed(profile.interference, devices=devices, roles=roles, threads=threads)
    return found if found.matters else None


def unmeasured_pairs(pipeline: Pipeline, profile: Profile) -> list[str]:
    """`drafter and drafter on the host`: pairs that the topology has and lacks a profile that measured interference."""
    if not profile.interference.measured:
        return []  # fitted to a run, whose interference its samples hold, or nobody looked
    devices, roles = _workers(pipeline, profile)
    known = Pairs(profile.interference, COMPUTE)
    found = {
        f"{roles[i]} and {roles[j]} on {'one GPU' if _on_gpu(devices[i], devices[j]) else 'the host'}": None
        for i, j in combinations(range(len(devices)), 2)
        if known.of((roles[i], roles[j]), (), gpu=_on_gpu(devices[i], devices[j])) is None
    }
    return list(found)


def _on_gpu(one: Sequence[str], other: Sequence[str]) -> bool:
    return any(name in other and name.startswith("cuda") for name in one)


def _workers(pipeline: Pipeline, profile: Profile) -> tuple[list[tuple[str, ...]], list[str]]:
    """The devices of each worker, () where nothing names one, and its role."""
    topology = pipeline.topology
    counts: dict[Role, int] = {"target": topology.targets, "drafter": topology.drafters}
    devices: list[tuple[str, ...]] = []
    for role, workers in counts.items():
        usual = ("cpu",) if profile.settings.get(f"{role}_device") == "cpu" else ()
        devices += topology.spread(role) or [usual] * workers
    return devices, [role for role, workers in counts.items() for _ in range(workers)]


def _threads(profile: Profile) -> int:
    """Of a worker on the CPU, by the settings, which are free where this does not use them. Raises TimingsError."""
    threads = profile.settings.get("threads", 1)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= _MOST_THREADS:
        rule = f"must be a whole number from 1 to {_MOST_THREADS}; {REMEDY}"
        raise TimingsError([f"settings.threads: {shown(threads)}: {rule}"])
    return threads


def composed(
    measured: InterferenceProfile,
    *,
    devices: Sequence[Place],
    roles: Sequence[str],
    threads: int = 1,
) -> Interference:
    """The interference of workers on these devices, from a profile's `interference`.

    `devices`: each worker's; `roles`: `target` or `drafter`. Two workers that share any GPU take the pair measured on
    that GPU, or else the mean of those on others; all others the host's. Workers on the CPU use `threads` cores of it.
    """
    host = measured.cores or float("inf")
    named = [() if place is None else (place,) if isinstance(place, str) else place for place in devices]
    cores = [float(threads) if "cpu" in names else 0.0 for names in named]
    gpus = [frozenset(name for name in names if name.startswith("cuda")) for names in named]
    power = power_of(measured, gpus, roles)
    load = _unloaded if power is None else power.load_of
    count = range(len(devices))

    def matrix(kind: str) -> Matrix | None:
        pairs = Pairs(measured, kind)
        if not pairs.given and kind != COMPUTE:
            return None
        near = cache(lambda sides, on: _near(pairs, sides, on, 1.0 if kind == COPY else load(sides))[0])
        far = cache(lambda sides, on: _far(pairs, sides, on))
        return [[1.0 if i == j else factor(near, far, i, j) for j in count] for i in count]

    def factor(near: _Factor, far: _Factor, i: int, j: int) -> float:
        sides = roles[i], roles[j]
        if common := gpus[i] & gpus[j]:
            return near(sides, common)
        on_cpu = bool(cores[i] and cores[j])
        loaded = max(1.0, (cores[i] + cores[j]) / host) if on_cpu else 1.0
        return max(1.0, far(sides, _CPU if on_cpu else _HOST) / loaded)

    computing = matrix(COMPUTE)
    assert computing is not None
    pairs = Pairs(measured, COMPUTE)

    @cache
    def spared(gpu: str) -> dict[str, float]:
        def on(name: str) -> dict[Sides, tuple[float, float]]:
            return {sides: _near(pairs, sides, (name,), load(sides)) for sides in pairs.given}

        return reliefs(measured, on, load, gpu)

    def relief(i: int) -> dict[Index, float]:
        near = {j: min(common) for j in count if i != j and (common := gpus[i] & gpus[j])}
        most = {j: spared(gpu).get(roles[i], 0.0) for j, gpu in near.items()}
        return {j: min(each, computing[i][j] - 1) for j, each in most.items() if each}

    reliefs_of = [relief(i) for i in count]
    return Interference(
        relief=reliefs_of if any(reliefs_of) else None,
        factors=computing,
        copying=matrix(COPY),
        stepping=matrix(STEP),
        cores=cores,
        host_cores=host,
        power=power,
    )


def _unloaded(roles: Sequence[str]) -> float:
    return 1.0


def _near(pairs: "Pairs", sides: Sides, on: Collection[str], load: float) -> tuple[float, float]:
    """The factor on these GPUs as it is composed, the pair's own load left out, and its standard error."""
    mean, error = pairs.of(sides, on, gpu=True) or (1.0, 0.0)
    return max(1.0, _sure(mean, error) / load), error / load


def _far(pairs: "Pairs", sides: Sides, on: Collection[str]) -> float:
    """The factor of workers that share the host only."""
    return _sure(*(pairs.of(sides, on, gpu=False) or (1.0, 0.0)))


def _sure(factor: float, error: float) -> float:
    """1 where it is not above 1 by more than its error, which else would add up over the workers."""
    return factor if factor - 1 > SURE * error else 1.0


class Pairs:
    """Factors of one kind and their standard errors, by role, role of the other, and what the two shared."""

    def __init__(self, measured: InterferenceProfile, kind: str) -> None:
        self.given: dict[Sides, dict[str, list[tuple[float, float]]]] = {}
        for pair in measured.pairs:
            for role, other, side in ((pair.a, pair.b, "a"), (pair.b, pair.a, "b")):
                factor: float | None = getattr(pair, f"{kind}_{side}")
                if factor is not None:
                    error: float = getattr(pair, f"{kind}_{side}_error")
                    self.given.setdefault((role, other), {}).setdefault(pair.shared, []).append((factor, error))

    def of(self, sides: Sides, on: Collection[str], *, gpu: bool) -> tuple[float, float] | None:
        """The mean of those measured on one of these devices, else of those on any other of its kind; None: of none."""
        alike = {name: each for name, each in self.given.get(sides, {}).items() if name.startswith("cuda") == gpu}
        chosen = [name for name in alike if name in on] or list(alike)
        values = [value for name in chosen for value in alike[name]]
        if not values:
            return None
        mean = sum(factor for factor, _ in values) / len(values)
        return mean, sum(error**2 for _, error in values) ** 0.5 / len(values)

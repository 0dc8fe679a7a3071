"""How long each piece of work takes: the drawn times of one run, looked up by worker and batch.

Common random numbers: every entity has a random stream of its own, and its noise is attached to the *batch*,
so batch 17 costs the same under every policy, on every worker and in every order, and the noise of batch k
does not depend on how many batches follow. All times are drawn up front; the simulator only looks them up.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_sim.draws import FloatArray, Purpose, Seed, stream, unit_noise
from dflash_sim.service_inputs import (
    BatchPlan,
    LoaderTimings,
    Measured,
    PerWorker,
    RoleTimings,
    StepTimings,
    Timings,
    TransferTimings,
)


@dataclass(frozen=True, slots=True)
class RoleTimes:
    """The drawn times of one role, and each worker's first time.

    A batch costs `work[batch]` seconds, or with `scale` (workers that differ) `work[batch] * scale[worker]`,
    or with `divide` (`scale` holds rates) `work[batch] / scale[worker]`. `first[worker]`, where not None,
    replaces the time of the first batch that the worker computes.
    """

    work: array[float]
    scale: tuple[float, ...] | None
    divide: bool
    first: tuple[float | None, ...]

    @classmethod
    def of(
        cls, work: FloatArray, per_worker: Sequence[float], first: Sequence[float | None], divide: bool
    ) -> RoleTimes:
        """Workers that are all alike are folded into `work`: one rounding, one look-up."""
        if len(set(per_worker)) > 1:
            return cls(_compact(work), tuple(per_worker), divide, tuple(first))
        folded = work / per_worker[0] if divide else work * per_worker[0]
        return cls(_compact(folded), None, False, tuple(first))

    def times(self, worker: int) -> FloatArray:
        """Seconds of every batch on this worker, float64[count], first times left out."""
        work = np.frombuffer(self.work, dtype=np.float64) if self.work else np.empty(0)
        if self.scale is None:
            return work.copy()
        scale = self.scale[worker]
        return work / scale if self.divide else work * scale

    def lookup(self) -> Callable[[int, int], float]:
        """A fresh (worker, batch) → seconds; it remembers which workers have had their first batch."""
        plain = self._plain_lookup()
        if all(seconds is None for seconds in self.first):
            return plain
        first = list(self.first)

        def with_first(worker: int, batch: int) -> float:
            seconds = first[worker]
            if seconds is None:
                return plain(worker, batch)
            first[worker] = None
            return seconds

        return with_first

    def _plain_lookup(self) -> Callable[[int, int], float]:
        # Closures rather than methods: this is the hot path, and a closure's names are the cheapest to reach.
        work, scale = self.work, self.scale
        if scale is None:
            return lambda worker, batch: work[batch]
        if self.divide:
            return lambda worker, batch: work[batch] / scale[worker]
        return lambda worker, batch: work[batch] * scale[worker]


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """The times of one run, in seconds. Make a new one for each run: the look-ups remember first batches."""

    target: Callable[[int, int], float]
    """(worker, batch) → seconds a target computes."""
    drafter: Callable[[int, int], float]
    """(worker, batch) → seconds a drafter trains."""
    loader: Callable[[int], float]
    """batch → seconds of the feed."""
    transfer: Callable[[int], float]
    """batch → seconds of the copy between target and drafter."""
    step: Callable[[int], float]
    """optimizer step → seconds."""
    transfers: bool
    """Whether copies may take time."""
    steps: bool
    """Whether optimizer steps may take time."""
    target_times: RoleTimes
    """What `target` looks up: `target_times.times(worker)` gives all of a worker's times."""
    drafter_times: RoleTimes
    """What `drafter` looks up."""


def service_times(
    *,
    timings: Timings,
    plan: BatchPlan,
    targets: int,
    drafters: int,
    seed: Seed = 0,
    batch_bytes: FloatArray | None = None,
    measured: Measured | None = None,
) -> ServiceTimes:
    """Draw the times of one run.

    `timings` is the file's section; a role whose `seconds` and `tokens_per_second` are both unset takes the
    `measured` ones (of `timings.file`). `batch_bytes`, float64[count], is what a transfer moves; needed where
    its speed is given in bytes per second. Raises ValueError where a time is neither given nor measured.
    """
    target = _role_times("target", timings.target, plan, plan.target_factor, targets, seed, measured)
    drafter = _role_times("drafter", timings.drafter, plan, plan.drafter_factor, drafters, seed, measured)
    return ServiceTimes(
        target=target.lookup(),
        drafter=drafter.lookup(),
        loader=_loader(timings.loader, plan.count, seed, measured),
        transfer=_transfer(timings.transfer, plan, batch_bytes, seed, measured),
        step=_step(timings.step, seed, measured),
        transfers=timings.transfer is not None or (measured is not None and measured.has_transfers),
        steps=timings.step is not None or (measured is not None and measured.has_steps),
        target_times=target,
        drafter_times=drafter,
    )


def _role_times(
    role: str,
    spec: RoleTimings | None,
    plan: BatchPlan,
    factor: FloatArray,
    workers: int,
    seed: Seed,
    measured: Measured | None,
) -> RoleTimes:
    first = None if spec is None else spec.first_seconds
    if spec is not None and (spec.seconds is not None or spec.tokens_per_second is not None):
        work, per_worker, divide = _given_work(role, spec, plan, factor, workers, seed)
        return RoleTimes.of(work, per_worker, _given_first(first, workers), divide)
    if measured is None:
        raise ValueError(
            f"timings.{role}: no time given; set timings.{role}.seconds, .tokens_per_second or timings.file"
        )
    u = stream(seed, Purpose[role.upper()]).random(plan.count)
    work = measured.batch_seconds(role, plan, u) * factor
    if first is None:
        first = _measured_first(role, workers, seed, measured)
    factors = measured.worker_factors(role, workers)
    return RoleTimes.of(work, factors, _given_first(first, workers), divide=False)


def _given_work(
    role: str, spec: RoleTimings, plan: BatchPlan, factor: FloatArray, workers: int, seed: Seed
) -> tuple[FloatArray, list[float], bool]:
    """(work per batch, seconds or rate of each worker, whether the latter divides)."""
    noise = unit_noise(stream(seed, Purpose[role.upper()]), plan.count, spec.cv, spec.distribution)
    work = factor if noise is None else factor * noise
    if spec.seconds is not None:
        return work, _each_worker(spec.seconds, workers), False
    assert spec.tokens_per_second is not None
    return plan.slots * work, _each_worker(spec.tokens_per_second, workers), True


def _each_worker(value: PerWorker, workers: int) -> list[float]:
    values = [value] * workers if isinstance(value, (int, float)) else list(value)
    assert len(values) == workers, f"{len(values)} values for {workers} workers"
    return [float(each) for each in values]


def _given_first(first: PerWorker | None, workers: int) -> Sequence[float | None]:
    return [None] * workers if first is None else _each_worker(first, workers)


def _measured_first(role: str, workers: int, seed: Seed, measured: Measured) -> PerWorker | None:
    u = stream(seed, Purpose[f"{role.upper()}_FIRST"]).random(workers)
    first = measured.first_seconds(role, u)
    return None if first is None else first.tolist()


def _loader(
    spec: LoaderTimings | None, count: int, seed: Seed, measured: Measured | None
) -> Callable[[int], float]:
    if spec is not None and spec.seconds is not None:
        noise = unit_noise(stream(seed, Purpose.LOADER), count, spec.cv, spec.distribution)
        return _constant(spec.seconds) if noise is None else _per_batch(spec.seconds * noise)
    if measured is None:
        return _constant(0.0)
    return _per_batch(measured.loader_seconds(stream(seed, Purpose.LOADER).random(count)))


def _transfer(
    spec: TransferTimings | None,
    plan: BatchPlan,
    batch_bytes: FloatArray | None,
    seed: Seed,
    measured: Measured | None,
) -> Callable[[int], float]:
    if spec is not None and spec.seconds is not None:
        return _constant(spec.seconds)
    if spec is not None and spec.bytes_per_second is not None:
        if batch_bytes is None:
            raise ValueError(
                f"timings.transfer.bytes_per_second: {spec.bytes_per_second} needs the size of a batch; "
                "set memory.hidden_bytes_per_token"
            )
        return _per_batch(np.asarray(batch_bytes, dtype=np.float64) / spec.bytes_per_second)
    if measured is None:
        return _constant(0.0)
    u = stream(seed, Purpose.TRANSFER).random(plan.count)
    return _per_batch(measured.transfer_seconds(u, plan, batch_bytes))


_STEP_BLOCK = 4096


def _step(spec: StepTimings | None, seed: Seed, measured: Measured | None) -> Callable[[int], float]:
    """Steps are not planned, so measured ones are drawn a block at a time, as far as they are asked for."""
    if spec is not None and spec.seconds is not None:
        return _constant(spec.seconds)
    if measured is None or measured.step_seconds(np.zeros(1)) is None:
        return _constant(0.0)
    rng = stream(seed, Purpose.STEP)
    drawn: list[float] = []

    def step_seconds(step: int) -> float:
        while step >= len(drawn):
            block = measured.step_seconds(rng.random(_STEP_BLOCK))
            assert block is not None
            drawn.extend(block.tolist())
        return drawn[step]

    return step_seconds


def _constant(seconds: float) -> Callable[[int], float]:
    seconds = float(seconds)
    return lambda index: seconds


def _per_batch(seconds: FloatArray | None) -> Callable[[int], float]:
    if seconds is None:
        return _constant(0.0)
    return _compact(seconds).__getitem__


def _compact(values: FloatArray) -> array[float]:
    """array('d'): 8 bytes a value, and twice as fast to index one by one as a NumPy array."""
    compact = array("d")
    compact.frombytes(np.ascontiguousarray(values, dtype=np.float64).view(np.uint8).data)
    return compact

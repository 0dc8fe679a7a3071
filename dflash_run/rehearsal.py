"""A rehearsal put together: the same plan, dispatcher, times and observers as a prediction, with real workers."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dflash_run.briefing import Posts
from dflash_run.crew import ProcessCrew, ThreadCrew, Worker
from dflash_run.launcher import Launcher
from dflash_run.limits import Limits
from dflash_run.messages import Apply, Compute, Forget, Train
from dflash_run.payload import PayloadStore
from dflash_run.worker import Orders, work
from dflash_sim.interrupts import interruptible
from dflash_sim.prediction import Run, planned_faults, prepare, trace_writer
from dflash_sim.records import RECORDS
from dflash_sim.service import ServiceTimes
from dflash_sim.simulator import charged, copies
from policies.effects import Deliver, Step
from policies.pipeline import Pipeline
from reports.observer import Log

CREWS: dict[str, type[ThreadCrew] | type[ProcessCrew]] = {"threads": ThreadCrew, "processes": ProcessCrew}


def rehearse(
    pipeline: Pipeline,
    folder: Path,
    *,
    driver: str = "threads",
    speedup: float = 1.0,
    watch: Callable[[float, Run], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Run:
    """Run the pipeline with real workers whose computing is a timed sleep; the trace is kept in `folder`.

    `watch(now_s, run)` is called several times a second. `interrupted`: whether somebody asked for the end; None:
    signals are heard here. Raises as `dflash_sim.prediction.simulate` does.
    """
    run = prepare(pipeline)
    with contextlib.ExitStack() as stack:
        asked = interrupted or stack.enter_context(interruptible())
        writer = stack.enter_context(trace_writer(folder, "rehearsal", run, every_s=2.0))
        store = PayloadStore(folder / "payloads")
        stack.callback(store.clear)
        jobs = {worker: partial(work, worker[0], orders=told) for worker, told in _orders(pipeline, folder).items()}
        crew = CREWS[driver](jobs)
        stack.callback(crew.close)
        launcher = Launcher(
            dispatcher=run.dispatcher,
            briefing=RehearsalBriefing(run, store, speedup),
            log=Log(*run.observers(), writer),
            batches=run.plan.count,
            crew=crew,
            stores=folder,
            speedup=speedup,
            limits=Limits(at_s=pipeline.stop.at_s, watchdog_s=pipeline.stop.watchdog_s),
            interrupted=asked,
            watch=None if watch is None else lambda now: watch(now, run),
        )
        end = launcher.run()
        run.metrics.finish(end)
        writer.finish(end)
    run.failures.extend(launcher.failures)
    run.told["launcher"] = launcher.cost()
    return run


class RehearsalBriefing:
    """Workers of a rehearsal are told how long to sleep."""

    def __init__(self, run: Run, store: PayloadStore, speedup: float) -> None:
        assert run.times is not None, "a rehearsal has times"
        self._times: ServiceTimes = run.times
        self._store = store
        self._wall = 1 / speedup
        self._placement = charged(run.pipeline.dispatch.placement, run.pipeline.memory.staging)
        self._lanes = run.dispatcher.dispatch.lanes
        self._drafters = run.pipeline.topology.drafters

    def assign(self, target: int, batch: int) -> Compute:
        return Compute(batch, self._times.target(target, batch) * self._wall)

    def deliver(self, effect: Deliver) -> Train:
        copied = copies(self._placement, effect, self._lanes[effect.lane].reader, self._drafters)
        copy_s = self._times.transfer(effect.batch) if copied else 0.0
        seconds = self._times.drafter(effect.drafter, effect.batch)
        return Train(effect.batch, effect.step, copy_s * self._wall, seconds * self._wall)

    def apply(self, effect: Step) -> Apply:
        return Apply(effect.step, self._times.step(effect.step) * self._wall)

    def forget(self, batch: int) -> Forget:
        return Forget(batch)

    def gone(self, batch: int) -> None:
        self._store.drop(batch)

    def loader(self, batch: int) -> float:
        return self._times.loader(batch)

    def heard(self, worker: Worker, message: object) -> None:
        """Nothing is reported."""

    def openers(self, targets: tuple[int, ...], drafters: tuple[int, ...]) -> Posts:
        return ()

    def committed(self, step: int, batches: tuple[int, ...], drafters: tuple[int, ...]) -> Posts:
        return ()

    def closers(self, drafters: tuple[int, ...], settled: bool) -> Posts:
        return ()


def _orders(pipeline: Pipeline, folder: Path) -> dict[Worker, Orders]:
    """What each worker is told at its start, targets first."""
    topology = pipeline.topology
    workers = [("target", t) for t in range(topology.targets)] + [("drafter", d) for d in range(topology.drafters)]
    faults = {(fault.role, fault.worker): fault for fault in planned_faults(pipeline)}
    heartbeat = min(1.0, pipeline.stop.watchdog_s / 4)
    orders = {}
    for worker in workers:
        fault = faults.get(worker)
        orders[worker] = Orders(
            folder=folder / "payloads",
            records=folder / RECORDS / f"{worker[0]}-{worker[1]}.csv",
            heartbeat_s=heartbeat,
            fails_at=None if fault is None else fault.at_batch,
            failure="crash" if fault is None else fault.kind,
        )
    return orders

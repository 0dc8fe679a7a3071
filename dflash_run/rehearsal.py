"""A rehearsal put together: the same plan, dispatcher, times and observers as a prediction, with real workers."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from dflash_run.crew import ProcessCrew, ThreadCrew, Worker
from dflash_run.launcher import Launcher, Limits
from dflash_run.payload import PayloadStore
from dflash_run.worker import Orders
from dflash_sim.interrupts import interruptible
from dflash_sim.prediction import Run, planned_faults, prepare, trace_writer
from dflash_sim.records import RECORDS
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
) -> Run:
    """Run the pipeline with real workers whose computing is a timed sleep; the trace is kept in `folder`.

    `watch(now_s, run)` is called several times a second. Raises as `dflash_sim.prediction.simulate` does.
    """
    run = prepare(pipeline)
    with contextlib.ExitStack() as stack:
        interrupted = stack.enter_context(interruptible())
        writer = stack.enter_context(trace_writer(folder, "rehearsal", run, every_s=2.0))
        store = PayloadStore(folder / "payloads")
        stack.callback(store.clear)
        crew = CREWS[driver](_orders(pipeline, folder))
        stack.callback(crew.close)
        launcher = Launcher(
            dispatcher=run.dispatcher,
            times=run.times,
            log=Log(*run.observers(), writer),
            batches=run.plan.count,
            crew=crew,
            drop=store.drop,
            speedup=speedup,
            placement=pipeline.dispatch.placement,
            limits=Limits(at_s=pipeline.stop.at_s, watchdog_s=pipeline.stop.watchdog_s),
            interrupted=interrupted,
            watch=None if watch is None else lambda now: watch(now, run),
        )
        end = launcher.run()
        run.metrics.finish(end)
        writer.finish(end)
    run.failures.extend(launcher.failures)
    return run


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

"""Predict one pipeline: the plan, the dispatcher, the times and the observers of a simulated run, put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_sim.service import ServiceTimes, service_times
from dflash_sim.simulator import PlannedFault, Simulator
from dflash_sim.timings import MeasuredTimes
from dflash_sim.timings_file import read_timings
from policies.assembly import build_dispatcher
from policies.batches import BatchPlan, plan_batches
from policies.dispatcher import Dispatcher
from policies.loading import resolved
from policies.pipeline import Pipeline
from policies.waiting import waiting
from reports.metrics import Metrics
from reports.observer import Log
from reports.summary import Facts, summarize
from reports.verdict import Alternative


@dataclass(frozen=True, kw_only=True)
class Work:
    """A batch plan as the accumulator reads it: plain sequences, which index faster than arrays."""

    tokens: Sequence[int]
    bucket: Sequence[int]
    length: Sequence[int]

    @classmethod
    def of(cls, plan: BatchPlan) -> "Work":
        return cls(tokens=plan.tokens.tolist(), bucket=plan.bucket.tolist(), length=plan.length.tolist())


@dataclass(frozen=True, kw_only=True)
class Run:
    """A simulated run that is over."""

    pipeline: Pipeline
    plan: BatchPlan
    dispatcher: Dispatcher
    metrics: Metrics
    times: ServiceTimes
    measured: MeasuredTimes | None
    failures: Sequence[str]
    seed: int


def lanes_of(dispatcher: Dispatcher) -> list[tuple[str, int]]:
    """(name, capacity) of the hidden-state hop's lanes."""
    return [(lane.name, lane.capacity) for lane in dispatcher.dispatch.lanes]


def simulate(
    pipeline: Pipeline,
    *,
    plan: BatchPlan | None = None,
    seed: int | None = None,
    measured: MeasuredTimes | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Run:
    """Simulate the pipeline once. `seed` replaces the file's for the times; the plan keeps the file's.

    `measured` replaces the timings that the file names.

    `progress(now_s, trained_batches)` is called now and then. Raises PipelineError, BatchPlanError or
    TimingsError for what only shows when the work is planned, PolicyError for a policy that breaks its rules.
    """
    plan = plan if plan is not None else plan_of(pipeline)
    seed = pipeline.seed if seed is None else seed
    dispatcher = build_dispatcher(pipeline, plan)
    measured = measured if measured is not None else measured_times(pipeline)
    times = draw_times(pipeline, plan, seed, measured)
    topology = pipeline.topology
    metrics = Metrics(
        targets=topology.targets, drafters=topology.drafters, lanes=lanes_of(dispatcher), work=Work.of(plan)
    )
    simulator = Simulator(
        dispatcher=dispatcher,
        times=times,
        log=Log(metrics),
        batches=plan.count,
        prefetch=pipeline.dispatch.prefetch,
        placement=pipeline.dispatch.placement,
        faults=planned_faults(pipeline),
        at_s=pipeline.stop.at_s,
        progress=progress,
    )
    metrics.finish(simulator.run())
    return Run(
        pipeline=pipeline,
        plan=plan,
        dispatcher=dispatcher,
        metrics=metrics,
        times=times,
        measured=measured,
        failures=simulator.failures,
        seed=seed,
    )


def plan_of(pipeline: Pipeline) -> BatchPlan:
    """The batches of the pipeline."""
    assert pipeline.data is not None, "checked when the file was read: a simulation needs data"
    return plan_batches(pipeline.data, seed=pipeline.seed)


def measured_times(pipeline: Pipeline) -> MeasuredTimes | None:
    """The timings that the file names, if it names some."""
    if pipeline.timings is None or pipeline.timings.file is None:
        return None
    return MeasuredTimes(read_timings(pipeline.timings.file), anchors=pipeline.training.anchors)


def draw_times(pipeline: Pipeline, plan: BatchPlan, seed: int, measured: MeasuredTimes | None) -> ServiceTimes:
    """The service times of one run."""
    assert pipeline.timings is not None, "checked when the file was read: a simulation needs timings"
    per_token = pipeline.memory.bytes_per_token
    return service_times(
        timings=pipeline.timings,
        plan=plan,
        targets=pipeline.topology.targets,
        drafters=pipeline.topology.drafters,
        seed=seed,
        batch_bytes=None if per_token is None else plan.slots.astype(np.float64) * per_token,
        measured=measured,
    )


def planned_faults(pipeline: Pipeline) -> list[PlannedFault]:
    """The file's faults, as drivers take them."""
    found = []
    for fault in pipeline.faults:
        role, number = fault.worker.split("/")
        found.append(PlannedFault(role=role, worker=int(number), at_batch=fault.at_batch, kind=fault.kind))
    return found


def summary_of(run: Run, alternatives: Sequence[Alternative] = (), **extra: Any) -> dict[str, Any]:
    """The summary of a simulated run."""
    pipeline = run.pipeline
    facts = Facts(
        kind="simulation",
        policy=pipeline.dispatch.policy,
        seed=run.seed,
        config=resolved(pipeline),
        anchors=pipeline.training.anchors,
        waiting=waiting(run.dispatcher),
        failures=run.failures,
        alternatives=alternatives,
        extra=extra,
    )
    return summarize(run.metrics, run.plan, facts)

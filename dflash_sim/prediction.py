"""Predict one pipeline: the plan, the dispatcher, the times and the observers of a simulated run, put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_sim.service import ServiceTimes, service_times
from dflash_sim.simulator import PlannedFault, Simulator
from policies.assembly import build_dispatcher
from policies.batches import BatchPlan, plan_batches
from policies.dispatcher import Dispatcher
from policies.loading import resolved
from policies.pipeline import Pipeline
from policies.waiting import waiting
from reports.metrics import Metrics
from reports.observer import Observer
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
    progress: Callable[[float, int], None] | None = None,
) -> Run:
    """Simulate the pipeline once. `seed` replaces the file's for the times; the plan keeps the file's.

    `progress(now_s, trained_batches)` is called now and then. Raises PipelineError, BatchPlanError or
    TimingsError for what only shows when the work is planned, PolicyError for a policy that breaks its rules.
    """
    plan = plan if plan is not None else plan_batches(pipeline.data, seed=pipeline.seed)
    seed = pipeline.seed if seed is None else seed
    dispatcher = build_dispatcher(pipeline, plan)
    times = draw_times(pipeline, plan, seed)
    topology = pipeline.topology
    metrics = Metrics(
        targets=topology.targets, drafters=topology.drafters, lanes=lanes_of(dispatcher), work=Work.of(plan)
    )
    simulator = Simulator(
        dispatcher=dispatcher,
        times=times,
        observer=metrics,
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
        failures=simulator.failures,
        seed=seed,
    )


def draw_times(pipeline: Pipeline, plan: BatchPlan, seed: int) -> ServiceTimes:
    """The service times of one run."""
    per_token = pipeline.memory.bytes_per_token
    return service_times(
        timings=pipeline.timings,
        plan=plan,
        targets=pipeline.topology.targets,
        drafters=pipeline.topology.drafters,
        seed=seed,
        batch_bytes=None if per_token is None else plan.slots * per_token,
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

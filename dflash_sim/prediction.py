"""Predict one pipeline: the plan, the dispatcher, the times and the observers of a simulated run, put together."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dflash_sim.doubts import doubts_of, settings_doubts
from dflash_sim.folders import claimed
from dflash_sim.service import ServiceTimes, service_times
from dflash_sim.settings import setting_faults, settings_of
from dflash_sim.sharing import interference_of
from dflash_sim.simulator import PlannedFault, Simulator, charged
from dflash_sim.timings import MeasuredTimes
from dflash_sim.timings_file import read_timings
from policies.assembly import build_dispatcher
from policies.batches import BatchPlan, plan_batches
from policies.dispatcher import Dispatcher
from policies.faults import PipelineError
from policies.loading import resolved
from policies.pipeline import Pipeline
from policies.waiting import waiting
from reports.memory import MemoryMeter, unknown_memory
from reports.metrics import Metrics
from reports.observer import Log, Observer
from reports.summary import Facts, summarize
from reports.verdict import Alternative

if TYPE_CHECKING:
    from reports.tracewriter import TraceWriter


@dataclass(frozen=True, kw_only=True)
class Work:
    """A batch plan as the accumulator reads it: plain sequences, which index faster than arrays."""

    tokens: Sequence[int]
    bucket: Sequence[int]
    length: Sequence[int]

    @classmethod
    def of(cls, plan: BatchPlan) -> "Work":
        return cls(tokens=_shared(plan.tokens), bucket=plan.bucket.tolist(), length=_shared(plan.length))


def _shared(values: NDArray[np.int64]) -> list[int]:
    """As `tolist`, but equal numbers are one object: 756,000 lengths take 6 MB instead of 30."""
    distinct, index = np.unique(values, return_inverse=True)
    pool = distinct.tolist()
    return [pool[i] for i in index]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run and all that watches it: what any driver needs, and what the summary is made of."""

    pipeline: Pipeline
    plan: BatchPlan
    dispatcher: Dispatcher
    metrics: Metrics
    memory: MemoryMeter | None
    """None where the file gives no size of hidden states."""
    times: ServiceTimes | None
    """None for a training, whose workers take what time they take."""
    measured: MeasuredTimes | None
    failures: list[str]
    """Workers that failed, and on which batch, in words; known when the run is over."""
    seed: int
    told: dict[str, Any] = field(default_factory=dict)
    """What the driver adds to the summary."""
    doubts: list[str] | None = None
    """Of the timings' settings, machine and versions, by whoever knows those here; None: by the file's settings."""

    def observers(self) -> list[Observer]:
        """Whoever follows the event stream of every run."""
        return [self.metrics] if self.memory is None else [self.metrics, self.memory]


def lanes_of(dispatcher: Dispatcher) -> list[tuple[str, int]]:
    """(name, capacity) of the hidden-state hop's lanes."""
    return [(lane.name, lane.capacity) for lane in dispatcher.dispatch.lanes]


def simulate(
    pipeline: Pipeline,
    *,
    plan: BatchPlan | None = None,
    seed: int | None = None,
    measured: MeasuredTimes | None = None,
    trace_in: Path | None = None,
    progress: Callable[[float, float], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
    watching: Callable[[Run], Observer] | None = None,
) -> Run:
    """Simulate the pipeline once. `seed` replaces the file's for the times; the plan keeps the file's.

    `measured` replaces the timings that the file names. `trace_in` is the folder for a trace, if one is wanted.
    `interrupted()` is asked now and then whether the run shall end. `watching(run)` makes one more observer.

    `progress(now_s, share_trained)` is called now and then. Raises PipelineError, BatchPlanError or
    TimingsError for what only shows when the work is planned, PolicyError for a policy that breaks its rules.
    """
    run = prepare(pipeline, plan=plan, seed=seed, measured=measured)
    with contextlib.ExitStack() as stack:
        observers, writer = run.observers(), None
        if watching is not None:
            observers.append(watching(run))
        if trace_in is not None:
            writer = stack.enter_context(trace_writer(trace_in, "simulation", run))
            observers.append(writer)
        assert run.times is not None, "a simulation has times"
        simulator = Simulator(
            dispatcher=run.dispatcher,
            times=run.times,
            log=Log(*observers),
            batches=run.plan.count,
            placement=charged(pipeline.dispatch.placement, pipeline.memory.staging),
            faults=planned_faults(pipeline),
            interference=None if run.measured is None else interference_of(pipeline, run.measured.profile),
            at_s=pipeline.stop.at_s,
            progress=progress,
            interrupted=interrupted,
        )
        end = simulator.run()
        run.metrics.finish(end)
        if writer is not None:
            writer.finish(end)
    run.failures.extend(simulator.failures)
    return run


def prepare(
    pipeline: Pipeline,
    *,
    plan: BatchPlan | None = None,
    seed: int | None = None,
    measured: MeasuredTimes | None = None,
    timed: bool = True,
) -> Run:
    """All of a run but its driver, which starts from here. Arguments and errors as for `simulate`.

    `timed`: false for a training, whose times are nobody's to draw.
    """
    plan = plan if plan is not None else plan_of(pipeline)
    seed = pipeline.seed if seed is None else seed
    dispatcher = build_dispatcher(pipeline, plan.bucket_names, plan.bucket.tolist())
    measured = measured if measured is not None or not timed else measured_times(pipeline)
    return Run(
        pipeline=pipeline,
        plan=plan,
        dispatcher=dispatcher,
        metrics=metrics_for(pipeline, dispatcher, plan),
        memory=memory_for(pipeline, dispatcher, plan),
        times=draw_times(pipeline, plan, seed, measured) if timed else None,
        measured=measured,
        failures=[],
        seed=seed,
    )


def metrics_for(pipeline: Pipeline, dispatcher: Dispatcher, plan: BatchPlan) -> Metrics:
    """A fresh accumulator."""
    topology = pipeline.topology
    return Metrics(
        targets=topology.targets, drafters=topology.drafters, lanes=lanes_of(dispatcher), work=Work.of(plan)
    )


def memory_for(pipeline: Pipeline, dispatcher: Dispatcher, plan: BatchPlan) -> MemoryMeter | None:
    """A fresh meter of staging memory; None where the file gives no size of hidden states."""
    if pipeline.memory.bytes_per_token is None:
        return None
    return MemoryMeter(
        memory=pipeline.memory,
        slots=plan.slots,
        targets=pipeline.topology.targets,
        drafters=pipeline.topology.drafters,
        readers=[lane.reader for lane in dispatcher.dispatch.lanes],
        placement=pipeline.dispatch.placement,
    )


@contextlib.contextmanager
def trace_writer(folder: Path, kind: str, run: Run, every_s: float | None = None) -> "Iterator[TraceWriter]":
    """A recorder of this run, to whom the folder belongs meanwhile.

    `every_s`: also flushed that often, for a run that may be killed. Raises PipelineError where another run has it.
    """
    with claimed(folder), trace_of(folder, kind, run, every_s) as writer:
        yield writer


def trace_of(folder: Path, kind: str, run: Run, every_s: float | None = None) -> "TraceWriter":
    """As `trace_writer`, in a folder that is claimed already."""
    from reports.tracewriter import TraceWriter  # pyarrow takes 40 MB and is needed for traces only

    return TraceWriter(
        folder,
        kind=kind,
        targets=run.pipeline.topology.targets,
        drafters=run.pipeline.topology.drafters,
        lanes=lanes_of(run.dispatcher),
        plan=run.plan,
        config=resolved(run.pipeline),
        every_s=every_s,
    )


def plan_of(pipeline: Pipeline) -> BatchPlan:
    """The batches of the pipeline."""
    assert pipeline.data is not None, "checked when the file was read: a simulation needs data"
    return plan_batches(pipeline.data, seed=pipeline.seed)


def measured_times(pipeline: Pipeline) -> MeasuredTimes | None:
    """The timings that the file names, if it names some; a training's file must share the profile's settings."""
    if pipeline.timings is None or pipeline.timings.file is None:
        return None
    profile = read_timings(pipeline.timings.file)
    if pipeline.model.name_or_path is not None and (
        faults := setting_faults(profile, settings_of(resolved(pipeline)), pipeline.timings.file)
    ):
        raise PipelineError(faults)
    return MeasuredTimes(profile, anchors=pipeline.training.anchors)


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


def timings_used(run: Run) -> dict[str, Any]:
    """Where measured times came from, a sentence for each role, and doubts; nothing where the file gave numbers."""
    if run.measured is None:
        return {}
    used = [run.measured.used[role] for role in ("target", "drafter")]
    doubts = [doubt for each in used if (doubt := each.doubt()) is not None]
    profile = run.measured.profile
    doubts += doubts_of(run.pipeline, profile)
    doubts += settings_doubts(run.pipeline, profile) if run.doubts is None else run.doubts
    return {"timings_used": [each.text() for each in used], **({"timings_doubted": doubts} if doubts else {})}


def memory_report(run: Run) -> Mapping[str, Any]:
    """The summary's `memory`; every figure null without a size of hidden states."""
    if run.memory is not None:
        return run.memory.report()
    topology = run.pipeline.topology
    return unknown_memory(topology.drafters, topology.targets)


def summary_of(
    run: Run, alternatives: Sequence[Alternative] = (), kind: str = "simulation", **extra: Any
) -> dict[str, Any]:
    """The summary of a run that is over."""
    pipeline = run.pipeline
    facts = Facts(
        kind=kind,
        policy=pipeline.dispatch.policy,
        seed=run.seed,
        config=resolved(pipeline),
        anchors=pipeline.training.anchors,
        memory=memory_report(run),
        waiting=waiting(run.dispatcher),
        failures=run.failures,
        alternatives=alternatives,
        extra=timings_used(run) | run.told | extra,
    )
    return summarize(run.metrics, run.plan, facts)

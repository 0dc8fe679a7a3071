"""Simulated runs with a trace, for the tests of everything that reads one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash_sim.service import service_times
from dflash_sim.simulator import PlannedFault, Simulator
from policies.batches import Arrangement, BatchPlan, batches_from_lengths
from policies.builtin import BUILTIN
from policies.dispatcher import Dispatcher
from policies.policy import Shape
from policies.trace import Event, Input
from reports.metrics import LaneMeter, Metrics, WorkerMeter
from reports.observer import Exchange, Log
from reports.tracefile import TraceWriter


class Events:
    """Keeps the events as they came."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, Event]] = []

    def observe(self, exchanges: Sequence[Exchange]) -> None:
        for now, name, arguments, answer in exchanges:
            self.seen.append((now, Input(name, arguments)))
            self.seen += [(now, effect) for effect in answer]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pipeline; small, with uneven batches and workers, so that everything that can happen does."""

    policy: str = "shared"
    sync: str = "none"
    targets: int = 3
    drafters: int = 2
    batches: int = 60
    accumulate: int = 1
    prefetch: int = 0
    loader: float | None = None
    transfer: float | None = None
    step: float | None = None
    max_steps: int | None = None
    at_s: float | None = None
    faults: tuple[PlannedFault, ...] = ()

    def plan(self) -> BatchPlan:
        lengths = np.random.default_rng(7).integers(16, 4096, self.batches)
        return batches_from_lengths(lengths, Arrangement(buckets=(1024, 2048), seed=3))

    def dispatcher(self) -> Dispatcher:
        """A fresh one."""
        plan = self.plan()
        return Dispatcher(
            feed=BUILTIN["shared"](),
            feed_shape=Shape(producers=1, consumers=self.targets, depth=4),
            dispatch=BUILTIN[self.policy](),
            dispatch_shape=Shape(producers=self.targets, consumers=self.drafters, depth=2, buckets=plan.bucket_names),
            bucket_of=plan.bucket.tolist(),
            sync=self.sync,
            accumulate=self.accumulate,
            prefetch=self.prefetch,
            max_steps=self.max_steps,
        )

    def metrics(self, lanes: list[tuple[str, int]]) -> Metrics:
        plan = self.plan()
        work = SimpleNamespace(tokens=plan.tokens.tolist(), bucket=plan.bucket.tolist(), length=plan.length.tolist())
        return Metrics(targets=self.targets, drafters=self.drafters, lanes=lanes, work=work)

    def writer(self, folder: Path, lanes: list[tuple[str, int]], **more: Any) -> TraceWriter:
        return TraceWriter(
            folder,
            kind="simulation",
            targets=self.targets,
            drafters=self.drafters,
            lanes=lanes,
            plan=self.plan(),
            config={"seed": 0, "dispatch": {"policy": self.policy}},
            **more,
        )

    def record(self, folder: Path, **more: Any) -> tuple[Metrics, Events]:
        """Simulate, with a trace in `folder`; returns the live numbers and the events."""
        dispatcher, plan, events = self.dispatcher(), self.plan(), Events()
        lanes = [(lane.name, lane.capacity) for lane in dispatcher.dispatch.lanes]
        metrics = self.metrics(lanes)
        times = service_times(timings=self._timings(), plan=plan, targets=self.targets, drafters=self.drafters)
        with self.writer(folder, lanes, **more) as writer:
            simulator = Simulator(
                dispatcher=dispatcher,
                times=times,
                log=Log(metrics, events, writer),
                batches=plan.count,
                faults=self.faults,
                at_s=self.at_s,
            )
            end = simulator.run()
            writer.finish(end)
        metrics.finish(end)
        return metrics, events

    def record_by_hand(self, folder: Path, calls: Sequence[tuple[Any, ...]]) -> tuple[Metrics, Events]:
        """What no simulation does: these calls, one a second. Returns the live numbers and the events."""
        dispatcher, events, now = self.dispatcher(), Events(), iter(range(100))
        lanes = [(lane.name, lane.capacity) for lane in dispatcher.dispatch.lanes]
        metrics = self.metrics(lanes)
        with self.writer(folder, lanes) as writer:
            log = Log(metrics, events, writer)
            for name, *args in calls:
                time_s = float(next(now))
                log.pending.append((time_s, name, tuple(args), getattr(dispatcher, name)(*args)))
            log.flush()
            writer.finish(time_s)
        metrics.finish(time_s)
        return metrics, events

    def _timings(self) -> SimpleNamespace:
        def role(rate: float) -> SimpleNamespace:
            return SimpleNamespace(seconds=None, tokens_per_second=rate, cv=0.3, distribution=None, first_seconds=None)

        def extra(seconds: float | None) -> SimpleNamespace | None:
            if seconds is None:
                return None
            return SimpleNamespace(seconds=seconds, bytes_per_second=None, cv=None, distribution=None)

        return SimpleNamespace(
            target=role(1000.0),
            drafter=role(1500.0),
            loader=extra(self.loader),
            transfer=extra(self.transfer),
            step=extra(self.step),
        )


def crash(role: str, worker: int, at_batch: int) -> PlannedFault:
    return PlannedFault(role=role, worker=worker, at_batch=at_batch, kind="crash")


def hang(role: str, worker: int, at_batch: int) -> PlannedFault:
    return PlannedFault(role=role, worker=worker, at_batch=at_batch, kind="hang")


ABANDONED = (
    ("target_ready", 0),
    ("drafter_ready", 0),
    ("load", 0, 1),
    ("loader_done",),
    ("offer", 0, 0),
    ("received", 0, 0),
    ("computed", 0, 0),
    ("abandon", 0),
    ("offer", 0, 0),
    ("received", 0, 0),
    ("computed", 0, 0),
    ("commit", 1, (0,)),
)
"""The first step of one target and one drafter cannot be applied."""
REFUSED = (
    ("target_ready", 0),
    ("drafter_ready", 0),
    ("load", 0, 1),
    ("loader_done",),
    ("offer", 0, 0),
    ("refused", 0, 0),
    ("offer", 0, 0),
    ("received", 0, 0),
    ("computed", 0, 0),
    ("commit", 0, (0,)),
)
"""The hidden states of the only batch do not arrive whole, and are computed again."""
BY_HAND = {"an abandoned step": ABANDONED, "a refused batch": REFUSED}
SYNCS = ("none", "step", "pooled")
CASES = {
    **{f"{policy}, {sync}": Case(policy=policy, sync=sync) for policy in BUILTIN for sync in SYNCS},
    "accumulate": Case(policy="bucketed", sync="step", accumulate=4, batches=61),
    "accumulate, none": Case(accumulate=3, batches=61),
    "prefetch": Case(sync="step", accumulate=2, prefetch=2, transfer=0.3),
    "timed extras": Case(sync="pooled", accumulate=2, loader=0.2, transfer=0.1, step=0.4),
    "target crash": Case(policy="round_robin", sync="step", accumulate=2, faults=(crash("target", 0, 4),)),
    "target crash, slow copies": Case(policy="round_robin", sync="step", transfer=3.0, faults=(crash("target", 0, 6),)),
    "drafter crash": Case(policy="rotating", sync="step", accumulate=2, faults=(crash("drafter", 1, 4),)),
    "drafter crash, none": Case(faults=(crash("drafter", 0, 9),)),
    "all targets crash": Case(targets=1, faults=(crash("target", 0, 5),)),
    "a hang": Case(sync="step", faults=(hang("drafter", 1, 5),)),
    "max_steps": Case(sync="step", max_steps=7),
    "at_s": Case(at_s=20.0),
    "no batch at all": Case(batches=0),
}


def numbers(metrics: Metrics) -> dict[str, Any]:
    """Everything an accumulator counted."""
    values = {name: value for name, value in vars(metrics).items() if not name.startswith("_")}
    for name in ("targets", "drafters", "lanes"):
        values[name] = [_slots(meter) for meter in values[name]]
    return values


def _slots(meter: WorkerMeter | LaneMeter) -> dict[str, Any]:
    return {name: value for name, value in vars(meter).items() if not callable(value)}

"""What is measured, and in which order: targets, drafters with their steps, parts, memory, and pairs at once."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from dflash_run.crew import Worker
from dflash_run.messages import Applied, Apply, Computed, Group, Grouped, Open, Received
from dflash_run.profiling.grid import SHAPES, Cell, middle
from dflash_run.profiling.messages import AskPeak, Dissect, Dissected, Peak, TimeCollective
from dflash_run.profiling.pairs import Pair, Trio
from dflash_run.profiling.power import PowerMeter
from dflash_run.profiling.stage import Phase, Stage
from dflash_run.training.messages import ComputeStates, TrainOn
from dflash_run.training.preparation import Preparation
from dflash_run.transport.parcel import HOST, Parcel, Slot
from dflash_run.transport.slots import SlotTable

_COMPUTING: Final = "factor"
"""The phase of computing a batch, by its name in a profile's pairs."""
_CHAIN: Final = 3
"""Batches that are trained one after the other, each with the next one arriving."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured, and how long."""

    shapes: int = SHAPES
    """Batches of the plan, spread over its sizes; its shortest and longest join them."""
    repeats: int = 9
    """Times that each shape is measured, at least, unless that takes longer than `most_s`."""
    most_repeats: int = 60
    least_s: float = 0.4
    """Shapes that take little are measured for so long."""
    most_s: float = 7.0
    flow_s: float = 1.5
    """How long a pair is kept busy at once."""
    rounds: int = 2
    """How often, in turn with each of the two alone."""
    again: bool | None = None
    """Whether first batches are measured again in new processes, which find what the first ones compiled.

    None: where there are GPUs.
    """

    def enough(self, samples: list[float]) -> bool:
        spent, taken = sum(samples), len(samples)
        if taken >= self.most_repeats or (taken >= 3 and spent >= self.most_s):
            return True
        return taken >= self.repeats and spent >= self.least_s


@dataclass
class Found:
    """Raw samples in seconds, by cell where they depend on shapes."""

    target: dict[Cell, list[float]] = field(default_factory=dict)
    drafter: dict[Cell, list[float]] = field(default_factory=dict)
    parts: dict[tuple[str, Cell], dict[str, tuple[float, ...]]] = field(default_factory=dict)
    first: dict[str, list[float]] = field(default_factory=lambda: {"target": [], "drafter": []})
    cold: dict[str, list[float]] = field(default_factory=dict)
    """First batches before anything was compiled, where they were measured again."""
    transfer: list[tuple[int, float]] = field(default_factory=list)
    """(bytes, seconds) of each copy to a drafter."""
    step: list[float] = field(default_factory=list)
    all_reduce: list[float] = field(default_factory=list)
    factors: dict[str, list[float]] = field(default_factory=dict)
    """Of each worker of a role, where they are unlike."""
    peaks: dict[str, int] = field(default_factory=dict)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    trios: list[dict[str, Any]] = field(default_factory=list)
    power: dict[str, float] | None = None
    """What a GPU may draw, and does when idle, in watts."""


class Measuring:
    """One profile over workers that are ready; they are used up by it."""

    def __init__(
        self, prepared: Preparation, stage: Stage, slots: SlotTable, workers: Iterable[Worker], effort: Effort
    ) -> None:
        self._prepared = prepared
        self._stage = stage
        self._slots = slots
        self._on_host = prepared.pipeline.memory.staging == "host"
        self._targets = sorted(worker for worker in workers if worker[0] == "target")
        self._drafters = sorted(worker for worker in workers if worker[0] == "drafter")
        self._effort = effort
        self._keys = count()
        self._steps = count()
        self._into: dict[tuple[Worker, Cell], Slot] = {}
        self._parcels: dict[Cell, Parcel] = {}
        self.found = Found()

    def together(self, store: Path) -> None:
        """The drafters form their group, if they step together."""
        members = tuple(number for _, number in self._drafters)
        if self._prepared.pipeline.training.sync == "none" or len(members) < 2:
            return
        for drafter in self._drafters:
            self._stage.post(drafter, Group(0, members, str(store)))
        for drafter in self._drafters:
            self._stage.await_(drafter, Grouped)

    def firsts(self, cells: list[Cell]) -> None:
        """The first batch of each worker, one after the other.

        Whoever compiles may be silent for long; from then on silence is judged as a training's watchdog judges it.
        """
        cell = middle(cells)
        for target in self._targets:
            self.found.first["target"].append(self._compute(target, cell))
        for drafter in self._drafters:
            self.found.first["drafter"].append(self._train(drafter, cell))
        self._stage.silence_s = self._prepared.pipeline.stop.watchdog_s

    def factors(self, cells: list[Cell]) -> None:
        """How much longer each worker takes than the first of its role."""
        cell, repeats = middle(cells), self._effort.repeats
        for role, workers in (("target", self._targets), ("drafter", self._drafters)):
            once = self._compute if role == "target" else self._train
            taken = {worker: [once(worker, cell) for _ in range(1 + repeats)][1:] for worker in workers}
            means = [float(np.mean(seconds)) for seconds in taken.values()]
            self.found.factors[role] = [mean / means[0] for mean in means]

    def targets(self, cells: list[Cell]) -> None:
        """Seconds from the order to the answer, as the launcher will see them."""
        self.found.target = self._sample(cells, lambda cell: [self._compute(self._targets[0], cell)])

    def drafters(self, cells: list[Cell]) -> None:
        """As for targets; copies and steps are timed on the way."""
        if self._prepared.pipeline.dispatch.prefetch:
            self.found.drafter = self._sample(cells, lambda cell: self._train_on(self._drafters[0], cell))
        else:
            self.found.drafter = self._sample(cells, lambda cell: [self._train(self._drafters[0], cell)])

    def parts(self, cells: list[Cell]) -> None:
        """What batches, and steps, are made of."""
        repeats = min(self._effort.repeats, 5)
        for worker in (self._targets[0], self._drafters[0]):
            for cell in cells:
                answer, _ = self._stage.ask(worker, Dissect(self._samples(cell), repeats + 1), Dissected)
                kept = {name: seconds[1:] for name, seconds in answer.parts.items()}
                self.found.parts[worker[0], cell] = kept
        if self._prepared.pipeline.training.sync != "none" and len(self._drafters) > 1:
            for drafter in self._drafters:
                self._stage.post(drafter, TimeCollective(repeats + 1))
            taken = [self._stage.await_(drafter, Dissected)[0] for drafter in self._drafters]
            self.found.all_reduce = list(taken[0].parts["all_reduce"][1:])

    def peaks(self) -> None:
        """The most memory that a worker of each role took."""
        for worker in (self._targets[0], self._drafters[0]):
            answer, _ = self._stage.ask(worker, AskPeak(), Peak)
            self.found.peaks[worker[0]] = answer.nbytes

    def pairs(self, pairs: list[Pair], cells: list[Cell]) -> None:
        """How much slower two workers are at once than each alone, in turn."""
        for pair in pairs:
            meter = PowerMeter(pair.shared)
            self.found.power = self.found.power or meter.room()
            seen = self._at_once((pair.a, pair.b), middle(cells), meter)
            found: dict[str, Any] = {"a": pair.a[0], "b": pair.b[0], "shared": pair.shared}
            if self.found.power is not None and all(seen.watts.values()):
                busy = {"a": (pair.a,), "b": (pair.b,), "both": (pair.a, pair.b)}
                found |= {f"watts_{side}": round(seen.watts[who], 1) for side, who in busy.items()}
            for side, worker in (("a", pair.a), ("b", pair.b)):
                for name in seen.phases(worker):
                    factor, error = seen.factor(worker, name)
                    found |= {f"{name}_{side}": round(factor, 4), f"{name}_{side}_error": round(error, 4)}
            self.found.pairs.append(found)

    def trio(self, trio: Trio, cells: list[Cell]) -> None:
        """How much slower three workers are at once than each alone, in turn."""
        seen = self._at_once(trio.workers, middle(cells), PowerMeter(trio.shared))
        factors = [seen.factor(worker, _COMPUTING) for worker in trio.workers]
        told = {"factors": [round(factor, 4) for factor, _ in factors], "errors": [round(e, 4) for _, e in factors]}
        self.found.trios.append({"workers": [role for role, _ in trio.workers], "shared": trio.shared, **told})

    # Inside -----------------------------------------------------------------------------------------------------

    def _at_once(self, workers: tuple[Worker, ...], cell: Cell, meter: PowerMeter) -> "_AtOnce":
        """Each alone and all at once, in turn, so that what drifts drifts for all."""
        work = {worker: self._busy_with(worker, cell) for worker in workers}
        seen = _AtOnce(workers)
        for _ in range(self._effort.rounds):
            for busy in (*((worker,) for worker in workers), workers):
                with meter.watching() as readings:
                    flow = self._stage.flow({worker: work[worker] for worker in busy}, self._effort.flow_s)
                seen.add(busy, flow, readings)
        return seen

    def _sample(self, cells: list[Cell], some: Callable[[Cell], list[float]]) -> dict[Cell, list[float]]:
        """Each cell again and again, in turn, so that what drifts drifts for all; the first time is a warm-up."""
        found: dict[Cell, list[float]] = {cell: [] for cell in cells}
        for cell in cells:
            some(cell)
        self.found.transfer.clear()
        self.found.step.clear()
        while open_ := [cell for cell in cells if not self._effort.enough(found[cell])]:
            for cell in open_:
                found[cell] += some(cell)
        return found

    def _compute(self, target: Worker, cell: Cell) -> float:
        """The seconds of a batch; drafters are given what the first target made of it."""
        done, seconds = self._stage.ask(target, self._order(target, cell), Computed)
        if target == self._targets[0]:
            assert isinstance(done.parcel, Parcel)
            self._parcels[cell] = done.parcel
        return seconds

    def _train(self, drafter: Worker, cell: Cell) -> float:
        """One batch and its step; returns the seconds of the batch."""
        stage, step = self._stage, next(self._steps)
        self._open(drafter, step)
        self._copy(drafter, cell, step)
        start = time.perf_counter()
        _, end = stage.await_(drafter, Computed)
        self._apply(drafter, step)
        return max(end - start, 1e-9)

    def _train_on(self, drafter: Worker, cell: Cell) -> list[float]:
        """Some batches as under prefetch: while each is trained the next one arrives, which takes time of its own."""
        stage, found = self._stage, []
        steps = [next(self._steps) for _ in range(_CHAIN + 1)]
        self._copy(drafter, cell, steps[0])
        for step, following in pairwise(steps):
            start = time.perf_counter()
            self._open(drafter, step)
            stage.post(drafter, self._training(cell, following))
            found.append(stage.await_(drafter, Computed)[1] - start)
            stage.await_(drafter, Received)
            self._apply(drafter, step)
        self._open(drafter, steps[-1])
        stage.await_(drafter, Computed)
        self._apply(drafter, steps[-1])
        return found

    def _copy(self, drafter: Worker, cell: Cell, step: int) -> None:
        _, copied = self._stage.ask(drafter, self._training(cell, step), Received)
        self.found.transfer.append((self._parcels[cell].nbytes, copied))

    def _open(self, drafter: Worker, step: int) -> None:
        for each in self._joining(drafter):
            self._stage.post(each, Open(step))

    def _apply(self, drafter: Worker, step: int) -> None:
        begin, joining = time.perf_counter(), self._joining(drafter)
        for each in joining:
            self._stage.post(each, Apply(step, progress=0.5))
        self.found.step.append(max(self._stage.await_(each, Applied)[1] for each in joining) - begin)

    def _joining(self, drafter: Worker) -> list[Worker]:
        """Who takes part in its steps."""
        return self._drafters if self._prepared.pipeline.training.sync != "none" else [drafter]

    def _busy_with(self, worker: Worker, cell: Cell) -> list[Phase]:
        """Phases that keep a worker busy over and over. A step that others must join is none of them."""
        if worker[0] == "target":
            return [Phase(_COMPUTING, Computed, self._order(worker, cell))]
        step = next(self._steps)
        self._stage.post(worker, Open(step))
        phases = [Phase("copy", Received, self._training(cell, step)), Phase(_COMPUTING, Computed)]
        if self._prepared.pipeline.training.sync == "none" or len(self._drafters) == 1:
            phases.append(Phase("step", Applied, Apply(step, progress=0.5)))
        return phases

    def _order(self, target: Worker, cell: Cell) -> ComputeStates:
        """Into a slot of its own for each shape."""
        if (target, cell) not in self._into:
            self._into[target, cell] = self._slots.take(next(self._keys), HOST if self._on_host else target[1])
        return ComputeStates(cell.batch, self._samples(cell), self._into[target, cell])

    def _training(self, cell: Cell, step: int) -> TrainOn:
        return TrainOn(step, self._parcels[cell], self._targets[0][1], self._samples(cell), 0)

    def _samples(self, cell: Cell) -> tuple[int, ...]:
        return tuple(self._prepared.plan.samples_of(self._prepared.ids[cell.batch]).tolist())


class _AtOnce:
    """What workers took alone and at once, and what their GPU drew."""

    def __init__(self, workers: tuple[Worker, ...]) -> None:
        self._all = workers
        self._seconds: dict[tuple[bool, Worker], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        """By whether all were busy, worker, and phase."""
        self.watts: dict[tuple[Worker, ...], float] = {}
        """The most, by who was busy; 0: not known."""

    def add(
        self, busy: tuple[Worker, ...], flow: Mapping[Worker, Mapping[str, list[float]]], readings: list[float]
    ) -> None:
        self.watts[busy] = max([self.watts.get(busy, 0.0), *readings])
        for worker, phases in flow.items():
            for name, seconds in phases.items():
                self._seconds[busy == self._all, worker][name] += seconds

    def phases(self, worker: Worker) -> list[str]:
        return list(self._seconds[True, worker])

    def factor(self, worker: Worker, name: str) -> tuple[float, float]:
        """How much longer a phase takes among all, and the standard error of that."""
        return _ratio(self._seconds[True, worker][name], self._seconds[False, worker][name])


def _ratio(above: list[float], below: list[float]) -> tuple[float, float]:
    """The ratio of two means, and its standard error."""
    a, b = np.array(above), np.array(below)
    ratio = float(a.mean() / b.mean())
    spread = sum((each.std(ddof=1) / each.mean()) ** 2 / each.size for each in (a, b))
    return ratio, ratio * float(np.sqrt(spread))

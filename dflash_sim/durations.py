"""Turns the event stream into durations: how long targets, drafters, the loader, copies and optimizer steps took.

Only what began and ended in the stream is measured: what a lost worker was computing, and a copy that was recalled,
leave nothing. Waiting is no part of a duration. Times are seconds.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dflash_sim.simulator import copies
from dflash_sim.timings_fit import WorkRecord
from policies.effects import Assign, Deliver, Drop, Loaded, Recall, Step
from reports.observer import Exchange

Factors = Mapping[str, Sequence[float]]
"""By role, what each batch's time was multiplied with."""


class PlannedSizes(Protocol):
    """What is needed of the batch plan; sequences of N integers."""

    @property
    def slots(self) -> Sequence[int]: ...
    @property
    def length(self) -> Sequence[int]: ...


def profiled_shape(slots: int, length: int) -> tuple[int, int]:
    """(batch size, padded length) of a batch: their product is its slots, so that it is looked up again by both.

    A listed batch is planned as one sample whose tokens may be any number of times its length: it counts as that many
    samples. Where the number is not whole the nearest shape is told; such a batch is modelled, not looked up.
    """
    size = max(round(slots / max(length, 1)), 1)
    return size, max(round(slots / size), 1)


@dataclass(slots=True)
class _Desk:
    """What lies at one drafter."""

    coming: dict[int, tuple[float, bool]] = field(default_factory=dict)
    """Delivered and not received: batch → when, and whether it must be copied; the first is the one being copied."""
    received: dict[int, float] = field(default_factory=dict)
    """Received and not computed: batch → when."""
    arrived: float = 0.0
    """When the last copy was done: the next one begins no sooner."""
    free: float = 0.0
    """When it last finished a micro-batch, or a step of its own was over: the next one begins no sooner."""
    unsure: bool = False
    """A copy was broken off, nobody knows when: the next one's beginning is not known."""


class Durations:
    """An observer that collects the durations of one run. It raises LookupError for an end without its beginning.

    `anchors` is stated in the drafters' records. `factors` are divided out: the times are those of a batch of factor 1.
    `placement` is the pipeline's, `readers` are the only readers of the hidden-state lanes, None (or nothing) where
    all read: what they spare a copy is no transfer. `hidden`: copies to a drafter that computes count too; a
    real one says that they have ended only when it looks up from launching, which is no measure of them.
    """

    def __init__(
        self,
        *,
        work: PlannedSizes,
        drafters: int,
        anchors: int | None = None,
        factors: Factors | None = None,
        placement: str | None = None,
        readers: Sequence[int | None] = (),
        hidden: bool = True,
    ) -> None:
        self.rows: list[WorkRecord] = []
        """What targets and drafters computed, each worker's in its own order."""
        self.steps: list[float] = []
        """Seconds of each optimizer step, from `Step` to its commit."""
        self.loader: list[float] = []
        """Seconds of the loader for each batch."""
        self.transfer: list[float] = []
        """Seconds of each copy to a drafter, without its waiting for the copy before."""
        self.unmeasurable: dict[str, int] = defaultdict(int)
        """By role, the computations that took no time or whose factor is 0: there are no rows of them."""
        self._shapes = [profiled_shape(*each) for each in zip(work.slots, work.length, strict=True)]
        self._anchors = {"target": None, "drafter": anchors}
        self._factors = factors or {}
        self._placement = placement
        self._readers = readers
        self._hidden = hidden
        self._loader_since = 0.0
        self._assigned: dict[tuple[int, int], float] = {}
        self._stepping: dict[int, tuple[float, tuple[int, ...]]] = {}
        self._desks = [_Desk() for _ in range(drafters)]
        self._inputs: dict[str, Callable[..., None]] = {
            "load": self._load,
            "offer": self._offer,
            "target_lost": self._target_lost,
            "received": self._received,
            "computed": self._computed,
            "commit": self._commit,
        }
        self._effects: dict[type, Callable[[float, Any], None]] = {
            Loaded: self._loaded,
            Assign: self._assign,
            Deliver: self._deliver,
            Step: self._step,
            Drop: self._drop,
            Recall: self._recall,
        }

    def observe(self, exchanges: list[Exchange]) -> None:
        """The next exchanges, in order."""
        inputs, effects = self._inputs, self._effects
        for now, name, arguments, answer in exchanges:
            if name in inputs:
                inputs[name](now, *arguments)
            for effect in answer:
                handler = effects.get(type(effect))
                if handler is not None:
                    handler(now, effect)

    def _add(self, role: str, worker: int, batch: int, seconds: float) -> None:
        factor = self._factors[role][batch] if role in self._factors else 1.0
        if seconds <= 0 or factor <= 0:
            self.unmeasurable[role] += 1
            return
        size, length = self._shapes[batch]
        self.rows.append(WorkRecord(role, worker, size, length, seconds / factor, self._anchors[role]))

    # Loader and targets ---------------------------------------------------------------------------------------

    def _load(self, now: float, batch: int, count: int) -> None:
        self.loader += [(now - self._loader_since) / count] * count

    def _loaded(self, now: float, effect: Loaded) -> None:
        self._loader_since = now

    def _assign(self, now: float, effect: Assign) -> None:
        self._assigned[effect.target, effect.batch] = now

    def _offer(self, now: float, target: int, batch: int) -> None:
        self._add("target", target, batch, now - self._assigned.pop((target, batch)))

    def _target_lost(self, now: float, target: int) -> None:
        self._assigned = {key: since for key, since in self._assigned.items() if key[0] != target}

    # Drafters -------------------------------------------------------------------------------------------------

    def _deliver(self, now: float, effect: Deliver) -> None:
        reader = self._readers[effect.lane] if effect.lane < len(self._readers) else None
        copied = copies(self._placement, effect, reader, len(self._desks))
        desk = self._desks[effect.drafter]
        desk.coming[effect.batch] = now, copied and (self._hidden or not desk.received)

    def _received(self, now: float, drafter: int, batch: int) -> None:
        desk = self._desks[drafter]
        since, copied = desk.coming.pop(batch)
        if copied and not desk.unsure and (self._hidden or not desk.received):
            self.transfer.append(now - max(since, desk.arrived))
        desk.unsure = desk.unsure and not copied
        desk.arrived = desk.received[batch] = now

    def _recall(self, now: float, effect: Recall) -> None:
        desk = self._desks[effect.drafter]
        under_way = next(iter(desk.coming), None)
        del desk.coming[effect.batch]
        desk.unsure = desk.unsure or under_way == effect.batch

    def _computed(self, now: float, drafter: int, batch: int) -> None:
        desk = self._desks[drafter]
        self._add("drafter", drafter, batch, now - max(desk.received.pop(batch), desk.free))
        desk.free = now

    # Optimizer steps ------------------------------------------------------------------------------------------

    def _step(self, now: float, effect: Step) -> None:
        self._stepping[effect.step] = now, effect.drafters

    def _commit(self, now: float, step: int, batches: Sequence[int]) -> None:
        since, drafters = self._stepping.pop(step)
        self.steps.append(now - since)
        self._set_free(now, drafters)

    def _drop(self, now: float, effect: Drop) -> None:
        self._stepping.pop(effect.step, None)
        self._set_free(now, effect.drafters)

    def _set_free(self, now: float, drafters: Sequence[int]) -> None:
        """A step is over: a drafter begins with what it took ahead for the next one."""
        for drafter in drafters:
            self._desks[drafter].free = now

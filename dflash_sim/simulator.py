"""The SimPy driver: it carries out the dispatcher's effects in simulated time.

It decides nothing: every batch goes through `policies.Dispatcher` on both hops. A service is one `Timeout` with one
callback, so that a batch costs two events. Events at the same instant happen in the order they were scheduled.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import simpy
from simpy.events import Event, Timeout

from dflash_sim.service import ServiceTimes
from policies.dispatcher import Dispatcher
from policies.effects import Admit, Assign, Deliver, Drop, Effect, Loaded, Recall, Step
from policies.ledger import TRAINED
from reports.observer import Observer

CRASH: Final = "crash"
HANG: Final = "hang"
_NEVER: Final = float("inf")
_STRIDE: Final = 4096
"""Events between two reports of progress."""


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """A worker fails on taking its `at_batch`-th batch (from 1), before it computes."""

    role: str
    worker: int
    at_batch: int
    kind: str


class Desk:
    """What lies at one drafter."""

    __slots__ = ("busy", "copying", "dead", "incoming", "ready")

    def __init__(self) -> None:
        self.incoming: deque[Deliver] = deque()
        """Delivered, not copied yet; the first is being copied if `copying`."""
        self.copying = False
        self.ready: deque[Deliver] = deque()
        """Received, not computed yet; the first is being computed if `busy`."""
        self.busy = False
        self.dead = False
        """Crashed, or hanging: it does nothing any more."""

    def drop(self, batch: int) -> None:
        """The batch is recalled: it can only be one that has not been received."""
        self.incoming = deque(item for item in self.incoming if item.batch != batch)


class Simulator:
    """One run of one pipeline. Call `run` once."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        times: ServiceTimes,
        observer: Observer,
        batches: int,
        prefetch: int = 0,
        placement: str | None = None,
        faults: Sequence[PlannedFault] = (),
        at_s: float | None = None,
        progress: Callable[[float, int], None] | None = None,
    ) -> None:
        self.env = simpy.Environment()
        self.failures: list[str] = []
        """Workers that failed, and on which batch, in words."""
        self._dispatcher = dispatcher
        self._times = times
        self._watch = observer
        self._batches = batches
        self._prefetch = prefetch
        self._placement = placement
        self._at_s = float("inf") if at_s is None else at_s
        self._progress = progress
        self._next = 0
        self._drafters = len(dispatcher.dispatch.consumers)
        self._desks = [Desk() for _ in range(self._drafters)]
        self._faults = {(fault.role, fault.worker): fault for fault in faults}
        self._taken: dict[tuple[str, int], int] = dict.fromkeys(self._faults, 0)
        self._handlers: dict[type, Callable[[Any, list[Effect]], None]] = {
            Loaded: self._loaded,
            Assign: self._assign,
            Admit: self._admitted,
            Deliver: self._deliver,
            Step: self._step,
            Drop: self._begin_next,
            Recall: self._recalled,
        }

    def run(self) -> float:
        """Simulate to the end, to `at_s`, or until nothing is left to happen; returns the time then [s]."""
        dispatcher = self._dispatcher
        for target in list(dispatcher.targets):
            self._carry_out(self._ask(target))
        for drafter in list(dispatcher.dispatch.consumers):
            for _ in range(1 + self._prefetch):
                self._carry_out(self._take(drafter))
        effects: list[Effect] = []
        self._load_next(effects)
        self._carry_out(effects)
        self._loop()
        if dispatcher.ended is None and self.env.peek() != _NEVER:
            self._stop_at(self._at_s)
            return self._at_s
        return self.env.now

    def _loop(self) -> None:
        env, dispatcher, limit = self.env, self._dispatcher, self._at_s
        queue, step, count = env._queue, env.step, 0
        while dispatcher.ended is None and queue and queue[0][0] <= limit:
            step()
            count += 1
            if count % _STRIDE == 0 and self._progress is not None:
                self._progress(env.now, dispatcher.ledger.count(TRAINED))

    def _carry_out(self, effects: list[Effect]) -> None:
        """Carry out effects in order; the handlers append what they cause at the same instant."""
        handlers = self._handlers
        for effect in effects:
            handler = handlers.get(type(effect))
            if handler is not None:
                handler(effect, effects)

    # Inputs: each is observed, then given to the dispatcher, and its effects observed ---------------------------

    def _ask(self, target: int) -> list[Effect]:
        now = self.env.now
        self._watch.ask(now, target)
        effects = self._dispatcher.ask(target)
        self._watch.effects(now, effects)
        return effects

    def _take(self, drafter: int) -> list[Effect]:
        now = self.env.now
        self._watch.take(now, drafter)
        effects = self._dispatcher.take(drafter)
        self._watch.effects(now, effects)
        return effects

    def _load(self, batch: int) -> list[Effect]:
        now = self.env.now
        self._watch.load(now, batch)
        effects = self._dispatcher.load(batch)
        self._watch.effects(now, effects)
        return effects

    def _commit(self, step: int, batches: Sequence[int]) -> list[Effect]:
        now = self.env.now
        self._watch.commit(now, step, batches)
        effects = self._dispatcher.commit(step, batches)
        self._watch.effects(now, effects)
        return effects

    def _receive(self, drafter: int, batch: int) -> None:
        now = self.env.now
        self._watch.received(now, drafter, batch)
        self._watch.effects(now, self._dispatcher.received(drafter, batch))

    def _lose(self, role: str, worker: int) -> list[Effect]:
        now, watch, dispatcher = self.env.now, self._watch, self._dispatcher
        if role == "target":
            watch.target_lost(now, worker)
            effects = dispatcher.target_lost(worker)
        else:
            watch.drafter_lost(now, worker)
            effects = dispatcher.drafter_lost(worker)
        watch.effects(now, effects)
        return effects

    def _stop_at(self, now: float) -> None:
        self._watch.stop(now, "at_s")
        self._watch.effects(now, self._dispatcher.stop("at_s"))

    # The loader -----------------------------------------------------------------------------------------------

    def _load_next(self, effects: list[Effect]) -> None:
        batch = self._next
        if batch >= self._batches:
            if batch == self._batches:
                self._next += 1
                self._watch.loader_done(self.env.now)
                done = self._dispatcher.loader_done()
                self._watch.effects(self.env.now, done)
                effects += done
            return
        self._next += 1
        seconds = self._times.loader(batch)
        if seconds > 0:
            Timeout(self.env, seconds, batch).callbacks.append(self._load_done)
        else:
            effects += self._load(batch)

    def _load_done(self, event: Event) -> None:
        self._carry_out(self._load(event._value))

    def _loaded(self, effect: Loaded, effects: list[Effect]) -> None:
        if self._dispatcher.ended is None:
            self._load_next(effects)

    # Targets --------------------------------------------------------------------------------------------------

    def _assign(self, effect: Assign, effects: list[Effect]) -> None:
        target, batch = effect.target, effect.batch
        if self._faults and self._fails("target", target, batch, effects):
            return
        Timeout(self.env, self._times.target(target, batch), (target, batch)).callbacks.append(self._target_done)

    def _target_done(self, event: Event) -> None:
        target, batch = event._value
        now = self.env.now
        self._watch.offer(now, target, batch)
        effects = self._dispatcher.offer(target, batch)
        self._watch.effects(now, effects)
        self._carry_out(effects)

    def _admitted(self, effect: Admit, effects: list[Effect]) -> None:
        if self._dispatcher.ended is None:
            effects += self._ask(effect.target)

    # Drafters -------------------------------------------------------------------------------------------------

    def _deliver(self, effect: Deliver, effects: list[Effect]) -> None:
        drafter = effect.drafter
        desk = self._desks[drafter]
        if desk.dead or self._faults and self._fails("drafter", drafter, effect.batch, effects):
            return
        desk.incoming.append(effect)
        if not desk.copying:
            self._fetch(desk)

    def _fetch(self, desk: Desk) -> None:
        """Copy what waits at the desk, one batch at a time; what needs no copy arrives at once."""
        while desk.incoming:
            effect = desk.incoming[0]
            seconds = self._copy_seconds(effect)
            if seconds > 0:
                desk.copying = True
                Timeout(self.env, seconds, effect).callbacks.append(self._copied)
                return
            desk.incoming.popleft()
            self._arrive(desk, effect)

    def _copy_seconds(self, effect: Deliver) -> float:
        """Without a placement every take copies. Placed batches copy again only onto another drafter's device."""
        if self._placement is None:
            return self._times.transfer(effect.batch)
        if self._placement == "taker" or effect.source % self._drafters == effect.drafter:
            return 0.0
        return self._times.transfer(effect.batch)

    def _copied(self, event: Event) -> None:
        effect: Deliver = event._value
        desk = self._desks[effect.drafter]
        desk.copying = False
        if desk.dead or self._dispatcher.ended is not None:
            return
        if desk.incoming and desk.incoming[0] is effect:
            desk.incoming.popleft()
            self._arrive(desk, effect)
        self._fetch(desk)

    def _arrive(self, desk: Desk, effect: Deliver) -> None:
        self._receive(effect.drafter, effect.batch)
        desk.ready.append(effect)
        if not desk.busy:
            self._compute(desk, effect.drafter)

    def _compute(self, desk: Desk, drafter: int) -> None:
        """Start the next micro-batch, unless it belongs to a step that is not open yet."""
        step = self._dispatcher.windows[drafter].step
        for effect in desk.ready:
            if effect.step == step:
                desk.busy = True
                seconds = self._times.drafter(drafter, effect.batch)
                Timeout(self.env, seconds, effect).callbacks.append(self._drafter_done)
                return

    def _drafter_done(self, event: Event) -> None:
        effect: Deliver = event._value
        drafter = effect.drafter
        desk = self._desks[drafter]
        if desk.dead:
            return
        desk.ready.remove(effect)
        desk.busy = False
        now = self.env.now
        self._watch.computed(now, drafter, effect.batch)
        effects = self._dispatcher.computed(drafter, effect.batch)
        self._watch.effects(now, effects)
        self._carry_out(effects)
        if self._dispatcher.ended is None:
            self._carry_out(self._take(drafter))
            if not desk.busy:
                self._compute(desk, drafter)

    def _step(self, effect: Step, effects: list[Effect]) -> None:
        seconds = self._times.step(effect.step)
        if seconds > 0:
            Timeout(self.env, seconds, effect).callbacks.append(self._step_done)
        elif self._dispatcher.ended is None:
            self._apply(effect, effects)

    def _step_done(self, event: Event) -> None:
        effects: list[Effect] = []
        self._apply(event._value, effects)
        self._carry_out(effects)

    def _apply(self, effect: Step, effects: list[Effect]) -> None:
        if all(self._desks[drafter].dead for drafter in effect.drafters):
            return
        effects += self._commit(effect.step, effect.batches)
        self._begin_next(effect, effects)

    def _begin_next(self, effect: Step | Drop, effects: list[Effect]) -> None:
        """The next step is open: begin with what was taken ahead for it."""
        for drafter in effect.drafters:
            desk = self._desks[drafter]
            if desk.ready and not desk.busy and not desk.dead:
                self._compute(desk, drafter)

    def _recalled(self, effect: Recall, effects: list[Effect]) -> None:
        self._desks[effect.drafter].drop(effect.batch)
        if self._dispatcher.ended is None:
            effects += self._take(effect.drafter)

    # Faults ---------------------------------------------------------------------------------------------------

    def _fails(self, role: str, worker: int, batch: int, effects: list[Effect]) -> bool:
        """Whether the worker fails on taking this batch; a crash is reported, a hang is silent."""
        fault = self._faults.get((role, worker))
        if fault is None:
            return False
        self._taken[role, worker] += 1
        if self._taken[role, worker] != fault.at_batch:
            return False
        self.failures.append(f"{role}/{worker}: {fault.kind} on taking batch {batch} ({fault.at_batch} of its own)")
        if role == "drafter":
            self._desks[worker].dead = True
        if fault.kind == CRASH:
            effects += self._lose(role, worker)
        return True

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
from reports.observer import Log

CRASH: Final = "crash"
HANG: Final = "hang"
_NEVER: Final = float("inf")
_STRIDE: Final = 2048
"""Events between two flushes of the log and reports of progress."""


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
        self.ready: list[Deliver] = []
        """Received, not computed yet, in order of arrival; one of them is being computed if `busy`."""
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
        log: Log,
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
        self._log = log
        self._record = log.pending.append
        self._batches = batches
        self._prefetch = prefetch
        self._placement = placement
        self._at_s = _NEVER if at_s is None else at_s
        self._progress = progress
        self._next = 0
        self._drafters = len(dispatcher.dispatch.consumers)
        self._desks = [Desk() for _ in range(self._drafters)]
        self._faults = {(fault.role, fault.worker): fault for fault in faults}
        self._taken: dict[tuple[str, int], int] = dict.fromkeys(self._faults, 0)
        self._answers: deque[list[Effect]] = deque()
        """Answers to inputs of this instant that are still to be carried out."""
        self._handlers: dict[type, Callable[[Any], None]] = {
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
        self._start()
        self._loop()
        end = self.env.now
        if self._dispatcher.ended is None and self.env.peek() != _NEVER:
            end = self._at_s
            self._record((end, "stop", ("at_s",), self._dispatcher.stop("at_s")))
        self._log.flush()
        return end

    def _start(self) -> None:
        """All workers ask in the order of their numbers; then the loader begins."""
        dispatcher = self._dispatcher
        asks: list[tuple[Callable[[int], None], int]] = [(self._ask, target) for target in dispatcher.targets]
        asks += [(self._take, d) for d in dispatcher.dispatch.consumers for _ in range(1 + self._prefetch)]
        for ask, worker in asks:
            if dispatcher.ended is None:  # without data the first to ask is told that the run is over
                ask(worker)
                self._carry_out()
        if dispatcher.ended is None:
            self._load_next()
            self._carry_out()

    def _loop(self) -> None:
        env, dispatcher, limit = self.env, self._dispatcher, self._at_s
        queue, step, count = env._queue, env.step, 0
        while dispatcher.ended is None and queue and queue[0][0] <= limit:
            step()
            count += 1
            if count % _STRIDE == 0:
                self._log.flush()
                if self._progress is not None:
                    self._progress(env.now, dispatcher.ledger.count(TRAINED))

    def _carry_out(self) -> None:
        """Carry out the answers in order; what their effects cause at the same instant comes after them."""
        handlers, answers = self._handlers, self._answers
        while answers:
            for effect in answers.popleft():
                handler = handlers.get(type(effect))
                if handler is not None:
                    handler(effect)

    # Inputs: each is given to the dispatcher and recorded with its answer, which waits to be carried out -------------

    def _ask(self, target: int) -> None:
        answer = self._dispatcher.ask(target)
        self._record((self.env.now, "ask", (target,), answer))
        self._answers.append(answer)

    def _take(self, drafter: int) -> None:
        answer = self._dispatcher.take(drafter)
        self._record((self.env.now, "take", (drafter,), answer))
        self._answers.append(answer)

    def _load(self, batch: int) -> None:
        answer = self._dispatcher.load(batch)
        self._record((self.env.now, "load", (batch,), answer))
        self._answers.append(answer)

    def _lose(self, role: str, worker: int) -> None:
        name = f"{role}_lost"
        answer: list[Effect] = getattr(self._dispatcher, name)(worker)
        self._record((self.env.now, name, (worker,), answer))
        self._answers.append(answer)

    # The loader -----------------------------------------------------------------------------------------------------

    def _load_next(self) -> None:
        batch = self._next
        self._next += 1
        if batch == self._batches:
            answer = self._dispatcher.loader_done()
            self._record((self.env.now, "loader_done", (), answer))
            self._answers.append(answer)
        elif batch < self._batches:
            seconds = self._times.loader(batch)
            if seconds > 0:
                Timeout(self.env, seconds, batch).callbacks.append(self._load_done)
            else:
                self._load(batch)

    def _load_done(self, event: Event) -> None:
        self._load(event._value)
        self._carry_out()

    def _loaded(self, effect: Loaded) -> None:
        if self._dispatcher.ended is None:
            self._load_next()

    # Targets --------------------------------------------------------------------------------------------------------

    def _assign(self, effect: Assign) -> None:
        target, batch = effect.target, effect.batch
        if self._faults and self._fails("target", target, batch):
            return
        Timeout(self.env, self._times.target(target, batch), (target, batch)).callbacks.append(self._target_done)

    def _target_done(self, event: Event) -> None:
        target, batch = event._value
        answer = self._dispatcher.offer(target, batch)
        self._record((self.env.now, "offer", (target, batch), answer))
        self._answers.append(answer)
        self._carry_out()

    def _admitted(self, effect: Admit) -> None:
        if self._dispatcher.ended is None:
            self._ask(effect.target)

    # Drafters -------------------------------------------------------------------------------------------------------

    def _deliver(self, effect: Deliver) -> None:
        drafter = effect.drafter
        desk = self._desks[drafter]
        if self._faults and (self._is_stale(effect) or self._fails("drafter", drafter, effect.batch)):
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
        if self._placement == "taker":
            return 0.0
        if self._placement == "producer":
            reader = self._dispatcher.dispatch.lanes[effect.lane].reader
            placed_at = effect.source % self._drafters if reader is None else reader
            if placed_at == effect.drafter:
                return 0.0
        return self._times.transfer(effect.batch)

    def _copied(self, event: Event) -> None:
        effect: Deliver = event._value
        desk = self._desks[effect.drafter]
        desk.copying = False
        if desk.dead:
            return
        if desk.incoming and desk.incoming[0] is effect:
            desk.incoming.popleft()
            self._arrive(desk, effect)
        self._fetch(desk)
        self._carry_out()

    def _arrive(self, desk: Desk, effect: Deliver) -> None:
        drafter, batch = effect.drafter, effect.batch
        self._record((self.env.now, "received", (drafter, batch), self._dispatcher.received(drafter, batch)))
        desk.ready.append(effect)
        if not desk.busy:
            self._compute(desk, drafter)

    def _compute(self, desk: Desk, drafter: int) -> None:
        """Start the next micro-batch of the open step; what was taken ahead waits for its own."""
        step = self._dispatcher.windows[drafter].step
        for effect in desk.ready:
            if effect.step == step:
                desk.busy = True
                seconds = self._times.drafter(drafter, effect.batch)
                Timeout(self.env, seconds, effect).callbacks.append(self._drafter_done)
                return

    def _drafter_done(self, event: Event) -> None:
        effect: Deliver = event._value
        drafter, batch = effect.drafter, effect.batch
        desk = self._desks[drafter]
        if desk.dead:
            return
        desk.ready.remove(effect)
        desk.busy = False
        answer = self._dispatcher.computed(drafter, batch)
        self._record((self.env.now, "computed", (drafter, batch), answer))
        self._answers.append(answer)
        self._carry_out()
        if self._dispatcher.ended is None and not desk.dead:  # what the answer brought it may have crashed it
            self._take(drafter)
            self._carry_out()
            if not desk.busy:
                self._compute(desk, drafter)

    def _step(self, effect: Step) -> None:
        seconds = self._times.step(effect.step)
        if seconds > 0:
            Timeout(self.env, seconds, effect).callbacks.append(self._step_done)
        else:
            self._apply(effect)

    def _step_done(self, event: Event) -> None:
        self._apply(event._value)
        self._carry_out()

    def _apply(self, effect: Step) -> None:
        if self._dispatcher.ended is not None or all(self._desks[drafter].dead for drafter in effect.drafters):
            return
        step, batches = effect.step, effect.batches
        answer = self._dispatcher.commit(step, batches)
        self._record((self.env.now, "commit", (step, batches), answer))
        self._answers.append(answer)
        self._begin_next(effect)

    def _begin_next(self, effect: Step | Drop) -> None:
        """The next step is open: begin with what was taken ahead for it."""
        for drafter in effect.drafters:
            desk = self._desks[drafter]
            if desk.ready and not desk.busy and not desk.dead:
                self._compute(desk, drafter)

    def _recalled(self, effect: Recall) -> None:
        desk = self._desks[effect.drafter]
        desk.drop(effect.batch)
        if self._dispatcher.ended is None and not desk.dead:
            self._take(effect.drafter)

    # Faults ---------------------------------------------------------------------------------------------------------

    def _is_stale(self, effect: Deliver) -> bool:
        """Whether a loss of this very instant has undone the delivery, or the drafter does nothing any more."""
        return self._desks[effect.drafter].dead or not self._dispatcher.is_fetching(effect.drafter, effect.batch)

    def _fails(self, role: str, worker: int, batch: int) -> bool:
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
        if fault.kind == CRASH and self._dispatcher.ended is None:
            self._lose(role, worker)
        return True

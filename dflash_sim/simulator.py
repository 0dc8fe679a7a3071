"""The SimPy driver: it carries out the dispatcher's effects in simulated time.

It decides nothing: every batch goes through `policies.Dispatcher` on both hops. A service is one `Timeout` with one
callback, so that a batch costs two events; where workers slow each other down, `sharing` says when it ends. Events at
the same instant happen in the order they were scheduled.
"""

import gc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import simpy
from simpy.events import Event, Timeout

from dflash_sim.interference import COPY, STEP, Interference
from dflash_sim.service import ServiceTimes
from dflash_sim.sharing import Sharing
from policies.dispatcher import Dispatcher
from policies.effects import Assign, Deliver, Drop, Effect, Loaded, Recall, Step
from policies.ledger import TRAINED
from reports.observer import Log

CRASH: Final = "crash"
HANG: Final = "hang"
HANG_IN_STEP: Final = "hang_in_step"
_NEVER: Final = float("inf")
_STRIDE: Final = 256
"""Events between two flushes of the log: few, so that the garbage collector meets none that live on."""
_REPORT: Final = 4096
"""Events between two reports of progress."""


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """A worker fails on taking its `at_batch`-th batch (from 1), before it computes; or in that batch's step."""

    role: str
    worker: int
    at_batch: int
    kind: str


def copies(placement: str | None, effect: Deliver, reader: int | None, drafters: int) -> bool:
    """Whether this take copies the hidden states (`dispatch.placement`); `reader`: the lane's only reader, if any.

    Without a placement every take copies. Placed batches copy again only onto another drafter's device.
    """
    if placement is None:
        return True
    placed_at = effect.source % drafters if reader is None else reader
    return placement != "taker" and placed_at != effect.drafter


def charged(placement: str | None, staging: str | None) -> str | None:
    """The placement by which takes are charged: what is staged on its target's device and placed at the taker is copied
    by every take."""
    return None if (placement, staging) == ("taker", "device") else placement


class Desk:
    """What lies at one drafter."""

    __slots__ = ("busy", "copying", "dead", "incoming", "ready")

    def __init__(self) -> None:
        self.incoming: deque[Deliver] = deque()
        """Delivered and waiting for the copy before it."""
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
        placement: str | None = None,
        faults: Sequence[PlannedFault] = (),
        interference: Interference | None = None,
        at_s: float | None = None,
        progress: Callable[[float, float], None] | None = None,
        interrupted: Callable[[], bool] | None = None,
    ) -> None:
        self.env = simpy.Environment()
        self.failures: list[str] = []
        """Workers that failed, and on which batch, in words."""
        self._dispatcher = dispatcher
        self._target_seconds, self._drafter_seconds = times.target, times.drafter
        self._times = times
        self._transfers = times.transfers
        self._steps = times.steps
        self._log = log
        self._record = log.pending.append
        self._batches = batches
        self._placement = placement
        self._at_s = _NEVER if at_s is None else at_s
        self._progress = progress
        self._interrupted = interrupted
        self._now = 0.0
        self._next = 0
        self._targets = len(dispatcher.targets)
        self._drafters = len(dispatcher.dispatch.consumers)
        self._sharing = None if interference is None else Sharing(self.env, interference)
        """None where nobody slows anybody down: every service is then one `Timeout`."""
        self._desks = [Desk() for _ in range(self._drafters)]
        self._faults = {(fault.role, fault.worker): fault for fault in faults}
        self._stuck: set[int] = set()
        """Drafters that hang in the step that is applied next."""
        self._taken: dict[tuple[str, int], int] = dict.fromkeys(self._faults, 0)
        self._answers: deque[list[Effect]] = deque()
        """Answers to inputs of this instant that are still to be carried out."""

    def run(self) -> float:
        """Simulate to the end, to `at_s`, or until nothing is left to happen; returns the time then [s].

        The garbage collector rests meanwhile: a run makes no cycles, and looking for some costs a third of its time.
        """
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> float:
        self._start()
        self._loop()
        end = self._now
        if self._dispatcher.ended is None and self.env.peek() != _NEVER:
            end = self._at_s
            self._record((end, "stop", ("at_s",), self._dispatcher.stop("at_s")))
        self._log.flush()
        return end

    def _start(self) -> None:
        """All workers ask in the order of their numbers; then the loader begins."""
        dispatcher = self._dispatcher
        for target in list(dispatcher.targets):
            if dispatcher.ended is None:  # without data the first to ask is told that the run is over
                self._answer("target_ready", (target,), dispatcher.target_ready(target))
        for drafter in list(dispatcher.dispatch.consumers):
            if dispatcher.ended is None:
                self._answer("drafter_ready", (drafter,), dispatcher.drafter_ready(drafter))
        if dispatcher.ended is None:
            self._load_next()
        self._carry_out()

    def _loop(self) -> None:
        env, dispatcher, limit = self.env, self._dispatcher, self._at_s
        queue, step, count = env._queue, env.step, 0
        while dispatcher.ended is None and queue and queue[0][0] <= limit:
            self._now = queue[0][0]
            step()
            count += 1
            if count % _STRIDE == 0:
                self._log.flush()
            if count % _REPORT == 0:
                self._report()

    def _report(self) -> None:
        """Tell how far the run is, and hear whether it shall end."""
        if self._progress is not None:
            self._progress(self._now, self._dispatcher.ledger.count(TRAINED) / max(self._batches, 1))
        if self._interrupted is not None and self._interrupted():
            self._answer("stop", ("interrupted",), self._dispatcher.stop("interrupted"))

    def _carry_out(self) -> None:
        """Carry out the answers in order; what their effects cause at the same instant comes after them."""
        answers = self._answers
        while answers:
            for effect in answers.popleft():
                if isinstance(effect, Deliver):
                    self._deliver(effect)
                elif isinstance(effect, Assign):
                    self._assign(effect)
                elif isinstance(effect, Loaded):
                    self._loaded()
                elif isinstance(effect, Step):
                    self._step(effect)
                elif isinstance(effect, Recall):
                    self._desks[effect.drafter].drop(effect.batch)
                elif isinstance(effect, Drop):
                    self._begin_next(effect.drafters)

    def _answer(self, name: str, arguments: tuple[Any, ...], effects: list[Effect]) -> None:
        """Record an input with its answer, which waits to be carried out."""
        self._record((self._now, name, arguments, effects))
        if effects:
            self._answers.append(effects)

    # The loader -----------------------------------------------------------------------------------------------------

    def _load_next(self) -> None:
        batch = self._next
        if batch >= self._batches:
            self._answer("loader_done", (), self._dispatcher.loader_done())
            return
        seconds = self._times.loader(batch)
        if seconds > 0:
            Timeout(self.env, seconds).callbacks.append(self._load_done)
        else:
            self._load()

    def _load(self) -> None:
        """The next batch is ready, and those that take no time with it."""
        batch, loader = self._next, self._times.loader
        end = batch + 1
        while end < self._batches and loader(end) <= 0:
            end += 1
        self._next = end
        self._answer("load", (batch, end - batch), self._dispatcher.load(batch, end - batch))

    def _load_done(self, event: Event) -> None:
        self._load()
        self._carry_out()

    def _loaded(self) -> None:
        if self._dispatcher.ended is None:
            self._load_next()

    # Targets --------------------------------------------------------------------------------------------------------

    def _assign(self, effect: Assign) -> None:
        target, batch = effect.target, effect.batch
        if self._faults and self._fails("target", target, batch):
            return
        seconds = self._target_seconds(target, batch)
        if self._sharing is not None:
            self._sharing.begin((target,), seconds, (target, batch), self._target_done)
            return
        Timeout(self.env, seconds, (target, batch)).callbacks.append(self._target_done)

    def _target_done(self, event: Event) -> None:
        target, batch = event._value
        self._answer("offer", (target, batch), self._dispatcher.offer(target, batch))
        self._carry_out()

    # Drafters -------------------------------------------------------------------------------------------------------

    def _deliver(self, effect: Deliver) -> None:
        drafter = effect.drafter
        desk = self._desks[drafter]
        if self._faults and (self._is_stale(effect) or self._fails("drafter", drafter, effect.batch)):
            return
        if desk.copying:
            desk.incoming.append(effect)
        else:
            self._fetch(desk, effect)

    def _fetch(self, desk: Desk, effect: Deliver) -> None:
        """Copy a batch to the desk; what needs no copy arrives at once."""
        seconds = self._copy_seconds(effect) if self._transfers else 0.0
        if seconds > 0:
            desk.copying = True
            if self._sharing is not None:
                self._sharing.begin((self._targets + effect.drafter,), seconds, effect, self._copied, COPY)
            else:
                Timeout(self.env, seconds, effect).callbacks.append(self._copied)
        else:
            self._arrive(desk, effect)

    def _copy_seconds(self, effect: Deliver) -> float:
        reader = self._dispatcher.dispatch.lanes[effect.lane].reader
        if copies(self._placement, effect, reader, self._drafters):
            return self._times.transfer(effect.batch)
        return 0.0

    def _copied(self, event: Event) -> None:
        effect: Deliver = event._value
        desk = self._desks[effect.drafter]
        desk.copying = False
        if desk.dead:
            return
        if self._dispatcher.is_fetching(effect.drafter, effect.batch):
            self._arrive(desk, effect)
        while desk.incoming and not desk.copying:
            self._fetch(desk, desk.incoming.popleft())
        self._carry_out()

    def _arrive(self, desk: Desk, effect: Deliver) -> None:
        drafter, batch = effect.drafter, effect.batch
        self._record((self._now, "received", (drafter, batch), self._dispatcher.received(drafter, batch)))
        desk.ready.append(effect)
        if not desk.busy:
            self._compute(desk, drafter)

    def _compute(self, desk: Desk, drafter: int) -> None:
        """Start the next micro-batch of the open step; what was taken ahead waits for its own."""
        step = self._dispatcher.windows[drafter].step
        for effect in desk.ready:
            if effect.step == step:
                desk.busy = True
                seconds = self._drafter_seconds(drafter, effect.batch)
                if self._sharing is not None:
                    self._sharing.begin((self._targets + drafter,), seconds, effect, self._drafter_done)
                else:
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
        self._answer("computed", (drafter, batch), self._dispatcher.computed(drafter, batch))
        self._carry_out()
        if not desk.busy and not desk.dead and self._dispatcher.ended is None:  # the answer may have crashed it
            self._compute(desk, drafter)

    def _step(self, effect: Step) -> None:
        seconds = self._times.step(effect.step) if self._steps else 0.0
        if seconds > 0 and self._sharing is not None:
            workers = tuple(self._targets + drafter for drafter in effect.drafters)
            self._sharing.begin(workers, seconds, effect, self._step_done, STEP)
        elif seconds > 0:
            Timeout(self.env, seconds, effect).callbacks.append(self._step_done)
        else:
            self._apply(effect)

    def _step_done(self, event: Event) -> None:
        self._apply(event._value)
        self._carry_out()

    def _apply(self, effect: Step) -> None:
        if self._dispatcher.ended is not None or all(self._desks[drafter].dead for drafter in effect.drafters):
            return
        if not self._stuck.isdisjoint(effect.drafters):
            return  # one of them never joins in: the step is never applied
        step, batches = effect.step, effect.batches
        self._answer("commit", (step, batches), self._dispatcher.commit(step, batches))
        self._begin_next(effect.drafters)

    def _begin_next(self, drafters: Sequence[int]) -> None:
        """The next step is open: begin with what was taken ahead for it."""
        for drafter in drafters:
            desk = self._desks[drafter]
            if desk.ready and not desk.busy and not desk.dead:
                self._compute(desk, drafter)

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
        if fault.kind == HANG_IN_STEP:
            self.failures.append(f"{role}/{worker}: hang in the step of batch {batch} ({fault.at_batch} of its own)")
            self._stuck.add(worker)
            return False
        self.failures.append(f"{role}/{worker}: {fault.kind} on taking batch {batch} ({fault.at_batch} of its own)")
        if role == "drafter":
            self._desks[worker].dead = True
            if self._sharing is not None:
                self._sharing.drop(self._targets + worker)
            if fault.kind == HANG and not self._transfers:  # it hangs computing: there was nothing to copy
                self._answer("received", (worker, batch), self._dispatcher.received(worker, batch))
        if fault.kind == CRASH and self._dispatcher.ended is None:
            name = f"{role}_lost"
            self._answer(name, (worker,), getattr(self._dispatcher, name)(worker))
        return True

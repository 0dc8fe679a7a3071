"""The launcher: one loop that turns what workers say into the dispatcher's inputs, and its effects into messages.

It is the only caller of the dispatcher, so decisions need no lock. It knows nothing of how workers are run (`crew`) and
never touches a payload. Times are model seconds: wall seconds times the speed-up.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dflash_run.crew import Crew, Worker
from dflash_run.messages import (
    Alive,
    Applied,
    Apply,
    Compute,
    Computed,
    Forget,
    FromWorker,
    Gone,
    Open,
    Ready,
    Received,
    Train,
)
from dflash_sim.service import ServiceTimes
from dflash_sim.simulator import copies
from policies.dispatcher import NOTHING, Dispatcher
from policies.effects import Assign, Deliver, Drop, Effect, Loaded, Recall, Recompute, Release, Step
from policies.ledger import RECEIVED
from reports.observer import Log

_TICK_S: Final = 0.1
"""Longest wait for a message: how soon a signal or the watchdog is heard."""
_START_S: Final = 60.0
"""How long workers may take to start."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a run ends before its data do."""

    at_s: float | None = None
    """Model seconds."""
    watchdog_s: float = 600.0
    """Wall seconds after which a worker that should compute, and is silent, is given up."""


class Launcher:
    """One rehearsal. Call `run` once."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        times: ServiceTimes,
        log: Log,
        batches: int,
        crew: Crew,
        drop: Callable[[int], None],
        speedup: float = 1.0,
        placement: str | None = None,
        limits: Limits | None = None,
        watch: Callable[[float], None] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.failures: list[str] = []
        """Workers that failed, why, and what they were at."""
        self._dispatcher = dispatcher
        self._times = times
        self._log = log
        self._batches = batches
        self._crew = crew
        self._drop = drop
        self._speedup = speedup
        self._placement = placement
        self._limits = limits or Limits()
        self._watch = watch
        self._drafters = len(dispatcher.dispatch.consumers)
        self._start = 0.0
        self._now = 0.0
        self._next = 0
        self._load_at: float | None = None
        """Model time at which the loader has its next batch."""
        self._applying: dict[int, Sequence[int]] = {}
        """The batches of each step that is being applied."""
        self._heard: dict[Worker, float] = {}
        """When each live worker said something last, by the wall."""
        self._lost_early: dict[Worker, str] = {}
        """Workers that were gone before they said that they had started."""
        self._interrupted = interrupted

    def run(self) -> float:
        """Run to the end; returns the time then."""
        self._assemble()
        self._start = time.monotonic()
        self._begin()
        while self._dispatcher.ended is None:
            self._turn()
        self._log.flush()
        return self._now

    # The loop -------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        said = self._crew.receive(self._patience())
        self._now = self._clock()
        for worker, message in said:
            if self._dispatcher.ended is not None:
                return
            if worker in self._heard:
                self._heard[worker] = time.monotonic()
                self._hear(worker, message)
        if self._dispatcher.ended is None:
            self._look_after()
        self._log.flush()
        if self._watch is not None:
            self._watch(self._now)

    def _look_after(self) -> None:
        """What happens without a message: the loader, the limits, the watchdog."""
        if self._load_at is not None and self._load_at <= self._now:
            self._load()
        at_s = self._limits.at_s
        if self._dispatcher.ended is None and self._interrupted():
            self._tell("stop", "interrupted")
        elif self._dispatcher.ended is None and at_s is not None and self._now > at_s:
            self._now = at_s
            self._tell("stop", "at_s")
        else:
            self._check_silence()

    def _patience(self) -> float:
        waits = [_TICK_S]
        for due in (self._load_at, self._limits.at_s):
            if due is not None:
                waits.append((due - self._clock()) / self._speedup)
        return max(min(waits), 0.0)

    def _clock(self) -> float:
        return max((time.monotonic() - self._start) * self._speedup, self._now)

    def _assemble(self) -> None:
        """Wait until every worker has started: that is t = 0."""
        dispatcher = self._dispatcher
        missing = {("target", t) for t in dispatcher.targets} | {("drafter", d) for d in dispatcher.dispatch.consumers}
        until = time.monotonic() + _START_S
        while missing and time.monotonic() < until and not self._interrupted():
            for worker, message in self._crew.receive(_TICK_S):
                missing.discard(worker)
                if isinstance(message, Gone):
                    self._lost_early[worker] = message.why
                self._heard[worker] = time.monotonic()
        for worker in missing:
            self._lost_early[worker] = f"did not start within {_START_S:.0f} s"
            self._heard[worker] = time.monotonic()

    def _begin(self) -> None:
        dispatcher = self._dispatcher
        for worker, why in sorted(self._lost_early.items()):
            self._lose(worker, why)
        for target in list(dispatcher.targets):
            self._tell("target_ready", target)
        for drafter in list(dispatcher.dispatch.consumers):
            self._crew.post(("drafter", drafter), Open(dispatcher.windows[drafter].step))
            self._tell("drafter_ready", drafter)
        if dispatcher.ended is None:
            self._load_next()

    # What workers say -----------------------------------------------------------------------------------------------

    def _hear(self, worker: Worker, message: FromWorker) -> None:
        role, number = worker
        match message:
            case Computed(batch=batch) if role == "target":
                self._tell("offer", number, batch)
            case Computed(batch=batch) if self._is_training(number, batch):
                self._tell("computed", number, batch)
            case Received(batch=batch) if self._dispatcher.is_fetching(number, batch):
                self._tell("received", number, batch)
            case Applied(step=step) if step in self._applying:
                self._commit(step)
            case Gone(why=why):
                self._lose(worker, why)
            case Computed() | Received() | Applied() | Alive() | Ready():
                pass  # said before it heard of a loss, or after another drafter had said the same

    def _is_training(self, drafter: int, batch: int) -> bool:
        dispatcher = self._dispatcher
        return dispatcher.ledger.place(batch) == RECEIVED and batch in dispatcher.windows[drafter].holding(drafter)

    def _commit(self, step: int) -> None:
        self._tell("commit", step, tuple(self._applying.pop(step)))

    def _lose(self, worker: Worker, why: str, reason: str | None = None) -> None:
        """A worker is gone. `reason` ends the run if it was the last of its role."""
        del self._heard[worker]
        role, number = worker
        self.failures.append(f"{role}/{number}: {why}{self._at_hand(worker)}")
        if self._dispatcher.ended is not None:
            return
        live = self._dispatcher.targets if role == "target" else self._dispatcher.dispatch.consumers
        if reason is not None and list(live) == [number]:
            self._tell("stop", reason)
        else:
            self._tell(f"{role}_lost", number)

    def _at_hand(self, worker: Worker) -> str:
        role, number = worker
        if role == "target":
            batch = self._dispatcher.computing[number]
            return "" if batch == NOTHING else f", at batch {batch}"
        hand = self._dispatcher.windows[number].holding(number)
        return f", at batch {hand[0]}" if hand else ""

    def _check_silence(self) -> None:
        """A worker that computes says so; one that is silent for too long hangs."""
        limit = time.monotonic() - self._limits.watchdog_s
        for worker, heard in list(self._heard.items()):
            if heard < limit and self._at_hand(worker) and self._dispatcher.ended is None:
                self._crew.abandon(worker)
                self._lose(worker, f"silent for {self._limits.watchdog_s:g} s", "watchdog")

    # What the dispatcher answers ------------------------------------------------------------------------------------

    def _tell(self, name: str, *arguments: Any) -> None:
        """Give the dispatcher an input, record it with its answer, and carry the answer out."""
        if self._dispatcher.ended is not None:
            return
        answer: list[Effect] = getattr(self._dispatcher, name)(*arguments)
        self._log.pending.append((self._now, name, arguments, answer))
        for effect in answer:
            self._carry_out(effect)
        if name in ("commit", "abandon"):
            self._open_next(arguments[0])

    def _carry_out(self, effect: Effect) -> None:
        post, wall = self._crew.post, 1 / self._speedup
        match effect:
            case Assign(target=target, batch=batch):
                self._heard_of(("target", target))
                post(("target", target), Compute(batch, self._times.target(target, batch) * wall))
            case Deliver(drafter=drafter, batch=batch, step=step):
                self._heard_of(("drafter", drafter))
                copy_s, seconds = self._copy_seconds(effect), self._times.drafter(drafter, batch)
                post(("drafter", drafter), Train(batch, step, copy_s * wall, seconds * wall))
            case Release(target=target, batch=batch):
                post(("target", target), Forget(batch))
            case Recall(drafter=drafter, batch=batch):
                post(("drafter", drafter), Forget(batch))
            case Recompute(batch=batch):
                self._drop(batch)
            case Step(step=step, drafters=drafters, batches=batches):
                self._applying[step] = batches
                seconds = self._times.step(step) * wall
                for drafter in drafters:
                    post(("drafter", drafter), Apply(step, seconds))
            case Drop(step=step):
                self._applying.pop(step, None)
                self._open_next(step)
            case Loaded():
                self._load_next()

    def _heard_of(self, worker: Worker) -> None:
        """It has work from now on: its silence counts from here."""
        if worker in self._heard:
            self._heard[worker] = time.monotonic()

    def _open_next(self, step: int) -> None:
        window = self._dispatcher.windows[step % len(self._dispatcher.windows)]
        for drafter in window.members:
            self._crew.post(("drafter", drafter), Open(window.step))

    def _copy_seconds(self, effect: Deliver) -> float:
        reader = self._dispatcher.dispatch.lanes[effect.lane].reader
        copied = copies(self._placement, effect, reader, self._drafters)
        return self._times.transfer(effect.batch) if copied else 0.0

    # The loader -----------------------------------------------------------------------------------------------------

    def _load_next(self) -> None:
        self._load_at = None
        if self._next >= self._batches:
            self._tell("loader_done")
            return
        seconds = self._times.loader(self._next)
        if seconds > 0:
            self._load_at = self._now + seconds
        else:
            self._load()

    def _load(self) -> None:
        """The next batch is ready, and those that take no time with it."""
        self._load_at = None
        batch, loader = self._next, self._times.loader
        end = batch + 1
        while end < self._batches and loader(end) <= 0:
            end += 1
        self._next = end
        self._tell("load", batch, end - batch)

"""The launcher: one loop that turns what workers say into the dispatcher's inputs, and its effects into messages.

It is the only caller of the dispatcher, so decisions need no lock. It knows neither how workers are run (`crew`) nor
what they are told (`briefing`), and never touches a payload. Times are model seconds: wall seconds times the speed-up.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dflash_run.attendance import TICK_S, Attendance
from dflash_run.briefing import Briefing
from dflash_run.ceremony import assemble, close
from dflash_run.crew import Crew, Worker
from dflash_run.limits import Limits
from dflash_run.messages import (
    Applied,
    Apply,
    Broken,
    Computed,
    Fenced,
    Forget,
    Gone,
    Grouped,
    Open,
    Quiet,
    Received,
    Refused,
)
from dflash_run.recovery import Lost, Outcome, Recovery, Regrouped
from dflash_run.refusals import BreakOff, GiveUp, Refusals
from policies.dispatcher import NOTHING, Dispatcher
from policies.effects import Assign, Deliver, Drop, Effect, Loaded, Recall, Recompute, Release, Step
from policies.errors import PolicyError
from policies.ledger import RECEIVED
from reports.observer import Log

_BREAKS: Final = 5
"""How often the drafters' group may break without a step between."""


@dataclass
class _Applying:
    """A step on its way."""

    batches: tuple[int, ...]
    waiting: set[int]
    """Drafters that have not applied it."""
    applied: bool = False
    """Whether somebody has."""


class Launcher:
    """One run. Call `run` once."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        briefing: Briefing,
        log: Log,
        batches: int,
        crew: Crew,
        stores: Path,
        speedup: float = 1.0,
        limits: Limits | None = None,
        watch: Callable[[float], None] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.failures: list[str] = []
        """Workers that failed, why, and what they were at."""
        self.broken = ""
        """What ended the run although nobody asked for it; empty: nothing."""
        self.deciding_s = 0.0
        """Wall seconds spent inside the dispatcher."""
        self._dispatcher = dispatcher
        self._briefing = briefing
        self._log = log
        self._batches = batches
        self._speedup = speedup
        self._limits = limits or Limits()
        self._watch = watch
        self._interrupted = interrupted
        self._grouped = len(dispatcher.windows[0].members) > 1
        """Whether drafters apply steps together."""
        self._recovery = Recovery(self._ask_drafter, stores)
        self._held: list[tuple[Worker, object]] = []
        """Messages to drafters that wait for their group to be whole again, in the order they were decided."""
        self._concluding = False
        """Whether the dispatcher is being told what became of a broken group."""
        self._late: list[int] = []
        """Lost targets of which the dispatcher hears when no step is being applied."""
        self._start = 0.0
        self._now = 0.0
        self._next = 0
        self._load_at: float | None = None
        """Model time at which the loader has its next batch."""
        self._applying: dict[int, _Applying] = {}
        self._breaks = 0
        """How often the group broke since the last commit."""
        self._refusals = Refusals()
        self._sources: dict[int, int] = {}
        """The target of each batch that was delivered and is not committed."""
        self._stopping: tuple[str, float] | None = None
        """Why the run is to be stopped, and until when a step being applied may take, by the wall."""
        self._workers: list[Worker] = [("target", t) for t in dispatcher.targets]
        self._workers += [("drafter", d) for d in dispatcher.dispatch.consumers]
        self._unformed: Broken | None = None
        """What a drafter said of a group that did not form before the start."""
        self._people = Attendance(crew, self._workers, self._overhear)

    def now(self) -> float:
        """Model seconds since the start; 0 before it."""
        return self._now

    def cost(self) -> dict[str, float]:
        """What deciding cost: wall seconds inside the dispatcher, and their share of the run."""
        wall = self._now / self._speedup
        return {"deciding_s": self.deciding_s, "deciding_share": self.deciding_s / wall if wall > 0 else 0.0}

    def run(self) -> float:
        """Run to the end; returns the time then."""
        group = self._recovery.first_group if self._grouped else None
        assemble(self._people, self._briefing, self._limits, self._workers, group, self._interrupted)
        self._start = time.monotonic()
        try:
            self._begin()
            while self._dispatcher.ended is None:
                self._turn()
            self._log.flush()
        except Exception:  # a fault of ours must not cost what was learnt
            with contextlib.suppress(Exception):
                self._close()
            raise
        self._close()
        return self._now

    # The loop -------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        said = self._people.receive(self._patience())
        self._end_in_time()
        if self._dispatcher.ended is None:
            self._now = self._clock()
        for worker, message in said:
            if self._dispatcher.ended is not None:
                break
            if worker in self._people.present:
                self._people.note(worker, message)
                self._hear(worker, message)
        if self._dispatcher.ended is None:
            self._look_after()
        if not said and self._stands_still():
            self._tell("stop", "deadlock")
        self._log.flush()
        if self._watch is not None:
            self._watch(self._now)

    def _end_in_time(self) -> None:
        """Before anything that is heard later than `stop.at_s`: what is logged must not go back in time."""
        at_s = self._limits.at_s
        if self._stopping is None and at_s is not None and self._clock() > at_s:
            self._now = at_s
            self._stop("at_s")

    def _look_after(self) -> None:
        """What happens without a message: the loader, the limits, the watchdog."""
        if self._load_at is not None and self._load_at <= self._now:
            self._load()
        if self._stopping is None and self._interrupted():
            self._stop("interrupted")
        self._check_silence()
        if self._stopping is not None:
            self._stop(self._stopping[0])

    def _stands_still(self) -> bool:
        """Whether nobody has anything to do and nothing is awaited: then nothing will ever happen again."""
        if self._dispatcher.ended is not None or self._load_at is not None or self._recovery.regrouping or self._late:
            return False
        return not any(self._has_work(worker) for worker in self._people.present)

    def _stop(self, reason: str) -> None:
        """End the run; where a checkpoint follows, the step that is being applied is waited for."""
        if self._stopping is None:
            self._stopping = (reason, time.monotonic() + self._limits.close_s)
        if not self._applying or time.monotonic() >= self._stopping[1]:
            self._tell("stop", reason)

    def _patience(self) -> float:
        waits = [TICK_S]
        for due in (self._load_at, self._limits.at_s):
            if due is not None:
                waits.append((due - self._clock()) / self._speedup)
        return max(min(waits), 0.0) if self._stopping is None else 0.01

    def _clock(self) -> float:
        return max((time.monotonic() - self._start) * self._speedup, self._now)

    def _begin(self) -> None:
        dispatcher = self._dispatcher
        for worker, why in sorted(self._people.gone.items()):
            self._lose(worker, why)
        if self._unformed is not None and self._unformed.epoch == self._recovery.epoch and dispatcher.ended is None:
            self._mend(self._unformed.why)
        for target in list(dispatcher.targets):
            self._tell("target_ready", target)
        for drafter in list(dispatcher.dispatch.consumers):
            self._post(drafter, Open(dispatcher.windows[drafter].step))
            self._tell("drafter_ready", drafter)
        if dispatcher.ended is None:
            self._load_next()

    def _close(self) -> None:
        for worker, why in close(self._people, self._briefing, self._limits, settled=not self._applying):
            self.failures.append(f"{named(worker)}: {why}, at the end")

    # What workers say -----------------------------------------------------------------------------------------------

    def _overhear(self, worker: Worker, message: object) -> None:
        """What is said while all are waited for, before the start and after the end."""
        self._briefing.heard(worker, message)
        if isinstance(message, Broken):
            self._unformed = message

    def _hear(self, worker: Worker, message: object) -> None:
        self._briefing.heard(worker, message)
        role, number = worker
        match message:
            case Computed(batch=batch) if role == "target":
                if self._dispatcher.computing[number] == batch:
                    self._tell("offer", number, batch)
            case Computed(batch=batch) if self._is_training(number, batch):
                self._tell("computed", number, batch)
            case Received(batch=batch) if self._dispatcher.is_fetching(number, batch):
                self._tell("received", number, batch)
            case Refused(batch=batch, why=why) if self._dispatcher.is_fetching(number, batch):
                self._refuse(number, batch, why)
            case Applied(step=step) if step in self._applying:
                self._applied(number, step)
            case Fenced(target=target):
                self._conclude(self._recovery.fenced(number, target))
            case Quiet(epoch=epoch, applied=applied):
                self._recovery.quiet(number, epoch, applied)
            case Grouped(epoch=epoch):
                self._conclude(self._recovery.grouped(number, epoch))
            case Broken(epoch=epoch, why=why) if epoch == self._recovery.epoch:
                self._mend(why)
            case Gone(why=why):
                self._lose(worker, why)

    def _is_training(self, drafter: int, batch: int) -> bool:
        dispatcher = self._dispatcher
        return dispatcher.ledger.place(batch) == RECEIVED and batch in dispatcher.windows[drafter].holding(drafter)

    def _applied(self, drafter: int, step: int) -> None:
        """A step is committed when all that live have applied it: else its weights could still be lost."""
        told = self._applying[step]
        told.applied = True
        told.waiting.discard(drafter)
        self._commit_if_applied(step)

    def _commit_if_applied(self, step: int) -> None:
        told = self._applying[step]
        if told.applied and not told.waiting:
            self._commit(step)

    def _commit(self, step: int) -> None:
        batches = self._applying.pop(step).batches
        self._breaks = 0
        self._tell("commit", step, batches)
        for batch in batches:
            del self._sources[batch]
        for worker, message in self._briefing.committed(step, batches, tuple(self._people.drafters())):
            self._post(worker[1], message)
        self._tell_late()

    def _refuse(self, drafter: int, batch: int, why: str) -> None:
        """What arrived was spoilt: it is computed again, but not for ever."""
        source = self._sources[batch]
        self._tell("refused", drafter, batch)
        if self.broken or ("target", source) not in self._people.present:
            return  # the run ends anyhow; or the target's death is why
        verdict = self._refusals.note(batch, source, drafter, self._spare())
        times = f"refused {self._refusals.count(batch)} times, the last time of target/{source} by drafter/{drafter}"
        match verdict:
            case GiveUp(worker=worker):
                self._people.abandon(worker)
                self._lose(worker, f"batch {batch} was {times}: {why}")
            case BreakOff():
                self._end_broken(f"batch {batch} was {times}: {why}")

    def _spare(self) -> set[str]:
        """The roles of which one can be given up: of drafters, where the others hold what it has learnt."""
        roles = [role for role, _ in self._people.present]
        return {role for role in set(roles) if roles.count(role) > 1 and (role == "target" or self._grouped)}

    def _mend(self, why: str) -> None:
        """A collective failed, perhaps because of a death that is not heard yet. It is formed anew, not for ever."""
        self._breaks += 1
        if self._breaks > _BREAKS:
            self.failures.append(f"the drafters' group broke {self._breaks} times without a step between: {why}")
            self._tell_unsaid()
            self._tell("stop", "worker_lost")
        else:
            self._conclude(self._recovery.regroup((), self._people.drafters()))

    # Losses ---------------------------------------------------------------------------------------------------------

    def _lose(self, worker: Worker, why: str, reason: str | None = None) -> None:
        """A worker is gone. `reason` ends the run if it was the last of its role."""
        self._people.strike(worker)
        role, number = worker
        self.failures.append(f"{named(worker)}: {why}{self._at_hand(worker)}")
        if self._dispatcher.ended is not None:
            return
        if reason is not None and self._people.alone(role):
            self._tell_unsaid()
            self._tell("stop", reason)
        elif role == "target":
            self._conclude(self._recovery.target_lost(number, self._people.drafters()))
        else:
            self._lose_drafter(number)

    def _lose_drafter(self, drafter: int) -> None:
        for step, told in list(self._applying.items()):
            told.waiting.discard(drafter)
            if told.applied:
                self._commit_if_applied(step)
        if self._dispatcher.ended is not None:
            return
        if self._grouped and self._people.drafters():
            self._conclude(self._recovery.regroup((drafter,), self._people.drafters()))
            return
        self._applying = {step: told for step, told in self._applying.items() if told.waiting}
        for lost in (*self._recovery.disband(), drafter):
            self._tell("drafter_lost", lost)
        self._conclude(self._recovery.drafter_gone(drafter))

    def _conclude(self, outcomes: list[Outcome]) -> None:
        """What was asked of the survivors is answered."""
        for outcome in outcomes:
            match outcome:
                case Lost(target=target):
                    self._late.append(target)
                case Regrouped(gone=gone, applied=applied):
                    self._regrouped(gone, applied)
        self._tell_late()

    def _regrouped(self, gone: tuple[int, ...], applied: int) -> None:
        """The dispatcher hears of all of it first: what it answers comes after what is held, and may call some off."""
        self._concluding = True
        under_way = list(self._applying)
        for drafter in gone:
            under_way = list(self._applying)  # its loss may complete a step: that one begins without it
            self._tell("drafter_lost", drafter)
        for step in under_way:
            if step <= applied:
                self._commit(step)
            else:
                del self._applying[step]
                self._tell("abandon", step)
        self._concluding = False
        self._send_held()

    def _send_held(self) -> None:
        held, self._held = self._held, []
        for worker, message in held:
            # Who applied an abandoned step now would move its weights by what it has summed for the next one.
            called_off = isinstance(message, Apply) and message.step not in self._applying
            if worker in self._people.present and not called_off:
                self._people.send(worker, message)

    def _tell_late(self) -> None:
        """A lost target may end the run: not before the step that is being applied is committed."""
        while self._late and not self._applying:
            self._tell("target_lost", self._late.pop(0))

    def _tell_unsaid(self) -> None:
        """The run ends before the survivors have answered: what is lost is lost all the same."""
        targets, drafters = self._recovery.unsaid()
        for target in (*self._late, *targets):
            self._tell("target_lost", target)
        for drafter in drafters:
            self._tell("drafter_lost", drafter)

    def _at_hand(self, worker: Worker) -> str:
        role, number = worker
        if role == "target":
            batch = self._dispatcher.computing[number]
            return "" if batch == NOTHING else f", at batch {batch}"
        hand = self._dispatcher.windows[number].holding(number)
        return f", at batch {hand[0]}" if hand else ""

    def _has_work(self, worker: Worker) -> bool:
        """Whether it should say something: not while it waits for others with what it took ahead."""
        role, number = worker
        if role == "target":
            return self._dispatcher.computing[number] != NOTHING
        if self._recovery.awaits(number) or any(number in told.waiting for told in self._applying.values()):
            return True
        part = self._dispatcher.windows[number].parts[number]
        fetching = any(self._dispatcher.is_fetching(number, batch) for batch in part.ahead)
        return self._people.owes(worker) or bool(part.taken) or fetching

    def _check_silence(self) -> None:
        """A worker that computes says so; one that is silent for too long hangs."""
        silent = self._people.silent(self._limits.watchdog_s)
        for worker in silent:
            still = worker in self._people.silent(self._limits.watchdog_s)  # a loss asks the others something anew
            if still and self._dispatcher.ended is None and self._has_work(worker):
                self._people.abandon(worker)
                self._lose(worker, f"silent for {self._limits.watchdog_s:g} s", "watchdog")

    # What the dispatcher answers ------------------------------------------------------------------------------------

    def _tell(self, name: str, *arguments: Any) -> None:
        """Give the dispatcher an input, record it with its answer, and carry the answer out."""
        if self._dispatcher.ended is not None:
            return
        if self.broken and name not in ("commit", "stop"):
            return
        began = time.perf_counter()
        try:
            answer: list[Effect] = getattr(self._dispatcher, name)(*arguments)
        except PolicyError as error:
            if not self._break_off(error):
                raise
            if name != "commit":
                return
            answer = []  # the step is committed: the policy was asked for what comes after it
        self.deciding_s += time.perf_counter() - began
        self._log.pending.append((self._now, name, arguments, answer))
        for effect in answer:
            self._carry_out(effect)
        if name == "commit" and not self.broken:  # a step that is abandoned is dropped, which opens the next one
            self._open_next(arguments[0])

    def _break_off(self, error: PolicyError) -> bool:
        """A policy failed: whether the run ends as at an interrupt, because a checkpoint follows."""
        if not self._limits.close_s:
            return False
        self._end_broken(f"dispatch.policy: {error}")
        return True

    def _end_broken(self, why: str) -> None:
        """End the run as at an interrupt."""
        if not self.broken:
            self.broken = why
            self.failures.append(why)
        if self._stopping is None:
            self._stopping = ("interrupted", time.monotonic() + self._limits.close_s)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Assign(target=target, batch=batch):
                self._people.busy(("target", target))
                self._people.send(("target", target), self._briefing.assign(target, batch))
            case Deliver(drafter=drafter, batch=batch, source=source):
                self._people.busy(("drafter", drafter))
                self._sources[batch] = source
                self._post(drafter, self._briefing.deliver(effect))
            case Release(target=target, batch=batch):
                message = self._briefing.forget(batch)
                if message is not None:
                    self._people.send(("target", target), message)
            case Recall(drafter=drafter, batch=batch):
                self._post(drafter, Forget(batch))
            case Recompute(batch=batch):
                self._briefing.gone(batch)
            case Step():
                self._apply(effect)
            case Drop(step=step):
                self._applying.pop(step, None)
                self._open_next(step)
            case Loaded():
                self._load_next()

    def _apply(self, effect: Step) -> None:
        if self._stopping is not None:
            return  # the run ends before it
        self._applying[effect.step] = _Applying(effect.batches, set(effect.drafters))
        message = self._briefing.apply(effect)
        for drafter in effect.drafters:
            self._people.busy(("drafter", drafter))
            self._post(drafter, message)

    def _post(self, drafter: int, message: object) -> None:
        """To a drafter; while its group is rebuilt it hears of nothing else."""
        if self._recovery.regrouping or self._concluding:
            self._held.append((("drafter", drafter), message))
        else:
            self._people.send(("drafter", drafter), message)

    def _ask_drafter(self, drafter: int, message: object) -> None:
        """Send what the recovery asks; nothing holds it up."""
        self._people.busy(("drafter", drafter))
        self._people.send(("drafter", drafter), message)

    def _open_next(self, step: int) -> None:
        window = self._dispatcher.windows[step % len(self._dispatcher.windows)]
        for drafter in window.members:
            self._post(drafter, Open(window.step))

    # The loader -----------------------------------------------------------------------------------------------------

    def _load_next(self) -> None:
        self._load_at = None
        if self._next >= self._batches:
            self._tell("loader_done")
            return
        seconds = self._briefing.loader(self._next)
        if seconds > 0:
            self._load_at = self._now + seconds
        else:
            self._load()

    def _load(self) -> None:
        """The next batch is ready, and those that take no time with it."""
        self._load_at = None
        batch, loader = self._next, self._briefing.loader
        end = batch + 1
        while end < self._batches and loader(end) <= 0:
            end += 1
        self._next = end
        self._tell("load", batch, end - batch)


def named(worker: Worker) -> str:
    """`target/0` and so on."""
    return f"{worker[0]}/{worker[1]}"

"""What the workers of a training are told for each effect, and what becomes of what they report."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

from dflash_run.briefing import Posts
from dflash_run.crew import Worker
from dflash_run.data.planning import TrainingPlan
from dflash_run.messages import Applied, Apply, Computed, Ready
from dflash_run.training.heldout import HeldOutFiles
from dflash_run.training.messages import ComputeStates, Evaluate, Evaluated, HeldOut, Probe, Saved, TrainOn
from dflash_run.training.progress import Progress
from dflash_run.training.saving import Saving
from dflash_run.training.scalars import Scalars
from dflash_run.training.steplog import StepLog
from dflash_run.transport.parcel import HOST, Parcel
from dflash_run.transport.slots import SlotTable
from policies.effects import Deliver, Step


@dataclass(kw_only=True)
class TrainingBriefing:
    """For the launcher (`dflash_run.briefing.Briefing`)."""

    plan: TrainingPlan
    progress: Progress
    slots: SlotTable
    on_host: bool
    """Whether hidden states wait in host memory."""
    scalars: Scalars
    saving: Saving | None
    """None where weights are not kept (`sync: none`)."""
    held_out: HeldOutFiles
    save_every: int
    evaluate_every: int
    log_every: int
    groups: int = 1
    """Of drafters that step together: one, or under `none` as many as there are drafters."""
    clock: Callable[[], float] = field(default=lambda: 0.0)
    """Seconds since the start of the run; the launcher's, once there is one."""

    def __post_init__(self) -> None:
        self._probes: dict[int, Parcel] = {}
        self._probed: set[tuple[int, int]] = set()
        """(drafter, target) of each way that is tried."""
        self._figures: dict[int, dict[str, float]] = {}
        """Held-out figures by step; none where the evaluation failed."""
        self._failures: list[str] = []
        before = self.progress.steps_before
        self.steps = StepLog(self.scalars, groups=self.groups, every=self.log_every, before=before)
        self._tried: set[int] = set()
        """Drafters that were asked for the last checkpoint."""
        self._over = False

    @property
    def failures(self) -> list[str]:
        """What could not be written, evaluated or trained, in words."""
        saving = [] if self.saving is None else self.saving.failures
        return [*self.held_out.failures(), *self.steps.failures(), *self._failures, *saving]

    @property
    def unsaved(self) -> bool:
        """Whether something was trained that no checkpoint has."""
        return self.saving is not None and self.progress.steps > 0 and self.saving.saved != self.progress.step

    # Effects become messages ----------------------------------------------------------------------------------------

    def assign(self, target: int, batch: int) -> ComputeStates:
        slot = self.slots.take(batch, HOST if self.on_host else target)
        return ComputeStates(batch, self._samples(batch), slot)

    def deliver(self, effect: Deliver) -> TrainOn:
        epoch = int(self.plan.batches.epoch[self.progress.ids[effect.batch]])
        parcel = self.slots.parcel(effect.batch)
        return TrainOn(effect.step, parcel, effect.source, self._samples(effect.batch), epoch)

    def apply(self, effect: Step) -> Apply:
        return Apply(effect.step, progress=self.progress.share(len(effect.batches)))

    def forget(self, batch: int) -> None:
        self.slots.free(batch)

    def gone(self, batch: int) -> None:
        self.slots.free(batch)

    def loader(self, batch: int) -> float:
        return 0.0

    # Before, between and after the steps ----------------------------------------------------------------------------

    def openers(self, targets: tuple[int, ...], drafters: tuple[int, ...]) -> Posts:
        """Each drafter tries the way from each target; a target computes the held-out samples."""
        for drafter in drafters:
            for target in targets:
                if target in self._probes and (drafter, target) not in self._probed:
                    self._probed.add((drafter, target))
                    yield ("drafter", drafter), Probe(self._probes[target], target)
        yield from self.held_out.asks([target for target in targets if target in self._probes])

    def committed(self, step: int, batches: tuple[int, ...], drafters: tuple[int, ...]) -> Posts:
        self.progress.commit(batches)
        self.steps.committed(step, self.progress.step, self.clock())
        if not drafters:
            return
        saves = bool(self.save_every) and self.progress.steps % self.save_every == 0
        if self.saving is not None and self.saving.lost(drafters):
            saves = True  # who was writing the last one is gone
        evaluates = bool(self.evaluate_every) and self.progress.steps % self.evaluate_every == 0
        yield from self._asks(drafters[0], saves=saves, evaluates=evaluates or saves)

    def closers(self, drafters: tuple[int, ...], settled: bool) -> Posts:
        """A last checkpoint and evaluation: of the first drafter, and where it dies of it, of the next."""
        if not self.progress.steps or self._over:
            return
        if self.saving is not None:
            self.saving.lost(drafters)
            if self.saving.awaits(self.progress.step):
                return
        tried = bool(self._tried & set(drafters))  # it lives: what failed there would fail elsewhere
        if tried or not drafters or not settled:
            self._over = True
            if self.unsaved and not tried:
                why = "no drafter is left to write it" if settled else "a step was being applied"
                self._failures.append(f"no checkpoint at the end: {why}")
            return
        self._tried.add(drafters[0])
        yield from self._asks(drafters[0], saves=self.unsaved, evaluates=True)

    def _asks(self, drafter: int, *, saves: bool, evaluates: bool) -> Posts:
        step = self.progress.step
        if evaluates and self.held_out.paths and step not in self._figures:
            yield ("drafter", drafter), Evaluate(step, self.held_out.paths)
        if saves and self.saving is not None:
            yield from self.saving.ask(drafter, self.progress)

    # What workers report --------------------------------------------------------------------------------------------

    def heard(self, worker: Worker, message: object) -> None:
        match message:
            case Computed(parcel=Parcel() as parcel):
                self.slots.put(parcel)
            case Ready(probe=Parcel() as probe):
                self._probes[worker[1]] = probe
            case HeldOut():
                self.held_out.heard(message)
            case Applied(step=step, report=dict() as report):
                self.steps.heard(step, report)
            case Evaluated():
                self._evaluated(message)
            case Saved() if self.saving is not None:
                self.saving.heard(message, self._figures.get(message.step, {}))

    def _evaluated(self, told: Evaluated) -> None:
        self._figures[told.step] = told.values
        if told.why:
            self._failures.append(f"step {told.step}: no evaluation on held-out samples: {told.why}")
            return
        self.scalars.log(told.step, self.clock(), told.values)
        broken = [name for name, value in told.values.items() if not isfinite(value)]
        if broken:
            self._failures.append(f"step {told.step}: {', '.join(broken)} is not finite: it is written as null")

    def _samples(self, batch: int) -> tuple[int, ...]:
        return tuple(self.plan.samples_of(self.progress.ids[batch]).tolist())

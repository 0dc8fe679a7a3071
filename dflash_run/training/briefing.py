"""What the workers of a training are told for each effect, and what becomes of what they report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dflash_run.briefing import Posts
from dflash_run.crew import Worker
from dflash_run.data.planning import TrainingPlan
from dflash_run.messages import Applied, Apply, Computed, Ready
from dflash_run.training.checkpoint import Checkpoint, Checkpoints, runs_of
from dflash_run.training.messages import ComputeStates, Evaluate, Evaluated, HoldOut, Probe, Save, Saved, TrainOn
from dflash_run.training.scalars import Scalars
from dflash_run.transport.parcel import HOST, Parcel
from dflash_run.transport.slots import SlotTable
from policies.effects import Deliver, Step

HELD_OUT_BATCH: Final = 4
"""Held-out samples that are computed at a time."""


@dataclass
class Progress:
    """What is trained, of the whole plan."""

    ids: Sequence[int]
    """The plan's number of each batch of this run."""
    planned: int
    """Batches of the plan."""
    before: set[int]
    """Those that were trained before this run."""
    steps_before: int = 0
    trained: set[int] = field(default_factory=set)
    """Those that were trained in this run."""
    steps: int = 0

    def share(self, more: int) -> float:
        """Share of the plan trained in the middle of a step of `more` batches."""
        return (len(self.before) + len(self.trained) + more / 2) / self.planned

    def commit(self, batches: Sequence[int]) -> None:
        """A step's batches (numbers of this run) are trained."""
        self.trained.update(self.ids[batch] for batch in batches)
        self.steps += 1

    @property
    def step(self) -> int:
        """Optimizer steps since the training began."""
        return self.steps_before + self.steps


@dataclass(kw_only=True)
class TrainingBriefing:
    """For the launcher (`dflash_run.briefing.Briefing`)."""

    plan: TrainingPlan
    progress: Progress
    slots: SlotTable
    on_host: bool
    """Whether hidden states wait in host memory."""
    scalars: Scalars
    checkpoints: Checkpoints | None
    """None where weights are not kept (`sync: none`)."""
    describe: Callable[[Progress, dict[str, float]], Checkpoint]
    """The checkpoint as of now; with held-out figures."""
    save_every: int
    evaluate_every: int
    log_every: int
    held_out: Sequence[int]
    """Corpus ids of the held-out samples to evaluate on."""
    held_out_folder: Path
    clock: Callable[[], float] = field(default=lambda: 0.0)
    """Seconds since the start of the run; the launcher's, once there is one."""
    failures: list[str] = field(default_factory=list)
    """Checkpoints that could not be written."""

    def __post_init__(self) -> None:
        self._probes: dict[int, Parcel] = {}
        self._paths: tuple[str, ...] = ()
        self._figures: dict[int, dict[str, float]] = {}
        """Held-out figures by step."""
        self._saving: dict[int, Progress] = {}
        self._saved = -1
        self._logged = -1
        self._drafters = 0

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

    def openers(self) -> Posts:
        """Each drafter tries the way from each target; a target computes the held-out samples."""
        for drafter in range(self._drafters):
            for target, parcel in sorted(self._probes.items()):
                yield ("drafter", drafter), Probe(parcel, target)
        if self._probes and self.held_out:
            chunks = [self.held_out[at : at + HELD_OUT_BATCH] for at in range(0, len(self.held_out), HELD_OUT_BATCH)]
            paths = []
            for chunk in chunks:
                name = "_".join(["held", *map(str, chunk)])
                paths.append(str(self.held_out_folder / f"{name}.safetensors"))
                yield ("target", min(self._probes)), HoldOut(tuple(int(each) for each in chunk), paths[-1])
            self._paths = tuple(paths)

    def committed(self, step: int, batches: tuple[int, ...], drafters: tuple[int, ...]) -> Posts:
        self.progress.commit(batches)
        if not drafters:
            return
        saves = self.checkpoints is not None and self.save_every and self.progress.steps % self.save_every == 0
        evaluates = self.evaluate_every and self.progress.steps % self.evaluate_every == 0
        yield from self._asks(drafters[0], saves=bool(saves), evaluates=bool(evaluates or saves))

    def closers(self, drafters: tuple[int, ...], settled: bool) -> Posts:
        if not drafters or not self.progress.steps:
            return
        if not settled:
            self.failures.append("no checkpoint at the end: a step was being applied")
            return
        unsaved = self.checkpoints is not None and self._saved != self.progress.step
        yield from self._asks(drafters[0], saves=unsaved, evaluates=True)

    def _asks(self, drafter: int, *, saves: bool, evaluates: bool) -> Posts:
        step = self.progress.step
        if evaluates and self._paths and step not in self._figures:
            yield ("drafter", drafter), Evaluate(step, self._paths)
        if saves and self.checkpoints is not None:
            self._saved = step
            now = self.progress
            self._saving[step] = Progress(
                now.ids, now.planned, now.before, now.steps_before, set(now.trained), now.steps
            )
            yield ("drafter", drafter), Save(step, self.checkpoints.begin(step))

    # What workers report --------------------------------------------------------------------------------------------

    def heard(self, worker: Worker, message: object) -> None:
        match message:
            case Computed(parcel=Parcel() as parcel):
                self.slots.put(parcel)
            case Ready(probe=Parcel() as probe):
                self._probes[worker[1]] = probe
            case Ready():
                self._drafters = max(self._drafters, worker[1] + 1)
            case Applied(step=step, report=dict() as report):
                self._log(step, report)
            case Evaluated(step=step, values=values):
                self._figures[step] = values
                self.scalars.log(step, self.clock(), values)
            case Saved():
                self._complete(message)

    def _log(self, step: int, report: dict[str, Any]) -> None:
        """Of each step the first report is written: under `step` and `pooled` all say the same."""
        if step <= self._logged:
            return
        self._logged = step
        self.scalars.latest.update(report)
        if not report["applied"]:
            self.failures.append(f"step {step}: its gradient was not finite, or had no weight: the weights stayed")
        if (step + 1) % self.log_every == 0 or step == 0:
            self.scalars.log(self.progress.steps_before + step + 1, self.clock(), report)

    def _complete(self, saved: Saved) -> None:
        progress = self._saving.pop(saved.step)
        assert self.checkpoints is not None, "only what keeps checkpoints asks for them"
        why = saved.why
        if not why:
            try:
                self.checkpoints.complete(saved.folder, self.describe(progress, self._figures.get(saved.step, {})))
            except OSError as error:
                why = str(error)
        if why:
            self.failures.append(f"checkpoint of step {saved.step} could not be written: {why}")

    def _samples(self, batch: int) -> tuple[int, ...]:
        return tuple(self.plan.samples_of(self.progress.ids[batch]).tolist())


def trained_runs(progress: Progress) -> tuple[tuple[int, int], ...]:
    """All that is trained, as a checkpoint has it."""
    return runs_of(progress.before | progress.trained)

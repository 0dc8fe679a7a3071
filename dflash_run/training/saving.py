"""Which drafter writes a checkpoint, and which checkpoints are there: one is when its drafter has said so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_run.briefing import Posts
from dflash_run.training.checkpoint import Checkpoint, Checkpoints
from dflash_run.training.messages import Save, Saved
from dflash_run.training.progress import Progress

Figures = dict[str, float]


@dataclass
class _Asked:
    """A checkpoint that a drafter is writing."""

    drafter: int
    progress: Progress


class Saving:
    """The checkpoints of a run whose weights are kept."""

    def __init__(self, checkpoints: Checkpoints, describe: Callable[[Progress, Figures], Checkpoint]) -> None:
        """describe: the checkpoint as of a progress, with held-out figures."""
        self.failures: list[str] = []
        """Checkpoints that could not be written, and why."""
        self.saved: int | None = None
        """The step of the newest checkpoint that is there."""
        self._checkpoints = checkpoints
        self._describe = describe
        self._asked: dict[str, _Asked] = {}
        """By the folder that is being written."""

    def ask(self, drafter: int, progress: Progress) -> Posts:
        """This drafter shall write what it has now."""
        folder = self._checkpoints.begin(progress.step)
        self._asked[folder] = _Asked(drafter, progress.copy())
        yield ("drafter", drafter), Save(progress.step, folder)

    def awaits(self, step: int) -> bool:
        """Whether a drafter is writing the checkpoint of this step."""
        return any(each.progress.step == step for each in self._asked.values())

    def lost(self, drafters: Sequence[int]) -> bool:
        """Forget what was asked of drafters that are gone (`drafters` live); whether something was."""
        gone = [folder for folder, asked in self._asked.items() if asked.drafter not in drafters]
        for folder in gone:
            del self._asked[folder]
        return bool(gone)

    def heard(self, saved: Saved, figures: Figures) -> None:
        """A drafter answered."""
        asked = self._asked.pop(saved.folder, None)
        if asked is None:
            return
        why = saved.why
        if not why:
            try:
                self._checkpoints.complete(saved.folder, self._describe(asked.progress, figures))
                self.saved = saved.step
            except OSError as error:
                why = f"{type(error).__name__}: {error}"
        if why:
            self._checkpoints.forget(saved.folder)
            self.failures.append(f"checkpoint of step {saved.step} could not be written: {why}")

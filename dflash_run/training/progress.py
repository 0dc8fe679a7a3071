"""How far a training is."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dflash_run.training.checkpoint import runs_of


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

    def copy(self) -> "Progress":
        """As it is now."""
        return replace(self, trained=set(self.trained))

    @property
    def step(self) -> int:
        """Optimizer steps since the training began."""
        return self.steps_before + self.steps


def trained_runs(progress: Progress) -> tuple[tuple[int, int], ...]:
    """All that is trained, as a checkpoint has it."""
    return runs_of(progress.before | progress.trained)

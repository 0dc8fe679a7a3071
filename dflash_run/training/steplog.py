"""What drafters report of their steps: the log, and what left the weights unmoved, of each group for itself.

Under `step` and `pooled` all drafters are one group and say the same of a step. Under `none` each drafter is a group:
their steps are numbered in turns (drafter d has d, d + D, …), and one may be far ahead of the others.
"""

from typing import Any

from dflash_run.training.scalars import Scalars
from dflash_run.training.unmoved import Unmoved


class StepLog:
    """Told of every report; writes the first of each step."""

    def __init__(self, scalars: Scalars, *, groups: int, every: int) -> None:
        """groups: of drafters that step together; every: steps of a group between its lines."""
        self._scalars = scalars
        self._every = every
        self._unmoved = [Unmoved() for _ in range(groups)]
        self._heard = [-1] * groups
        """The newest step of each group."""

    @property
    def diverged(self) -> bool:
        """Whether a group's gradients were not finite for so long that going on is of no use."""
        return any(group.diverged for group in self._unmoved)

    def lost(self) -> str | None:
        """Why the training came to nothing, once it is over; None: it did not."""
        lost = [(group, why) for group, each in enumerate(self._unmoved) if (why := each.lost())]
        return f"{self._whose(lost[0][0])}{lost[0][1]}" if lost else None

    def failures(self) -> list[str]:
        """Lines of each group."""
        return [f"{self._whose(group)}{line}" for group, each in enumerate(self._unmoved) for line in each.failures()]

    def heard(self, step: int, before: int, time_s: float, report: dict[str, Any]) -> None:
        """A drafter has applied a step of the dispatcher's; `before`: steps of earlier runs."""
        groups = len(self._unmoved)
        group = step % groups
        if step <= self._heard[group]:
            return
        self._heard[group] = step
        self._scalars.latest.update(report)
        self._unmoved[group].note(step, report)
        own = step // groups
        if (own + 1) % self._every == 0 or own == 0:
            self._scalars.log(before + step + 1, time_s, report, group if groups > 1 else None)

    def _whose(self, group: int) -> str:
        return f"drafter/{group}: " if len(self._unmoved) > 1 else ""

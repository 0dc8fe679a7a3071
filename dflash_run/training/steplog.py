"""What drafters report of their steps: the log, and what left the weights unmoved, of each group for itself.

Under `step` and `pooled` all drafters are one group and say the same of a step. Under `none` each drafter is a group:
their steps are numbered in turns (drafter d has d, d + D, …), and one may be far ahead of the others.
"""

from typing import Any

from dflash_run.training.scalars import Scalars
from dflash_run.training.unmoved import Unmoved


class StepLog:
    """Told of every report, and of every step that is committed: then its first report counts, under its number.

    The dispatcher numbers windows, also those that are dropped or abandoned; a training counts what it committed.
    """

    def __init__(self, scalars: Scalars, *, groups: int, every: int, before: int) -> None:
        """groups: of drafters that step together; every: steps of a group from line to line; before: steps of earlier
        runs."""
        self._scalars = scalars
        self._every = every
        self._before = before
        self._counts = [before] * groups
        """Steps of each group."""
        self._unmoved = [Unmoved() for _ in range(groups)]
        self._heard: dict[int, tuple[int, dict[str, Any]]] = {}
        """By group the newest of the dispatcher's steps that was reported, and what was said first of it."""

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

    def heard(self, window: int, report: dict[str, Any]) -> None:
        """A drafter has applied this step of the dispatcher's."""
        group = window % len(self._unmoved)
        if group not in self._heard or self._heard[group][0] < window:
            self._heard[group] = (window, report)

    def committed(self, window: int, step: int, time_s: float) -> None:
        """It is trained, as the training's optimizer step number `step`."""
        group = window % len(self._unmoved)
        self._counts[group] += 1
        known, report = self._heard.get(group, (-1, {}))
        if known != window:  # who applied it died before saying how it went
            return
        self._scalars.latest.update(report)
        self._unmoved[group].note(step, report)
        if self._counts[group] % self._every == 0 or self._counts[group] == self._before + 1:
            self._scalars.log(step, time_s, report, group if len(self._unmoved) > 1 else None)

    def _whose(self, group: int) -> str:
        return f"drafter/{group}: " if len(self._unmoved) > 1 else ""

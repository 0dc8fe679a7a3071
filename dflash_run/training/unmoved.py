"""Steps that left the weights where they were, and when there were so many that a training is no use any more."""

from math import isfinite
from typing import Any, Final

MOST: Final = 20
"""Steps in a row whose gradients are not finite: no warm-up or odd batch explains that."""
_NAMED: Final = 3
_NOT_FINITE: Final = "the gradient was not finite"
_NO_WEIGHT: Final = "no slot had weight"


class Unmoved:
    """Told of every step, in order."""

    def __init__(self) -> None:
        self._steps: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}
        self._all = 0
        self._row = 0

    def note(self, step: int, report: dict[str, Any]) -> None:
        """A step was applied, or not; `report` is what a drafter says of it."""
        self._all += 1
        if report["applied"]:
            self._row = 0
            return
        why = _NO_WEIGHT if isfinite(report["grad_norm"]) else _NOT_FINITE
        self._row = self._row + 1 if why == _NOT_FINITE else 0
        self._counts[why] = self._counts.get(why, 0) + 1
        named = self._steps.setdefault(why, [])
        if len(named) < _NAMED:
            named.append(step)

    @property
    def diverged(self) -> bool:
        """Whether the last `MOST` steps all had gradients that were not finite."""
        return self._row >= MOST

    def lost(self) -> str | None:
        """Why the training came to nothing, once it is over; None: it did not."""
        remedy = "go on from an earlier checkpoint, or begin anew with a lower training.learning_rate"
        if self.diverged:
            return f"the last {self._row} steps had gradients that were not finite, so the training was ended: {remedy}"
        if self._all and self._counts.get(_NOT_FINITE) == self._all:
            return f"no step had a finite gradient, so nothing was learnt: {remedy}"
        return None

    def failures(self) -> list[str]:
        """A line for each reason, however many steps there were, and one if the training came to nothing."""
        lines = [f"{self._named(why)}: {why}: the weights stayed" for why in self._counts]
        lost = self.lost()
        return lines if lost is None else [*lines, lost]

    def _named(self, why: str) -> str:
        steps, more = self._steps[why], self._counts[why] - len(self._steps[why])
        numbers = [f"{step:,}" for step in steps] + ([f"{more:,} more"] if more else [])
        if len(numbers) == 1:
            return f"step {numbers[0]}"
        return f"steps {', '.join(numbers[:-1])} and {numbers[-1]}"

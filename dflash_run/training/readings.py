"""Readings of the GPUs as lines of a file that stays small: one each at first, later means over ever longer times."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_GROWTH: Final = 0.002
"""Between two lines passes this part of the time so far: with a reading a second, each has its line for 8 minutes."""
_MOST_S: Final = 300.0
"""The longest time that a line stands for: as often as a log has a line of progress."""


@dataclass(frozen=True)
class Reading:
    """What a GPU's driver says of it."""

    utilization: float | None
    """Share of the last moments in which it computed; None: not known."""
    memory_bytes: int | None
    """In use, by all processes; None: not known."""


class Readings:
    """Told of all readings; says which lines are due."""

    def __init__(self) -> None:
        self._since: dict[int, list[Reading]] = {}
        """By GPU, what has no line yet."""
        self._due = 0.0
        self._now = 0.0

    def add(self, now: float, found: Mapping[int, Reading]) -> list[dict[str, Any]]:
        """Readings by GPU at this time [s], and the lines to write."""
        self._now = now
        for gpu, reading in found.items():
            self._since.setdefault(gpu, []).append(reading)
        if now < self._due:
            return []
        self._due = now + min(now * _GROWTH, _MOST_S)
        return self.rest()

    def rest(self) -> list[dict[str, Any]]:
        """Lines of what has none yet."""
        since, self._since = self._since, {}
        lines = ((gpu, _together(readings)) for gpu, readings in since.items())
        return [{"time_s": round(self._now, 3), "device": f"cuda:{gpu}", **known} for gpu, known in lines if known]


def _together(readings: list[Reading]) -> dict[str, float]:
    """The mean utilisation and the most memory, of those that are known."""
    found: dict[str, float] = {}
    if busy := [each.utilization for each in readings if each.utilization is not None]:
        found["utilization"] = round(sum(busy) / len(busy), 4)
    if memory := [each.memory_bytes for each in readings if each.memory_bytes is not None]:
        found["memory_bytes"] = max(memory)
    return found

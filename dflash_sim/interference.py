"""How much longer a worker takes while others are busy; `sharing` says how it is composed.

Sums over the busy workers are kept, and changed when somebody begins or ends, so that a factor costs the same among
many workers as among few. They are exact (see `exact`): nothing gathers over a million services.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from dflash_sim.exact import ONE, units
from dflash_sim.power import Draw, Power

Index = int
"""Targets first, then drafters."""

Matrix = Sequence[Sequence[float]]

COMPUTE: Final = "factor"
COPY: Final = "copy"
STEP: Final = "step"
"""What a worker does, by the names that pairs give its factors."""


@dataclass(frozen=True, kw_only=True)
class Interference:
    """How workers slow each other down, W workers."""

    factors: Matrix
    """[W][W]: how much longer i computes while j is busy, what the load of cores explains left out; ≥ 1, itself 1."""
    copying: Matrix | None = None
    """The same for the copy of a batch to drafter i; None: copies take their own time."""
    stepping: Matrix | None = None
    """The same for optimizer steps; None: as for computing."""
    cores: Sequence[float]
    """[W]: cores of the shared host that a busy worker uses; 0 on a GPU."""
    host_cores: float
    """Cores of the host."""
    power: Power | None = None
    """What workers on GPUs draw; None: less than any limit."""
    relief: Sequence[Mapping[Index, float]] | None = None
    """[W]: of each other worker on i's GPU, what it costs i less where it is not the first; None: nothing."""

    @property
    def matters(self) -> bool:
        """Whether anything can ever be slowed."""
        known = [each for each in (self.factors, self.copying, self.stepping) if each is not None]
        apart = any(f != 1.0 for each in known for row in each for f in row)
        hungry = self.power is not None and self.power.matters
        crowded = any(each for row in self.relief or () for each in row.values())  # three may lose what no two do
        return apart or hungry or crowded or sum(self.cores) > self.host_cores

    def factor(self, worker: Index, busy: Iterable[Index], kind: str = COMPUTE) -> float:
        """How much longer the worker takes while these are busy (itself among them or not)."""
        company = Company(self)
        for each in set(busy):
            company.enter(each)
        return company.factor(worker, kind)


class Company:
    """Who is busy, and how much longer that makes everybody's work take."""

    def __init__(self, interference: Interference) -> None:
        self._busy: set[Index] = set()
        self._cores, self._host = interference.cores, interference.host_cores
        self._used = 0
        """Units of cores that the busy use."""
        factors, copying, stepping = interference.factors, interference.copying, interference.stepping
        computing = _Sums(_costs(factors))
        self._sums = {
            COMPUTE: computing,
            STEP: computing if stepping is None else _Sums(_costs(stepping)),
            COPY: None if copying is None else _Sums(_costs(copying)),
        }
        self._kept = list({id(each): each for each in self._sums.values() if each is not None}.values())
        self._relief = None if interference.relief is None else _Relief(interference.relief)
        self._draw = None if interference.power is None else Draw(interference.power)

    def enter(self, worker: Index) -> None:
        """The worker, who was not, is busy."""
        self._busy.add(worker)
        self._turn(worker, 1)

    def leave(self, worker: Index) -> None:
        """The worker is busy no more."""
        self._busy.remove(worker)
        self._turn(worker, -1)

    def _turn(self, worker: Index, sign: int) -> None:
        for each in self._kept:
            each.turn(worker, sign)
        if self._relief is not None:
            self._relief.sums.turn(worker, sign)
        if self._draw is not None:
            self._draw.turn(worker, sign)
        self._used += sign * units(self._cores[worker])

    def factor(self, worker: Index, kind: str = COMPUTE) -> float:
        """How much longer the worker takes by now, busy itself or not."""
        sums = self._sums[kind]
        if sums is None:
            return 1.0
        cost = sums.of[worker]
        if self._relief is not None and kind == COMPUTE:
            cost -= self._relief.of(worker, self._busy)
        together = 1.0 + cost / ONE
        if self._draw is not None and kind != COPY:
            together *= self._draw.load(worker, worker in self._busy)
        own = self._cores[worker]
        if not own:
            return together
        used = self._used / ONE + (0.0 if worker in self._busy else own)
        return together * max(1.0, used / self._host)


class _Sums:
    """Σ over the busy j of a cost of i by j, for each i, in units."""

    def __init__(self, costs: Sequence[Sequence[int]]) -> None:
        """[W][W]: [j][i], so that what a worker costs everybody is at hand."""
        self.of = [0] * len(costs)
        self._costs = costs

    def turn(self, worker: Index, sign: int) -> None:
        """The worker begins (1) or ends (-1)."""
        costs = self._costs[worker]
        if sign > 0:
            self.of = [total + cost for total, cost in zip(self.of, costs, strict=True)]
        else:
            self.of = [total - cost for total, cost in zip(self.of, costs, strict=True)]


def _costs(factors: Matrix) -> list[list[int]]:
    return [[units(factor - 1.0) for factor in column] for column in zip(*factors, strict=True)]


class _Relief:
    """Σ over the busy neighbours j of i, but the first, of relief(i, j)."""

    def __init__(self, relief: Sequence[Mapping[Index, float]]) -> None:
        self.sums = _Sums([[units(row.get(j, 0.0)) for row in relief] for j in range(len(relief))])
        self._levels = [_levels(row) for row in relief]

    def of(self, worker: Index, busy: Set[Index]) -> int:
        """In units."""
        for relief, neighbours in self._levels[worker]:
            if not neighbours.isdisjoint(busy):
                return self.sums.of[worker] - relief
        return 0


def _levels(row: Mapping[Index, float]) -> list[tuple[int, frozenset[Index]]]:
    """Reliefs, the greatest first, each with the neighbours that have it: a few, since it goes by their role."""
    alike: dict[int, list[Index]] = {}
    for neighbour, relief in row.items():
        alike.setdefault(units(relief), []).append(neighbour)
    return [(relief, frozenset(alike[relief])) for relief in sorted(alike, reverse=True)]

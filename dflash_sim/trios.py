"""How pairs add up: seen by three workers that were busy at once on one GPU.

Of five targets on parts of an H200, a first neighbour costs one 3 %, each further one 1 %: what both lose to company at
all, as a cache that a worker had for itself, is lost once. The sum over pairs would count it for every neighbour.
With f(i, j) the factor of a pair and F(i) that of i among three, j and k the others,

    relief(i) = (f(i, j) − 1) + (f(i, k) − 1) − (F(i) − 1)

is what the second neighbour costs less; below 0 it costs more, as where three need more memory bandwidth than there is
and two do not. Every neighbour beyond the first is taken to be like the second.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from dflash_sim.power import Power
from dflash_sim.timings_file import InterferenceProfile

SURE: Final = 2.0
"""Standard errors by which what was measured must differ from nothing to count."""

Sides = tuple[str, str, bool]
"""(role, role of the other, whether on one GPU) of a factor."""


def reliefs(
    measured: InterferenceProfile,
    pairs: Mapping[Sides, tuple[float, float]],
    power: Power | None,
    roles: Sequence[str],
) -> dict[str, float]:
    """The relief of each role that trios tell of. `pairs`: factors and standard errors; `roles`: of all workers.

    A role's relief is never more than its least pair costs: no neighbour makes anyone faster.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for trio in measured.trios:
        load = 1.0
        if power is not None and all(role in roles for role in trio.workers):
            load = power.load_of([roles.index(role) for role in trio.workers])
        for at, role in enumerate(trio.workers):
            two = [pairs.get((role, other, True), (1.0, 0.0)) for each, other in enumerate(trio.workers) if each != at]
            saved = sum(factor - 1 for factor, _ in two) - (trio.factors[at] / load - 1)
            error = sum(error**2 for error in (trio.errors[at], *(error for _, error in two))) ** 0.5
            found.setdefault(role, []).append((saved, error))
    return {role: _sure(values, _least(pairs, role)) for role, values in found.items()}


def _sure(values: Sequence[tuple[float, float]], most: float) -> float:
    mean = sum(saved for saved, _ in values) / len(values)
    error = sum(error**2 for _, error in values) ** 0.5 / len(values)
    return min(mean, most) if abs(mean) > SURE * error else 0.0


def _least(pairs: Mapping[Sides, tuple[float, float]], role: str) -> float:
    costs = [max(factor - 1, 0.0) for (own, _, on_gpu), (factor, _) in pairs.items() if own == role and on_gpu]
    return min(costs, default=0.0)

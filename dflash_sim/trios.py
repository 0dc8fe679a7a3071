"""How pairs add up: seen by three workers that were busy at once on one GPU.

Of five targets on parts of an H200, a first neighbour costs one 3 %, each further one 1 %: what both lose to company at
all, as a cache that a worker had for itself, is lost once. The sum over pairs would count it for every neighbour.
With f(i, j) the factor of a pair and F(i) that of i among three, j and k the others,

    relief(i) = (f(i, j) − 1) + (f(i, k) − 1) − (F(i) − 1)

is what the second neighbour costs less; below 0 it costs more, as where three need more memory bandwidth than there is
and two do not. Every neighbour beyond the first is taken to be like the second. f are the factors that pairs are
composed with, and F is without the load of power that all three share, so that three come out as they were measured.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dflash_sim.timings_file import InterferenceProfile

SURE: Final = 2.0
"""Standard errors by which what was measured must differ from nothing to count."""

Sides = tuple[str, str]
"""Role, and role of the other, of a factor."""
Factors = Mapping[Sides, tuple[float, float]]
"""Factors of pairs and their standard errors."""


def reliefs(
    measured: InterferenceProfile,
    pairs: Callable[[str], Factors],
    load: Callable[[Sequence[str]], float],
    gpu: str,
) -> dict[str, float]:
    """The relief on this GPU of each role that trios tell of: of those measured on it, or else of all others.

    `pairs(name)`: factors on the GPU of that name as they are composed; `load`: of power, where these roles are busy on
    one GPU.
    """
    here: dict[str, list[tuple[float, float]]] = {}
    elsewhere: dict[str, list[tuple[float, float]]] = {}
    for trio in measured.trios:
        loaded, known = load(trio.workers), pairs(trio.shared)
        found = here if trio.shared == gpu else elsewhere
        for at, role in enumerate(trio.workers):
            two = [known.get((role, other), (1.0, 0.0)) for each, other in enumerate(trio.workers) if each != at]
            saved = sum(factor - 1 for factor, _ in two) - (trio.factors[at] / loaded - 1)
            error = sum(error**2 for error in (trio.errors[at] / loaded, *(error for _, error in two))) ** 0.5
            found.setdefault(role, []).append((saved, error))
    return {role: _sure(values) for role, values in (elsewhere | here).items()}


def _sure(values: Sequence[tuple[float, float]]) -> float:
    mean = sum(saved for saved, _ in values) / len(values)
    error = sum(error**2 for _, error in values) ** 0.5 / len(values)
    return mean if abs(mean) > SURE * error else 0.0

"""What speaks against measured timings where they predict a run: said beside the prediction, a line each.

Settings that differ are refused (`settings`). Here is what may matter less, or cannot be compared.
"""

from collections.abc import Iterator
from typing import Final

from dflash_sim.interference import COMPUTE
from dflash_sim.sharing import Pairs, unmeasured_pairs
from dflash_sim.timings_file import InterferenceProfile, Profile, TrioProfile
from dflash_sim.trios import SURE
from policies.pipeline import Pipeline

_BEYOND: Final = 2.0
"""Times the product of its pairs' factors, which is more than any way to compose them gives; three that take more, or
half of what one pair takes, were measured otherwise than the pairs."""


def doubts_of(pipeline: Pipeline, profile: Profile) -> list[str]:
    """What speaks against this profile for this topology."""
    found = []
    if missing := unmeasured_pairs(pipeline, profile):
        told = f"{', '.join(missing)}: the profile has no such pair, and they count as not slowing each other"
        found.append(f"{told}; profile this topology")
    return [*found, *_odd_trios(profile.interference)]


def _odd_trios(measured: InterferenceProfile) -> Iterator[str]:
    pairs = Pairs(measured, COMPUTE)
    for trio in measured.trios:
        odd = [text for at in range(3) if (text := _odd(trio, at, pairs)) is not None]
        if odd:
            yield f"{', '.join(trio.workers)} at once on {trio.shared}: {odd[0]}; profile again"


def _odd(trio: TrioProfile, at: int, pairs: Pairs) -> str | None:
    """Where one of three takes far more, or less, than its pairs let expect."""
    role, factor, error = trio.workers[at], trio.factors[at], SURE * trio.errors[at]
    others = [other for each, other in enumerate(trio.workers) if each != at]
    one, two = (pairs.of((role, other), (trio.shared,), gpu=True) or (1.0, 0.0) for other in others)
    most = _BEYOND * (one[0] + SURE * one[1]) * (two[0] + SURE * two[1])
    least = max(one[0] - SURE * one[1], two[0] - SURE * two[1]) / _BEYOND
    if least <= factor + error and factor - error <= most:
        return None
    return f"a {role} takes {factor:.3g}×, beside one of the others {one[0]:.3g}× and {two[0]:.3g}×"

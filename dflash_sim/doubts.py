"""What speaks against measured timings where they predict a run: said beside the prediction, a line each.

Settings that differ are refused (`settings`). Here is what may matter less, or cannot be compared.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dflash_sim.interference import COMPUTE
from dflash_sim.settings import (
    DRAFTERS,
    SHARED_GPUS,
    TARGETS,
    settings_of,
    shared_gpus,
    unknown_settings,
)
from dflash_sim.sharing import Pairs, unmeasured_pairs
from dflash_sim.timings_file import InterferenceProfile, Profile, TrioProfile
from dflash_sim.trios import SURE
from policies.faults import shown
from policies.loading import resolved
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
    return [*found, *_odd_trios(profile.interference), *_other_topology(pipeline, profile)]


def settings_doubts(pipeline: Pipeline, profile: Profile) -> list[str]:
    """What the profile does not say of what a training's file says; without a model a file says nothing of settings."""
    if pipeline.model.name_or_path is None:
        return []
    return not_known(unknown_settings(profile, settings_of(resolved(pipeline))))


def not_known(keys: list[str]) -> list[str]:
    """A line for what was not compared, if anything was not."""
    if not keys:
        return []
    return [f"not known: {', '.join(keys)}: the timings do not say with which they were measured; profile again"]


def elsewhere(told: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """A line for what was measured with another machine or versions than those here; what only one says is none.

    Both by dotted keys of the profile: `machine.gpu`, `versions.torch`.
    """
    both = [(key, told[key], value) for key, value in here.items() if told.get(key) is not None]
    differ = [f"{key} {shown(there)}, and here it is {shown(value)}" for key, there, value in both if there != value]
    return [f"measured with {'; '.join(differ)}: profile here"] if differ else []


def _other_topology(pipeline: Pipeline, profile: Profile) -> Iterator[str]:
    """Where samples hold a run's interference: that the run had another topology, or that nobody knows."""
    if not profile.interference.in_samples:
        return
    topology, settings = pipeline.topology, profile.settings
    counts = settings.get(TARGETS), settings.get(DRAFTERS)
    if None in counts:
        yield (
            "not known: the topology of the run that the timings are fitted from, whose interference they hold; they "
            "predict no other: fit them anew from its trace"
        )
        return
    told = "fitted from a run of {}, whose interference the timings hold; they do not tell that of {}: fit a run of it"
    if counts != (topology.targets, topology.drafters):
        yield told.format(*(f"{_counted(*each)}" for each in (counts, (topology.targets, topology.drafters))))
        return
    spread = [topology.spread(role) or () for role in ("target", "drafter")]
    there, here = settings.get(SHARED_GPUS), shared_gpus(*spread)
    if there is None and here:
        yield "not known: which workers shared a GPU in the run that the timings are fitted from; name its devices"
    elif there is not None and there != here:
        yield told.format(_sharing(there), _sharing(here))


def _counted(targets: Any, drafters: Any) -> str:
    return f"{targets} + {drafters} workers"


def _sharing(gpus: Any) -> str:
    """`GPUs shared by 1 + 1 and 2 + 0 workers`."""
    if not isinstance(gpus, list) or not gpus:
        return "workers that share no GPU"
    return f"GPUs shared by {' and '.join(map(str, gpus))} workers"


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

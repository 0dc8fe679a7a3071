"""Several profiles in one: sources that can be told to differ are refused, the difference named.

No interference is counted twice. The times of a run hold it (`interference.in_samples`): what the run timed, profiles
that tell it apart do not time again, and what they say of it is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dflash_sim.settings import TOPOLOGY, agree, fuller
from dflash_sim.timings_file import (
    ROLES,
    InterferenceProfile,
    Profile,
    RoleProfile,
    SecondsProfile,
    ShapeSamples,
    TimingsError,
    TransferProfile,
)

_TIMED: Final = (*ROLES, "step", "transfer")
"""What interference changes."""
_ALONE: Final = "times of runs hold the interference of their topology: fit each topology by itself"


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """All samples of several profiles in one.

    What they say of machine, settings, bytes per token and workers' factors must agree where more than one
    says it, else TimingsError names each difference. Versions that differ are listed with " | "; of
    `interference` and `memory` the later profile's entries count. Beside the times of runs, a profile with
    interference gives only what these lack.
    """
    faults: list[str] = []
    profiles = _counted_once(profiles)
    merged = Profile(
        machine=_agreeing("machine", [each.machine for each in profiles], faults),
        versions=_listed([each.versions for each in profiles]),
        settings=_settings(_same_topology(profiles), faults),
        target=_merge_role("target", [each.target for each in profiles], faults),
        drafter=_merge_role("drafter", [each.drafter for each in profiles], faults),
        step=_merge_seconds([each.step for each in profiles]),
        loader=_merge_seconds([each.loader for each in profiles]),
        transfer=_merge_transfer([each.transfer for each in profiles]),
        hidden_bytes_per_token=_same(
            "hidden_bytes_per_token", [each.hidden_bytes_per_token for each in profiles], faults
        ),
        interference=_later([each.interference for each in profiles]),
        memory={key: value for each in profiles for key, value in each.memory.items()},
    )
    if faults:
        raise TimingsError(faults)
    return merged


# Interference, counted once ----------------------------------------------------------------------------------


def left_out(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """What runs timed, so that the times of profiles with interference are left out of it; empty: nothing is."""
    runs = [each for each in profiles if each.interference.in_samples]
    if not runs or not any(each.interference.measured for each in profiles):
        return ()
    return tuple(name for name in _TIMED if any(getattr(run, name) is not None for run in runs))


def _counted_once(profiles: Sequence[Profile]) -> list[Profile]:
    names = left_out(profiles)
    runs = [each for each in profiles if each.interference.in_samples]
    return [_untimed(each, names, runs) if names and each.interference.measured else each for each in profiles]


def _untimed(profile: Profile, names: Sequence[str], runs: Sequence[Profile]) -> Profile:
    """What a profile says besides the times that runs have; `model_copy`, since no file could hold parts of nothing."""
    changed: dict[str, Any] = {"transfer": None} if "transfer" in names else {}
    for role in ROLES:
        part: RoleProfile | None = getattr(profile, role)
        if role in names and part is not None:
            changed[role] = _untimed_role(part, [timed for run in runs if (timed := getattr(run, role)) is not None])
    if "step" in names and profile.step is not None:
        changed["step"] = profile.step.model_copy(update={"seconds": ()})
    return profile.model_copy(update=changed)


def _untimed_role(part: RoleProfile, timed: Sequence[RoleProfile]) -> RoleProfile:
    """First batches where runs set none apart; what seconds are made of, for people, of the shapes that runs timed.

    Factors are of the samples, and go with them: those of runs hold, pooled, how workers differed.
    """
    shapes = {_shape(each) for run in timed for each in run.samples}
    kept = tuple(each.model_copy(update={"seconds": ()}) for each in part.samples if _shape(each) in shapes)
    first = () if any(run.first_seconds for run in timed) else part.first_seconds
    return part.model_copy(update={"samples": kept, "worker_factors": (), "first_seconds": first})


def _shape(samples: ShapeSamples) -> tuple[int, int, int | None]:
    return samples.batch_size, samples.length, samples.anchors


# Parts of a profile --------------------------------------------------------------------------------------------


def _same(key: str, values: Iterable[Any], faults: list[str]) -> Any:
    """The one value that is not None; a fault where there are two."""
    said = [value for value in values if value is not None]
    for other in said[1:]:
        if other != said[0]:
            faults.append(f"{key}: {other!r}: another source has {said[0]!r}; merge sources that agree")
            break
    return said[0] if said else None


def _later(parts: Sequence[InterferenceProfile]) -> InterferenceProfile:
    """What the last one that says it says; nothing beside times that hold it."""
    if any(part.in_samples for part in parts):
        return InterferenceProfile(in_samples=True)
    said = {key: getattr(part, key) for part in parts for key in part.model_fields_set}
    return InterferenceProfile(**said)


def _agreeing(name: str, mappings: Sequence[Mapping[str, Any]], faults: list[str]) -> dict[str, Any]:
    keys = dict.fromkeys(key for each in mappings for key in each)
    return {key: _same(f"{name}.{key}", [each.get(key) for each in mappings], faults) for key in keys}


def topology_lacking(profiles: Sequence[Profile]) -> bool:
    """Whether some of the runs' timings do not say of which topology they are, as older ones."""
    return any(each.interference.in_samples and None in map(each.settings.get, TOPOLOGY[:2]) for each in profiles)


def _same_topology(profiles: Sequence[Profile]) -> list[Mapping[str, Any]]:
    """Settings of each; that of the topology only where all runs say it."""
    if not topology_lacking(profiles):
        return [each.settings for each in profiles]
    return [{key: value for key, value in each.settings.items() if key not in TOPOLOGY} for each in profiles]


def _settings(mappings: Sequence[Mapping[str, Any]], faults: list[str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for each in mappings:
        for key, other in each.items():
            if other is None:
                continue
            one = said.setdefault(key, other)
            if agree(key, one, other):
                said[key] = fuller(key, one, other)
            else:
                remedy = _ALONE if key in TOPOLOGY else "merge sources that agree"
                faults.append(f"settings.{key}: {other!r}: another source has {one!r}; {remedy}")
    return said


def _listed(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    listed: dict[str, Any] = {}
    for key in dict.fromkeys(key for each in mappings for key in each):
        values = list(dict.fromkeys(str(each[key]) for each in mappings if key in each))
        listed[key] = " | ".join(values)
    return listed


def _merge_role(role: str, parts: Iterable[RoleProfile | None], faults: list[str]) -> RoleProfile | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    shapes: dict[tuple[int, int, int | None], list[ShapeSamples]] = defaultdict(list)
    for part in given:
        for each in part.samples:
            shapes[_shape(each)].append(each)
    factors = _same(f"{role}.worker_factors", [part.worker_factors or None for part in given], faults)
    return RoleProfile(
        samples=tuple(_merge_shape(same) for same in shapes.values()),
        first_seconds=tuple(value for part in given for value in part.first_seconds),
        cold_first_seconds=tuple(value for part in given for value in part.cold_first_seconds),
        worker_factors=factors or (),
    )


def _merge_shape(same: Sequence[ShapeSamples]) -> ShapeSamples:
    names = dict.fromkeys(name for each in same for name in each.parts)
    parts = {name: tuple(value for each in same for value in each.parts.get(name, ())) for name in names}
    seconds = tuple(value for each in same for value in each.seconds)
    return same[0].model_copy(update={"seconds": seconds, "parts": parts})


def _merge_seconds(parts: Iterable[SecondsProfile | None]) -> SecondsProfile | None:
    given = [part for part in parts if part is not None]
    names = dict.fromkeys(name for part in given for name in part.parts)
    of = {name: tuple(value for part in given for value in part.parts.get(name, ())) for name in names}
    seconds = tuple(value for part in given for value in part.seconds)
    return SecondsProfile(seconds=seconds, parts=of) if seconds else None


def _merge_transfer(parts: Iterable[TransferProfile | None]) -> TransferProfile | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    return TransferProfile(
        seconds=tuple(value for part in given for value in part.seconds),
        bytes_per_second=tuple(value for part in given for value in part.bytes_per_second),
    )

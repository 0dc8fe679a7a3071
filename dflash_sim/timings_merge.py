"""Several profiles in one: sources that can be told to differ are refused, the difference named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash_sim.timings_file import (
    InterferenceProfile,
    Profile,
    RoleProfile,
    SecondsProfile,
    ShapeSamples,
    TimingsError,
    TransferProfile,
)


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """All samples of several profiles in one.

    What they say of machine, settings, bytes per token and workers' factors must agree where more than one
    says it, else TimingsError names each difference. Versions that differ are listed with " | "; of
    `interference` and `memory` the later profile's entries count.
    """
    faults: list[str] = []
    merged = Profile(
        machine=_agreeing("machine", [each.machine for each in profiles], faults),
        versions=_listed([each.versions for each in profiles]),
        settings=_agreeing("settings", [each.settings for each in profiles], faults),
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


def _same(key: str, values: Iterable[Any], faults: list[str]) -> Any:
    """The one value that is not None; a fault where there are two."""
    said = [value for value in values if value is not None]
    for other in said[1:]:
        if other != said[0]:
            faults.append(f"{key}: {other!r}: another source has {said[0]!r}; merge sources that agree")
            break
    return said[0] if said else None


def _later(parts: Sequence[InterferenceProfile]) -> InterferenceProfile:
    """What the last one that says it says."""
    said = {key: getattr(part, key) for part in parts for key in part.model_fields_set}
    return InterferenceProfile(**said)


def _agreeing(name: str, mappings: Sequence[Mapping[str, Any]], faults: list[str]) -> dict[str, Any]:
    keys = dict.fromkeys(key for each in mappings for key in each)
    return {key: _same(f"{name}.{key}", [each.get(key) for each in mappings], faults) for key in keys}


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
            shapes[each.batch_size, each.length, each.anchors].append(each)
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

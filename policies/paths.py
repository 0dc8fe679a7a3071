"""Places in a mapping of plain values: what stands there, and which comes first in the document."""

from collections.abc import Sequence
from typing import Any

from policies.faults import ABSENT

Key = tuple[str | int, ...]
"""A path of mapping keys and list indices."""


def inside(at: object, part: str | int) -> object:
    """What stands at one key or index of `at`; ABSENT where there is no such place."""
    if isinstance(at, dict):
        return at.get(part, ABSENT)
    if isinstance(at, list) and isinstance(part, int) and part < len(at):
        return at[part]
    return ABSENT


def value_at(key: Key, mapping: dict[str, object]) -> object:
    """What stands at `key`; ABSENT where there is no such place."""
    value: object = mapping
    for part in key:
        value = inside(value, part)
    return value


def names(key: Key) -> tuple[str, ...]:
    """`key` without list indices: the place in the file's description."""
    return tuple(part for part in key if isinstance(part, str))


class Order:
    """The order of the document's keys, as tuples that sort."""

    def __init__(self, mapping: dict[str, object]) -> None:
        self.mapping = mapping
        self.places: dict[int, dict[Any, int]] = {}

    def __call__(self, parts: Sequence[str | int]) -> tuple[int, ...]:
        """Where a key stands; one that is not there comes after those of its level that are."""
        at: object = self.mapping
        found: list[int] = []
        for part in parts:
            part = int(part) if isinstance(at, list) and str(part).isdecimal() else part
            below = inside(at, part)
            if below is ABSENT:
                return (*found, len(at) if isinstance(at, dict | list) else 0)
            found.append(part if isinstance(part, int) else self._place(at, part))
            at = below
        return tuple(found)

    def _place(self, at: object, part: str) -> int:
        known = self.places.get(id(at))
        if known is None and isinstance(at, dict):
            known = self.places[id(at)] = {key: place for place, key in enumerate(at)}
        return known[part] if known else 0

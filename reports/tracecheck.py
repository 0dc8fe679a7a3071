"""Checks a trace that was read: its plan, its order, and that every number names something that the run had.

What passes can be turned into events and fed to an observer without a further check.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from policies.ledger import PLACES
from policies.trace import CODE, COLUMNS, INPUTS, KINDS, NONE, REASONS
from reports.tracelayout import PLAN_COLUMNS, Header, TraceError

Columns = Mapping[str, NDArray[Any]]
Bad = NDArray[np.bool_]

_AGAIN: Final = "the file was altered or badly copied: copy or record it again"
_ANY: Final = 1 << 31
_OPTIONAL: Final = frozenset({("recompute", "lane"), ("recompute", "worker")})
_ELSEWHERE: Final = frozenset({("loaded", "lane"), ("assign", "lane")})
"""Lanes of the feed hop, which the header does not list."""


def check_plan(path: Path, header: Header, columns: Columns) -> None:
    """The rows of kind `plan` come first and are the planned batches. Raises TraceError."""
    planned = columns["kind"] == CODE["plan"]
    count = int(planned.sum())
    if count != header.planned:
        raise TraceError(path, f"it describes {count} of {header.planned} planned batches", _AGAIN)
    if not planned[:count].all():
        raise TraceError(path, "its planned batches do not come first, before all events", _AGAIN)
    if not np.array_equal(columns["batch"][:count], np.arange(count)):
        raise TraceError(path, "its planned batches are not numbered in order", _AGAIN)
    if any((columns[column] < 0).any() for column in PLAN_COLUMNS):
        raise TraceError(path, "a planned batch has a negative size", _AGAIN)
    if (columns["bucket"] >= len(header.buckets)).any():
        raise TraceError(path, f"a planned batch is in none of the buckets {header.buckets}", _AGAIN)


def check_events(path: Path, header: Header, events: Columns, end_s: float, first: int = 0) -> None:
    """The event rows, without plan and `finish`; the first of them is event row `first`, and an input.

    Raises TraceError with the position of the first bad row.
    """
    for wrong, bad in _rules(header, events, end_s):
        if bad.any():
            row = int(bad.argmax())
            kind = KINDS[int(events["kind"][row])].name
            raise TraceError(path, f"event row {first + row} ({kind}): {wrong}", _AGAIN)


def _rules(header: Header, events: Columns, end_s: float) -> Iterator[tuple[str, Bad]]:
    time_s, kind = events["time_s"], events["kind"]
    yield "a mark among the events", np.isin(kind, [code for code, k in enumerate(KINDS) if k.mark])
    yield "an effect without an input before it", ~np.isin(kind[:1], list(INPUTS))
    later = np.append(time_s[1:], end_s)
    yield f"the next time is not a later one (end: {end_s} s)", ~(np.isfinite(time_s) & (later >= time_s))
    yield "a time before the start", time_s < 0
    for column in COLUMNS[1:]:
        low, high = _bounds(header, column)
        values = events[column]
        yield f"{column} is not one that the run had", (values < low[kind]) | (values >= high[kind])
    first, count = events["batch"].astype(np.int64), events["extra"]
    loads = kind == CODE["load"]
    yield "it loads what the run had not", loads & ((count < 1) | (first + count > header.planned))
    yield "rows of it are missing", _cut(events)


def _bounds(header: Header, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The least value of the column by kind, and the first that is too large."""
    low = np.full(len(KINDS), -_ANY, np.int64)
    high = np.full(len(KINDS), _ANY, np.int64)
    used = np.zeros(len(KINDS), bool)
    limits = _limits(header)
    for code, kind in enumerate(KINDS):
        for field, name in zip(kind.fields, kind.columns, strict=True):
            if name == column:
                used[code] = True
                optional = kind.lists and field != "step" or (kind.name, column) in _OPTIONAL
                low[code] = NONE if optional else 0
                high[code] = _ANY if (kind.name, column) in _ELSEWHERE else limits[field]
        if kind.lists and column == "extra":
            low[code] = 0
            used[code] = True
    low[~used], high[~used] = NONE, NONE + 1
    return low, high


def _limits(header: Header) -> dict[str, int]:
    """How many there are of what each field names."""
    return {
        "target": header.targets,
        "source": header.targets,
        "drafter": header.drafters,
        "drafters": header.drafters,
        "worker": max(header.targets, header.drafters),
        "batch": header.planned,
        "batches": header.planned,
        "count": header.planned + 1,
        "lane": len(header.lanes),
        "step": _ANY,
        "closes": 2,
        "reason": len(REASONS),
        "place": len(PLACES),
    }


def _cut(events: Columns) -> Bad:
    """Rows that say more rows follow, where the next one is no part of the same event."""
    kind, extra = events["kind"], events["extra"]
    more = np.isin(kind, [code for code, k in enumerate(KINDS) if k.lists]) & (extra > 0)
    follows = np.zeros(len(kind), np.bool_)
    step = events["step"]
    follows[:-1] = (kind[1:] == kind[:-1]) & (extra[1:] == extra[:-1] - 1) & (step[1:] == step[:-1])
    return np.asarray(more & ~follows, np.bool_)

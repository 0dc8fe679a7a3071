"""Timings from measured events: rows of durations, as a trace holds them, become a profile."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from dflash_sim.timings_file import MAX_FAULTS, ROLES, Profile, TimingsError, build_profile

# When a worker's first batch is set apart (see `_is_apart`).
_FACTOR, _SPREADS, _ENOUGH = 1.5, 5.0, 3
# The standard deviation of a normal sample is 1.4826 × its median absolute deviation.
_MAD_TO_DEVIATION = 1.4826


class WorkRecord(NamedTuple):
    """One batch computed by one worker; plain tuples in this order do as well."""

    role: str
    """target or drafter."""
    worker: int
    samples: int
    length: int
    """Padded length of each sample, tokens."""
    seconds: float
    anchors: int | None = None


Rows = dict[int, list[WorkRecord]]
"""The records of one role by worker, each worker's in the order in which it computed them."""


def fit_from_events(
    rows: Iterable[Sequence[Any]],
    *,
    step: Iterable[float] = (),
    loader: Iterable[float] = (),
    transfer: Iterable[float] = (),
    bytes_per_second: Iterable[float] = (),
    hidden_bytes_per_token: float | None = None,
    machine: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    per_worker: bool = False,
) -> Profile:
    """A profile from durations in seconds; `rows` are WorkRecords, each worker's in its own order.

    A worker's first batch goes to `first_seconds` when it stands apart from its others (`_is_apart`).
    With `per_worker` the workers of a role get factors of their own; else their samples are pooled.
    Raises TimingsError, one line for each row that cannot be used.
    """
    by_role = _sort_rows(rows)
    content: dict[str, Any] = {"machine": machine, "versions": versions, "settings": settings}
    content |= {role: _fit_role(by_role[role], per_worker) for role in ROLES}
    content |= {"step": {"seconds": _floats(step)}, "loader": {"seconds": _floats(loader)}}
    content["transfer"] = {"seconds": _floats(transfer), "bytes_per_second": _floats(bytes_per_second)}
    content["hidden_bytes_per_token"] = hidden_bytes_per_token
    # What was not measured is left out, not written as an empty list.
    return build_profile({key: part for key, part in content.items() if _says_something(part)})


def _floats(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values]


def _says_something(part: Any) -> bool:
    return any(value != [] for value in part.values()) if isinstance(part, Mapping) else part is not None


def _sort_rows(rows: Iterable[Sequence[Any]]) -> dict[str, Rows]:
    by_role: dict[str, Rows] = {role: defaultdict(list) for role in ROLES}
    faults: list[str] = []
    for number, row in enumerate(rows):
        try:
            record = _record(*row)
            by_role[record.role][record.worker].append(record)
        except (TypeError, ValueError) as error:
            faults.append(f"rows.{number}: {tuple(row)}: {error}; leave the row out")
            if len(faults) == MAX_FAULTS:
                break
    if faults:
        raise TimingsError(faults)
    return by_role


def _record(
    role: str, worker: int, samples: int, length: int, seconds: float, anchors: int | None = None
) -> WorkRecord:
    """A row in Python's own numbers (tables hold NumPy's). Raises ValueError or TypeError with the rule."""
    if role not in ROLES:
        raise ValueError(f"the role must be one of {', '.join(ROLES)}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError("seconds must be finite and above 0")
    if worker < 0 or samples < 1 or length < 1:
        raise ValueError("worker must be at least 0, samples and length at least 1")
    whole = operator.index
    known = None if anchors is None else whole(anchors)
    return WorkRecord(role, whole(worker), whole(samples), whole(length), float(seconds), known)


def _fit_role(rows: Rows, per_worker: bool) -> dict[str, Any] | None:
    if not rows:
        return None
    first: list[float] = []
    kept: Rows = {}
    for worker in sorted(rows):
        kept[worker] = rows[worker]
        if _is_apart(rows[worker][0], rows[worker][1:]):
            first.append(rows[worker][0].seconds)
            kept[worker] = rows[worker][1:]
    factors = _worker_factors(kept) if per_worker else {}
    shapes: dict[tuple[int, int, int | None], list[float]] = defaultdict(list)
    for worker, records in kept.items():
        for each in records:
            shapes[_shape(each)].append(each.seconds / factors.get(worker, 1.0))
    samples = [
        {"batch_size": size, "length": length, "anchors": anchors, "seconds": seconds}
        for (size, length, anchors), seconds in shapes.items()
    ]
    return {"samples": samples, "first_seconds": first, "worker_factors": list(factors.values())}


def _shape(record: WorkRecord) -> tuple[int, int, int | None]:
    return record.samples, record.length, record.anchors


def _is_apart(first: WorkRecord, others: Sequence[WorkRecord]) -> bool:
    """Whether a worker's first batch took so long that something else (compilation) must be in it.

    It is compared with the same worker's other batches of the same shape, or, where these are fewer than 3,
    with all its others by seconds per slot; a worker of fewer than 4 batches cannot tell. It stands apart
    when it is above 1.5 × their median and above their median + 5 standard deviations (taken from the median
    absolute deviation, which a few slow batches do not widen).
    """
    alike = [each.seconds for each in others if _shape(each) == _shape(first)]
    value = first.seconds
    if len(alike) < _ENOUGH:
        alike = [each.seconds / (each.samples * each.length) for each in others]
        value = first.seconds / (first.samples * first.length)
    if len(alike) < _ENOUGH:
        return False
    middle = median(alike)
    deviation = _MAD_TO_DEVIATION * median(abs(each - middle) for each in alike)
    return value > _FACTOR * middle and value > middle + _SPREADS * deviation


def _worker_factors(rows: Rows) -> dict[int, float]:
    """Each worker's factor: median over its batches of seconds / (median of that shape over all workers).

    One for every number up to the highest; a worker that computed nothing counts as ordinary.
    """
    shapes: dict[tuple[int, int, int | None], list[float]] = defaultdict(list)
    for records in rows.values():
        for each in records:
            shapes[_shape(each)].append(each.seconds)
    usual = {shape: median(seconds) for shape, seconds in shapes.items()}
    factors = dict.fromkeys(range(max(rows) + 1), 1.0)
    for worker, records in rows.items():
        factors[worker] = median(each.seconds / usual[_shape(each)] for each in records)
    return factors

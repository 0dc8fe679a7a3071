"""A trace as columns, for figures: read row group by row group, so that a week's run fits in little memory.

`read_trace` keeps every event and serves replays; this keeps the columns of the kinds that figures are made of, checked
alike, and no Python object per batch. 756,000 batches take about 160 MB.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from policies.trace import CODE, COLUMNS, KINDS
from reports.tracecheck import check_events, check_plan
from reports.tracefile import UNREADABLE, columns_of, files_of
from reports.tracelayout import PLAN_COLUMNS, Header, TraceError, header_in

Bool = NDArray[np.bool_]
Columns = dict[str, NDArray[Any]]

KEPT: Final = (
    "assign", "offer", "admit", "deliver", "received", "computed", "join", "step", "commit", "drop", "recall",
    "put_back", "recompute", "target_lost", "drafter_lost", "lose", "load", "loaded", "end",
)  # fmt: skip
"""The kinds of events that are kept."""
_DTYPES: Final = {
    "time_s": np.float64,
    "kind": np.uint8,
    "worker": np.int16,
    "batch": np.int32,
    "lane": np.int16,
    "step": np.int32,
    "extra": np.int32,
}
"""As small as they go."""
_MOST: Final = 32_767
_MASK: Final = np.isin(np.arange(len(KINDS)), [CODE[name] for name in KEPT])


@dataclass(frozen=True, eq=False, kw_only=True)
class Recorded:
    """The kept events of one run, N rows in order, and its B planned batches."""

    path: Path
    header: Header
    complete: bool
    """Whether the recorder said that the run was over; a killed run's trace is cut off."""
    end_s: float
    """When the run was over, or the last event where it was cut off."""
    plan: Mapping[str, NDArray[np.int64]]
    """`tokens`, `slots`, `samples`, `length`, `bucket`: int64[B]."""
    time_s: NDArray[np.float64]
    """float64[N], seconds from the start of the run, never falling."""
    kind: NDArray[np.uint8]
    worker: NDArray[np.int16]
    batch: NDArray[np.int32]
    lane: NDArray[np.int16]
    step: NDArray[np.int32]
    extra: NDArray[np.int32]

    def rows(self, *kinds: str) -> NDArray[np.int64]:
        """The positions of the rows of these kinds, in order."""
        wanted = np.zeros(len(KINDS), np.bool_)
        wanted[[CODE[kind] for kind in kinds]] = True
        return np.flatnonzero(wanted[self.kind])


def read_recorded(path: str | os.PathLike[str], left_out: list[str] | None = None) -> Recorded:
    """The trace at `path`: a trace.parquet, a run's folder, or the parts that a killed run left.

    Of parts, those before the first that cannot be read are used, where `left_out` is there to get the reason.
    Raises TraceError for a file that is missing, damaged, cut, or not a trace.
    """
    files = files_of(Path(path))
    if left_out is not None:
        files = _intact(files, left_out)
    header, groups = _header(files), []
    if max(header.targets, header.drafters, len(header.lanes)) > _MOST:
        raise TraceError(files[0], f"more than {_MOST} workers or lanes", "figures cannot show so many")
    plans: list[Columns] = []
    complete, end_s, rows = False, 0.0, 0
    for columns in _groups(files, header):
        kind, time_s = columns["kind"], columns["time_s"]
        planned = int((kind == CODE["plan"]).sum())
        if planned:
            plans.append(_plan_rows(columns, planned))
        complete = bool((kind[-1:] == CODE["finish"]).any())
        events = {column: columns[column][planned : len(kind) - complete] for column in ("time_s", *COLUMNS)}
        if len(time_s) > planned:
            _check(files[0], header, events, time_s[planned:], end_s, rows)
            end_s = float(time_s[-1])
        rows += len(events["kind"])
        groups.append(_kept(events))
    plan = _joined(plans, ("kind", "batch", *PLAN_COLUMNS))
    check_plan(files[0], header, plan)
    joined = _joined(groups, tuple(_DTYPES), _DTYPES)
    pa.default_memory_pool().release_unused()
    numbers = {column: plan[column] for column in PLAN_COLUMNS}
    return Recorded(path=files[0], header=header, complete=complete, end_s=end_s, plan=numbers, **joined)


def _intact(files: list[Path], left_out: list[str]) -> list[Path]:
    """The parts before the first that a kill or a full disk cut; all, where already the first one cannot be read."""
    for number, file in enumerate(files):
        try:
            source = pq.ParquetFile(file, page_checksum_verification=True)
            for group in range(source.num_row_groups if number == len(files) - 1 else 0):
                source.read_row_group(group)
        except UNREADABLE as error:
            if number == 0:
                return files
            after = f" and the {len(files) - number - 1} after it" if number + 1 < len(files) else ""
            left_out.append(f"part {file.name} of the trace{after} is left out: {_damaged(file, error)}")
            return files[:number]
    return files


def _header(files: Sequence[Path]) -> Header:
    """The header that all parts share."""
    schemas = []
    for file in files:
        try:
            schemas.append(pq.read_schema(file))
        except UNREADABLE as error:
            raise _damaged(file, error) from error
    for file, schema in zip(files, schemas, strict=True):
        if schema.metadata != schemas[0].metadata:
            raise TraceError(file, "it belongs to another run than its neighbours", "remove the parts of one run")
    return header_in(schemas[0], files[0])


def _groups(files: Sequence[Path], header: Header) -> Iterator[Columns]:
    """The columns of every row group, in order."""
    for file in files:
        try:
            source = pq.ParquetFile(file, page_checksum_verification=True)
            tables: Iterator[pa.Table] = (source.read_row_group(group) for group in range(source.num_row_groups))
            for table in tables:
                yield columns_of(file, table)
        except UNREADABLE as error:
            if isinstance(error, TraceError):
                raise
            raise _damaged(file, error) from error


def _damaged(file: Path, error: BaseException) -> TraceError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TraceError(file, f"it cannot be read as Parquet ({reason})", "copy or record it again")


def _plan_rows(columns: Columns, planned: int) -> Columns:
    """The plan's rows of a group; they must come first in it, which `check_plan` finds by their kinds."""
    rows = {column: columns[column][:planned] for column in ("kind", "batch")}
    return rows | {column: columns[column] for column in PLAN_COLUMNS}


def _check(path: Path, header: Header, events: Columns, times: NDArray[Any], since_s: float, first: int) -> None:
    """The rows of one group, which begins with an input and not before the end of the last one."""
    if times[0] < since_s:
        raise TraceError(path, f"event row {first}: its time is before its predecessor's", "copy or record it again")
    check_events(path, header, events, float(times[-1]), first)


def _kept(events: Columns) -> Columns:
    mask = _MASK[events["kind"]]
    return {column: events[column][mask].astype(dtype) for column, dtype in _DTYPES.items()}


def _joined(groups: Sequence[Columns], names: Sequence[str], dtypes: Mapping[str, Any] | None = None) -> Columns:
    """The groups' columns end to end; each group gives its part up, so that nothing is held twice for long."""
    joined = {}
    for name in names:
        parts = [group.pop(name) for group in groups]
        empty = np.zeros(0, np.int64 if dtypes is None else dtypes[name])
        joined[name] = np.concatenate(parts) if parts else empty
    return joined

"""Reads a trace: columns, events, calls; and feeds it to any observer as if the run took place again."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc
from pyarrow import parquet as pq

from policies.effects import Effect
from policies.trace import CODE, COLUMNS, Event, Input, Row, event_of, further_rows
from reports.metrics import Metrics
from reports.observer import Observer
from reports.tracecheck import check_events, check_plan
from reports.tracelayout import FILE, NAMES, PARTS, PLAN_COLUMNS, Header, TraceError, header_in
from reports.tracewriter import TraceWriter

__all__ = [
    "Call",
    "Header",
    "PlannedWork",
    "Trace",
    "TraceError",
    "TraceWriter",
    "feed",
    "metrics_of",
    "read_trace",
]

I32 = NDArray[np.int32]

_STRIDE: Final = 1 << 16
"""Rows turned into Python numbers at a time."""
UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError)


@dataclass(frozen=True, slots=True)
class Call:
    """One input and what the dispatcher answered to it."""

    row: int
    """Position of the input in the trace."""
    time_s: float
    input: Input
    answered_s: float
    """Time of the effects (of the input, where it has none)."""
    effects: list[Effect]


@dataclass(frozen=True, eq=False)
class PlannedWork:
    """What a trace says of the planned batches; one number per batch, in order."""

    tokens: list[int]
    slots: list[int]
    samples: list[int]
    length: list[int]
    bucket: list[int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """The events of one run; N rows. What a row's columns mean is said in `policies.trace`."""

    path: Path
    header: Header
    work: PlannedWork
    complete: bool
    """Whether the recorder said that the run was over; a killed run's trace is cut off."""
    end_s: float
    """When the run was over, or the last event where it was cut off."""
    time_s: NDArray[np.float64]
    """float64[N], seconds from the start of the run, never falling."""
    kind: NDArray[np.uint8]
    """uint8[N], index into `policies.trace.KINDS`."""
    worker: I32
    batch: I32
    lane: I32
    step: I32
    source: I32
    extra: I32

    def __len__(self) -> int:
        return len(self.kind)

    def rows(self) -> Iterator[tuple[float, Row]]:
        """(time [s], row) in order."""
        for start in range(0, len(self), _STRIDE):
            part = slice(start, start + _STRIDE)
            columns = [getattr(self, column)[part].tolist() for column in COLUMNS]
            yield from zip(self.time_s[part].tolist(), zip(*columns, strict=True), strict=True)

    def events(self) -> Iterator[tuple[float, Event]]:
        """(time [s], input or effect) in order."""
        return ((time_s, event) for _, time_s, event in self._numbered())

    def calls(self) -> Iterator[Call]:
        """The events as the driver saw them: each input with its effects."""
        call: Call | None = None
        for row, time_s, event in self._numbered():
            if isinstance(event, Input):
                if call is not None:
                    yield call
                call = Call(row, time_s, event, time_s, [])
                continue
            assert call is not None, "a checked trace begins with an input"
            if not call.effects:
                call = Call(call.row, call.time_s, call.input, time_s, call.effects)
            call.effects.append(event)
        if call is not None:
            yield call

    def _numbered(self) -> Iterator[tuple[int, float, Event]]:
        rows = enumerate(self.rows())
        for position, (time_s, row) in rows:
            group = [row, *(next(rows)[1][1] for _ in range(further_rows(row)))]
            yield position, time_s, event_of(group)


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read the trace at `path`: a trace.parquet, a run's folder, or the parts that a killed run left.

    Raises TraceError for a file that is missing, damaged, cut, or not a trace.
    """
    files = files_of(Path(path))
    tables = [_read(file) for file in files]
    header = header_in(tables[0].schema, files[0])
    for file, table in zip(files, tables, strict=True):
        if table.schema.metadata != tables[0].schema.metadata:
            raise TraceError(file, "it belongs to another run than its neighbours", "remove the parts of one run")
    return _trace(files[0], header, columns_of(files[0], pa.concat_tables(tables)))


def feed(trace: Trace, observer: Observer) -> float:
    """Hand every exchange of the trace to an observer; returns when the run was over [s]."""
    exchanges = ((call.time_s, call.input.name, call.input.args, call.effects) for call in trace.calls())
    while chunk := list(islice(exchanges, _STRIDE)):
        observer.observe(chunk)
    return trace.end_s


def metrics_of(trace: Trace) -> Metrics:
    """The same numbers as a live accumulator's."""
    header = trace.header
    metrics = Metrics(targets=header.targets, drafters=header.drafters, lanes=header.lanes, work=trace.work)
    metrics.finish(feed(trace, metrics))
    return metrics


def files_of(path: Path) -> list[Path]:
    """The trace, or its parts where it was never finished."""
    if path.is_dir() and path.name != PARTS:
        path = path / FILE
    if path.is_file():
        return [path]
    parts = path if path.name == PARTS else path.with_name(PARTS)
    found = sorted(parts.glob("*.parquet"))
    if not found:
        raise TraceError(path, "there is no such trace", "record one with `dflash-sim run FILE --trace`")
    for number, part in enumerate(found):
        if part.name != f"{number:06}.parquet":
            raise TraceError(parts, f"part {number:06} is missing", "restore it, or remove the parts after it")
    return found


def _read(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True).read()
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(path, f"it cannot be read as Parquet ({reason})", "copy or record it again") from error


def columns_of(path: Path, table: pa.Table) -> dict[str, NDArray[Any]]:
    """The table's columns as numpy arrays, kinds by code; those of the plan have only the plan's rows."""
    try:
        kind = pc.index_in(table["kind"].cast(pa.string()), value_set=pa.array(NAMES))
        columns = {"time_s": _numbers(table["time_s"].cast(pa.float64())), "kind": _numbers(kind)}
        for column in COLUMNS[1:]:
            columns[column] = _numbers(table[column].cast(pa.int32()))
        planned = table.filter(pc.equal(kind, pa.scalar(NAMES.index("plan"), pa.int32())))
        for column in PLAN_COLUMNS:
            columns[column] = _numbers(planned[column].cast(pa.int64()))
    except UNREADABLE as error:
        reason = str(error).splitlines()[0]
        raise TraceError(path, f"a column is missing, empty or unknown ({reason})", "record the run again") from error
    return columns


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    if column.null_count:
        raise ValueError(f"{column.null_count} values of {column.type} are missing or unknown")
    values: NDArray[Any] = column.to_numpy()
    return values


def _trace(path: Path, header: Header, columns: Mapping[str, NDArray[Any]]) -> Trace:
    """Take plan, events and finish apart, and check them."""
    check_plan(path, header, columns)
    kind, time_s = columns["kind"], columns["time_s"]
    complete = bool((kind[-1:] == CODE["finish"]).any())
    end_s = float(time_s[-1]) if len(time_s) else 0.0
    part = slice(header.planned, len(kind) - complete)
    events = {column: columns[column][part] for column in ("time_s", *COLUMNS)}
    check_events(path, header, events, end_s)
    work = PlannedWork(**{column: columns[column].tolist() for column in PLAN_COLUMNS})
    return Trace(path=path, header=header, work=work, complete=complete, end_s=end_s, **events)

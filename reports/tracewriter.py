"""Records a run as a trace: cheap appends in memory, and files that a killed run leaves readable.

A Parquet file without its footer cannot be read, so nothing is ever half written. While the run lasts, its rows go to
numbered parts, `trace.parts/000000.parquet` and so on, each a whole Parquet file that appears by a rename: part 0 is
the batch plan, the last part is written anew with more rows until it is full. At the end the parts become the row
groups of `trace.parquet`, which appears by a rename too, and then they are removed. What a kill costs is the events
since the last flush. `read_trace` takes either form. Part and row group boundaries depend on the events alone, never
on the clock, so the same events give the same bytes.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq

from policies.trace import CODE, EFFECT_ROWS, INPUT_ROWS, NONE
from reports.observer import Exchange
from reports.tracelayout import FILE, PARTS, PLAN_COLUMNS, ROW_DTYPE, Header, Planned, event_table, plan_table
from reports.writing import destination

ROWS_PER_PART: Final = 1 << 17
"""About 10 000 batches, 4 MB in memory."""

_pack: Final = Struct("<dB6i").pack
_FORMAT: Final = {
    "compression": "zstd",
    "compression_level": 3,
    "write_page_checksum": True,
    "use_dictionary": ["kind", "worker", "lane", "source", "extra", *PLAN_COLUMNS],
}
"""Times, batches and steps come in runs of near values: without a dictionary they take half the space."""


class TraceWriter:
    """An observer that writes `folder/trace.parquet`; an older trace there is removed at once.

    `lanes` are (name, capacity) of the hidden-state hop. With `every_s` the rows are also flushed when events come
    that many seconds of `clock` after the last flush. Not thread-safe: call it under the dispatcher's lock.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        kind: str,
        targets: int,
        drafters: int,
        lanes: Iterable[tuple[str, int]],
        plan: Planned,
        config: Mapping[str, Any],
        every_s: float | None = None,
        rows_per_part: int = ROWS_PER_PART,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        header = Header.of(kind=kind, targets=targets, drafters=drafters, lanes=lanes, plan=plan, config=config)
        self.path = destination(Path(folder) / FILE)
        """Where the trace is once it is closed."""
        self._parts = Path(folder) / PARTS
        self._schema = header.schema()
        self._rows = bytearray()
        self._limit = rows_per_part * ROW_DTYPE.itemsize
        self._number = 0
        self._flushed = 0
        self._every_s = every_s
        self._clock = clock
        self._due = clock() + every_s if every_s is not None else 0.0
        self._open = True
        self._begin(plan)

    # Events ---------------------------------------------------------------------------------------------------

    def observe(self, exchanges: list[Exchange]) -> None:
        """The next exchanges, in order; parts end between two of them."""
        for now, name, arguments, answer in exchanges:
            rows = self._rows
            for row in INPUT_ROWS[name](*arguments):
                rows += _pack(now, *row)
            for effect in answer:
                for row in EFFECT_ROWS[type(effect)](effect):
                    rows += _pack(now, *row)
            if len(rows) >= self._limit:
                self.flush()
                self._next_part()
        if self._every_s is not None and self._clock() >= self._due:
            self.flush()

    def finish(self, now: float) -> None:
        """The run is over at this time [s]: a trace without it reads as the trace of a run that was cut off."""
        self._rows += _pack(now, CODE["finish"], NONE, NONE, NONE, NONE, NONE, NONE)

    # Files ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make what was recorded so far readable. A driver that may hang calls it from its watchdog."""
        if self._every_s is not None:
            self._due = self._clock() + self._every_s
        if self._open and len(self._rows) > self._flushed:
            self._write_part(event_table(bytes(self._rows), self._schema))
            self._flushed = len(self._rows)

    def close(self) -> None:
        """Join the parts into `trace.parquet`; no event may follow. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        with pq.ParquetWriter(temporary, self._schema, **_FORMAT) as writer:
            for table in self._tables():
                writer.write_table(table, row_group_size=max(len(table), 1))
        os.replace(temporary, self.path)
        self._remove_parts()

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, plan: Planned) -> None:
        self._parts.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        for stale in self._parts.iterdir():
            stale.unlink()
        self._write_part(plan_table(plan, self._schema))
        self._next_part()

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:06}.parquet"

    def _write_part(self, table: pa.Table) -> None:
        part = self._part(self._number)
        temporary = part.with_suffix(".tmp")
        pq.write_table(table, temporary, **_FORMAT)
        os.replace(temporary, part)

    def _next_part(self) -> None:
        self._number += 1
        self._rows = bytearray()
        self._flushed = 0

    def _tables(self) -> Iterator[pa.Table]:
        """The full parts, from disk, and the open one, from memory."""
        for number in range(self._number):
            yield pq.read_table(self._part(number), schema=self._schema)
        if self._rows:
            yield event_table(bytes(self._rows), self._schema)

    def _remove_parts(self) -> None:
        for part in self._parts.iterdir():
            part.unlink()
        self._parts.rmdir()

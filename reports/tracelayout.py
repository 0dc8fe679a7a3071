"""What a trace file holds: its header, its columns, and the errors that say why a file is not a trace.

One Parquet table. Its first rows, of kind `plan`, describe the planned batches; the events follow, then one row
`finish`. The schema's metadata carries the header as JSON, so one file is all that metrics and a replay need.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from policies.trace import CODE, COLUMNS, KINDS, NONE, TraceError

FORMAT: Final = 1
"""Raised when a reader of the old format could no longer read the new one."""
FILE: Final = "trace.parquet"
PARTS: Final = "trace.parts"

NAMES: Final = tuple(kind.name for kind in KINDS)
PLAN_COLUMNS: Final = ("tokens", "slots", "samples", "length", "bucket")
ROW_DTYPE: Final = np.dtype(
    [("time_s", "<f8"), ("kind", "u1"), *((column, "<i4") for column in COLUMNS if column != "kind")]
)
"""One row in memory, packed: what the writer's `struct` writes."""

_KEY: Final = b"dflash.trace"
_KIND_TYPE: Final = pa.dictionary(pa.int8(), pa.string())
_FIELDS: Final = (
    pa.field("time_s", pa.float64(), nullable=False),
    pa.field("kind", _KIND_TYPE, nullable=False),
    *(pa.field(column, pa.int32(), nullable=False) for column in COLUMNS if column != "kind"),
    *(pa.field(column, pa.int64()) for column in PLAN_COLUMNS),
)


class Planned(Protocol):
    """What a trace keeps of the batch plan; arrays of N integers, one per batch."""

    @property
    def tokens(self) -> NDArray[np.int64]: ...
    @property
    def slots(self) -> NDArray[np.int64]: ...
    @property
    def samples(self) -> NDArray[np.int64]: ...
    @property
    def length(self) -> NDArray[np.int64]: ...
    @property
    def bucket(self) -> NDArray[Any]: ...
    @property
    def bucket_names(self) -> Sequence[str]: ...
    @property
    def content_hash(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a trace says of its run."""

    kind: str
    """`simulation`, `rehearsal` or `training`."""
    targets: int
    drafters: int
    lanes: tuple[tuple[str, int], ...]
    """(name, capacity) of the hidden-state hop's lanes."""
    buckets: tuple[str, ...]
    """Names of the length buckets."""
    planned: int
    """Number of batches."""
    plan_hash: str
    """Content hash of the batch plan."""
    config: Mapping[str, Any]
    """The resolved pipeline file."""

    @classmethod
    def of(
        cls,
        *,
        kind: str,
        targets: int,
        drafters: int,
        lanes: Iterable[tuple[str, int]],
        plan: Planned,
        config: Mapping[str, Any],
    ) -> "Header":
        """The header of a run of this plan."""
        return cls(
            kind=kind,
            targets=targets,
            drafters=drafters,
            lanes=tuple(lanes),
            buckets=tuple(plan.bucket_names),
            planned=len(plan.tokens),
            plan_hash=plan.content_hash,
            config=config,
        )

    def schema(self) -> pa.Schema:
        """The table's schema, with this header in its metadata. Raises ValueError for a config with NaN."""
        document = {"format": FORMAT, **asdict(self)}
        text = json.dumps(document, sort_keys=True, allow_nan=False, separators=(",", ":"))
        return pa.schema(_FIELDS, metadata={_KEY: text.encode()})


def header_in(schema: pa.Schema, path: Path) -> Header:
    """The header that a file's schema carries. Raises TraceError for a file that is not a trace of this format."""
    text = (schema.metadata or {}).get(_KEY)
    if text is None:
        raise TraceError(path, "it is a Parquet file, but not a trace", "give a trace.parquet or a run's folder")
    try:
        document = json.loads(text)
        version = document.pop("format")
        if version == FORMAT:
            lanes = tuple((str(name), int(capacity)) for name, capacity in document.pop("lanes"))
            return Header(**{**document, "lanes": lanes, "buckets": tuple(document["buckets"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TraceError(path, f"its header is damaged ({error!r})", "record the run again") from error
    raise TraceError(
        path, f"it has format {version!r}, this version reads {FORMAT}", "read it with the version that wrote it"
    )


def event_table(rows: bytes, schema: pa.Schema) -> pa.Table:
    """The table of rows packed as `ROW_DTYPE`; the plan's columns are null."""
    packed = np.frombuffer(rows, ROW_DTYPE)
    kind = pa.DictionaryArray.from_arrays(pa.array(packed["kind"].astype(np.int8)), pa.array(NAMES))
    numbers = [pa.array(np.ascontiguousarray(packed[column])) for column in COLUMNS if column != "kind"]
    empty = [pa.nulls(len(packed), pa.int64())] * len(PLAN_COLUMNS)
    time_s = pa.array(np.ascontiguousarray(packed["time_s"]))
    return pa.Table.from_arrays([time_s, kind, *numbers, *empty], schema=schema)


def plan_table(plan: Planned, schema: pa.Schema) -> pa.Table:
    """The table's first rows: one of kind `plan` for each batch, at time 0."""
    count = len(plan.tokens)
    rows = np.zeros(count, ROW_DTYPE)
    for column in COLUMNS:
        rows[column] = NONE if column != "kind" else CODE["plan"]
    rows["batch"] = np.arange(count)
    table = event_table(rows.tobytes(), schema)
    columns = [pa.array(np.asarray(getattr(plan, column), np.int64)) for column in PLAN_COLUMNS]
    return pa.Table.from_arrays([*table.columns[: -len(columns)], *columns], schema=schema)


__all__ = [
    "FILE",
    "FORMAT",
    "NAMES",
    "PARTS",
    "PLAN_COLUMNS",
    "ROW_DTYPE",
    "Header",
    "Planned",
    "TraceError",
    "event_table",
    "header_in",
    "plan_table",
]

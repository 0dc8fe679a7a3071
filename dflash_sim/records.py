"""The workers' own records of a real run, joined with its trace on the batch.

They lie in the folder `records` beside the trace: `target-0.csv` with lines `computed,17`, `drafter-1.csv` with
`taken,17`.
A launcher could tell a consistent story that never happened. So every worker writes down by itself what it computed or
took, and each `offer` and `Deliver` of the trace must be matched by one line, and each line by one of them.
"""

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dflash_sim.folders import RECORDS
from policies.trace import CODE, REASONS, TraceError
from reports.tracefile import Trace

__all__ = ["RECORDS", "check_records"]

I64 = NDArray[np.int64]
_DIGITS: Final = 10
"""Of the largest number that a trace can give a batch."""
_KINDS: Final = {"target": ("offer", "assign"), "drafter": ("received", "deliver")}
"""By role, the events that say what a worker did at least, and at most."""


def check_records(trace: Trace, folder: Path) -> list[str]:
    """What trace and records do not agree on, a sentence each; empty where they match.

    In a run that went to its end, every offer and every delivery has its line. A worker that was lost, and any worker
    of a run that was stopped early, may have done something that the launcher never heard of, or not have read its
    last mail. Where the trace was cut off the workers know more than it does. Raises TraceError for a file that
    is no record.
    """
    told = _Told(trace)
    files = {file.stem.replace("-", "/"): file for file in folder.glob("*.csv")}
    faults: list[str] = []
    for worker in sorted(files.keys() | told.workers):
        recorded = _recorded(worker, files[worker]) if worker in files else np.zeros(0, np.int64)
        faults += _compared(worker, told, recorded)
    return faults


class _Told:
    """What a trace says of its workers: one at a time, so that a run of weeks fits in little memory."""

    def __init__(self, trace: Trace) -> None:
        header = trace.header
        self.complete = trace.complete
        self.workers = {f"target/{t}" for t in range(header.targets)}
        self.workers |= {f"drafter/{d}" for d in range(header.drafters)}
        self.stopped = not np.any((trace.kind == CODE["end"]) & (trace.extra == REASONS.index("data_exhausted")))
        """Whether the run did not go to the end of its data."""
        self._rows: dict[str, tuple[NDArray[np.int32], NDArray[np.int32]]] = {}
        for kind in ("offer", "assign", "received", "deliver", "recall", "target_lost", "drafter_lost"):
            there = trace.kind == CODE[kind]
            self._rows[kind] = (trace.worker[there], trace.batch[there])

    def batches(self, kind: str, worker: str) -> I64:
        """The batches of these events of a worker."""
        workers, batches = self._rows[kind]
        return batches[workers == _number(worker)].astype(np.int64) if worker in self.workers else np.zeros(0, np.int64)

    def lost(self, worker: str) -> bool:
        """Whether the worker was lost on the way."""
        return worker in self.workers and _number(worker) in self._rows[f"{_role(worker)}_lost"][0]


def _role(worker: str) -> str:
    return "target" if worker.startswith("target") else "drafter"


def _number(worker: str) -> int:
    return int(worker.partition("/")[2])


def _compared(worker: str, told: _Told, recorded: I64) -> Iterator[str]:
    """A recall may not have been read by its drafter before it took the batch."""
    role = _role(worker)
    least, most = (told.batches(kind, worker) for kind in _KINDS[role])
    recalled = told.batches("recall", worker) if role == "drafter" else recorded[:0]
    batches, counts = _counted(recorded=recorded, least=least, most=most, recalled=recalled)
    loose = told.stopped or told.lost(worker)
    low = counts["least"] if loose or role == "target" else counts["most"] - counts["recalled"]
    high = counts["most"] if loose or role == "drafter" else counts["least"]
    if not told.complete:
        high = np.maximum(high, counts["recorded"])
    for at in np.flatnonzero((counts["recorded"] < low) | (counts["recorded"] > high)):
        times = f"{low[at]}" if low[at] == high[at] else f"{low[at]} to {high[at]}"
        own = f"{counts['recorded'][at]} in the worker's own records"
        yield f"{worker}, batch {batches[at]}: {times} by the trace, {own}"


def _counted(**lists: I64) -> tuple[I64, Mapping[str, I64]]:
    """All batches that occur, rising, and how often each is in each list."""
    batches = np.unique(np.concatenate(list(lists.values())))
    counts = {name: np.bincount(np.searchsorted(batches, each), minlength=len(batches)) for name, each in lists.items()}
    return batches, counts


def _recorded(worker: str, file: Path) -> I64:
    """The batches of a worker's own lines; what follows the last line end was cut off by a kill."""
    did = b"computed" if _role(worker) == "target" else b"taken"
    found = array("q")
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            word, _, batch = line[:-1].partition(b",")
            if word != did or not batch.isdigit() or len(batch) > _DIGITS:
                wrong = f"line {number} is {line[:-1][:40]!r}, not `{did.decode()},` and a batch"
                raise TraceError(file, wrong, "replay the run's folder as it was written")
            found.append(int(batch))
    return np.array(found, np.int64)

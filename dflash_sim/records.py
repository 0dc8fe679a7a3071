"""The workers' own records of a real run, joined with its trace on the batch.

They lie in the folder `records` beside the trace: `target-0.csv` with lines `computed,17`, `drafter-1.csv` with
`taken,17`.
A launcher could tell a consistent story that never happened. So every worker writes down by itself what it computed or
took, and each `offer` and `Deliver` of the trace must be matched by one line, and each line by one of them.
"""

from collections import Counter
from pathlib import Path

from dflash_sim.folders import RECORDS
from policies.effects import Assign, Deliver, End, Recall
from policies.trace import Input, TraceError
from reports.tracefile import Trace

__all__ = ["RECORDS", "check_records"]

Work = Counter[tuple[str, int]]
"""(worker, batch) → how often: a batch that was computed again counts again."""


def check_records(trace: Trace, folder: Path) -> list[str]:
    """What trace and records do not agree on, a sentence each; empty where they match.

    In a run that went to its end, every offer and every delivery has its line. A worker that was lost, and any worker
    of a run that was stopped early, may have done something that the launcher never heard of, or not have read its
    last mail. Where the trace was cut off the workers know more than it does. Raises TraceError for a file that
    is no record.
    """
    least, most, recalled, lost = _told(trace)
    recorded = _recorded(folder)
    stopped = not _ran_out(trace)
    faults = []
    for key in sorted(least.keys() | most.keys() | recorded.keys()):
        worker, batch = key
        loose = stopped or worker in lost
        low = least[key] if loose or worker.startswith("target") else most[key] - recalled[key]
        high = most[key] if loose or worker.startswith("drafter") else least[key]
        if not trace.complete:
            high = max(high, recorded[key])
        if not low <= recorded[key] <= high:
            times = f"{low}" if low == high else f"{low} to {high}"
            faults.append(f"{worker}, batch {batch}: {times} by the trace, {recorded[key]} in the worker's own records")
    return faults


def _told(trace: Trace) -> tuple[Work, Work, Work, set[str]]:
    """What each worker has done at least (offered, received), and at most (assigned, delivered).

    Then what was recalled, which its drafter may not have read before; and who was lost.
    """
    least, most, recalled = Work(), Work(), Work()
    lost: set[str] = set()
    for _, event in trace.events():
        match event:
            case Input(name="offer", args=(target, batch)):
                least[f"target/{target}", batch] += 1
            case Assign(target=target, batch=batch):
                most[f"target/{target}", batch] += 1
            case Input(name="received", args=(drafter, batch)):
                least[f"drafter/{drafter}", batch] += 1
            case Deliver(drafter=drafter, batch=batch):
                most[f"drafter/{drafter}", batch] += 1
            case Recall(drafter=drafter, batch=batch):
                recalled[f"drafter/{drafter}", batch] += 1
            case Input(name="target_lost", args=(number,)):
                lost.add(f"target/{number}")
            case Input(name="drafter_lost", args=(number,)):
                lost.add(f"drafter/{number}")
    return least, most, recalled, lost


def _ran_out(trace: Trace) -> bool:
    """Whether the run went to the end of its data."""
    return any(isinstance(event, End) and event.reason == "data_exhausted" for _, event in trace.events())


def _recorded(folder: Path) -> Work:
    found: Work = Counter()
    for file in sorted(folder.glob("*.csv")):
        worker = file.stem.replace("-", "/")
        did = "computed" if worker.startswith("target") else "taken"
        lines = file.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):  # what follows the last line end was cut off by a kill
            word, _, batch = line.partition(b",")
            if word != did.encode() or not batch.isdigit():
                wrong = f"line {number} is {line[:40]!r}, not `{did},` and a batch"
                raise TraceError(file, wrong, "replay the run's folder as it was written")
            found[worker, int(batch)] += 1
    return found

"""The workers' own records of a real run, joined with its trace on the batch.

A launcher could tell a consistent story that never happened. So every worker writes down by itself what it computed or
took, and each `offer` and `Deliver` of the trace must be matched by one line, and each line by one of them.
"""

from collections import Counter
from pathlib import Path
from typing import Final

from policies.effects import Deliver
from policies.trace import Input
from reports.tracefile import Trace

RECORDS: Final = "records"
"""Folder of the records beside a trace: `target-0.csv`, lines `computed,17`; `drafter-1.csv`, lines `taken,17`."""

Work = Counter[tuple[str, int]]
"""(worker, batch) → how often: a batch that was computed again counts again."""


def check_records(trace: Trace, folder: Path) -> list[str]:
    """What trace and records do not agree on, a sentence each; empty where they match.

    A worker that was lost may have recorded what the launcher never heard of, but not the other way round. So may any
    worker of a run that was stopped.
    """
    told, lost = _told(trace)
    recorded = _recorded(folder)
    whole = trace.complete and not _was_stopped(trace)
    faults = []
    for worker, batch in sorted(told.keys() | recorded.keys()):
        said, wrote = told[worker, batch], recorded[worker, batch]
        if wrote < said or (wrote > said and whole and worker not in lost):
            faults.append(f"{worker}, batch {batch}: {said} in the trace, {wrote} in the worker's own records")
    return faults


def _told(trace: Trace) -> tuple[Work, set[str]]:
    told: Work = Counter()
    lost: set[str] = set()
    for _, event in trace.events():
        match event:
            case Input(name="offer", args=(target, batch)):
                told[f"target/{target}", batch] += 1
            case Deliver(drafter=drafter, batch=batch):
                told[f"drafter/{drafter}", batch] += 1
            case Input(name="target_lost", args=(number,)):
                lost.add(f"target/{number}")
            case Input(name="drafter_lost", args=(number,)):
                lost.add(f"drafter/{number}")
    return _without_untaken(told, lost), lost


def _without_untaken(told: Work, lost: set[str]) -> Work:
    """A lost drafter may never have read what was delivered to it last."""
    return Counter({key: count for key, count in told.items() if not (key[0] in lost and key[0].startswith("drafter"))})


def _was_stopped(trace: Trace) -> bool:
    return any(isinstance(event, Input) and event.name == "stop" for _, event in trace.events())


def _recorded(folder: Path) -> Work:
    found: Work = Counter()
    for file in sorted(folder.glob("*.csv")):
        worker = file.stem.replace("-", "/")
        for line in file.read_text(encoding="ascii").splitlines():
            _, _, batch = line.partition(",")
            if batch.isdecimal():
                found[worker, int(batch)] += 1
    return found

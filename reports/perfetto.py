"""Exports a trace as Chrome JSON, for ui.perfetto.dev: what every worker did when, and how full the lanes were.

The states are the accumulator's own: its meters report each change, so a picture can
never disagree with the summary. Events are written as they are found; the file may be larger than memory.
"""

import json
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from policies.effects import Assign, Deliver, Drop, Effect, Loaded, Recall, Step
from policies.trace import CODE
from reports.metrics import BLOCKED, BUSY, STATES, TRANSFER, Metrics, WorkerMeter
from reports.observer import Exchange
from reports.tracefile import Trace, feed
from reports.writing import replacing

PROCESSES: Final = ("loader", "targets", "drafters", "lanes", "training")
"""Groups of tracks, in order; a process's number is its place, from 1."""
_LOADER, _TARGETS, _DRAFTERS, _LANES, _TRAINING = range(1, 6)
_RATES: Final = 200
"""Points of the counter of trained tokens per second."""

Emit = Callable[[dict[str, Any]], object]


def export_perfetto(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the trace to `path` as one JSON document; times in it are microseconds from the start."""
    with replacing(Path(path)) as whole, whole.open("w", encoding="ascii") as file:
        _write(trace, file)


def _write(trace: Trace, file: TextIO) -> None:
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    timeline = _Timeline(trace, lambda event: file.write(",\n" + encode(event)))
    file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    file.write(",\n".join(encode(event) for event in _names(trace, timeline.loader_timed)))
    timeline.finish(feed(trace, timeline))
    file.write("\n]}\n")


def _names(trace: Trace, loader: bool) -> list[dict[str, Any]]:
    """Metadata: the processes and threads, in the order they are to be shown."""
    header = trace.header
    workers = {_TARGETS: ("target", header.targets), _DRAFTERS: ("drafter", header.drafters)}
    if loader:
        workers[_LOADER] = ("loader", 1)
    events = []
    for pid, process in enumerate(PROCESSES, 1):
        if pid == _LOADER and not loader:
            continue
        events += _named("process", pid, 0, process, pid)
        role, count = workers.get(pid, ("", 0))
        for k in range(count):
            events += _named("thread", pid, k + 1, role if pid == _LOADER else f"{role}/{k}", k)
    return events


def _named(what: str, pid: int, tid: int, name: str, order: int) -> list[dict[str, Any]]:
    common = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**common, "name": f"{what}_name", "args": {"name": name}},
        {**common, "name": f"{what}_sort_index", "args": {"sort_index": order}},
    ]


class _Timeline:
    """Feeds the accumulator, and follows which batch each worker is at, to name the spans."""

    def __init__(self, trace: Trace, emit: Emit) -> None:
        header = trace.header
        self.loader_timed = _loader_timed(trace)
        self._emit = emit
        self._loader_since = 0.0
        self._at_target: list[int | None] = [None] * header.targets
        self._at_drafter: list[deque[int]] = [deque() for _ in range(header.drafters)]
        """Delivered and not computed, in order."""
        self._step_of: dict[int, int] = {}
        """The step that a drafter applies."""
        self._metrics = Metrics(targets=header.targets, drafters=header.drafters, lanes=header.lanes, work=trace.work)
        for t, meter in enumerate(self._metrics.targets):
            self._watch(meter, _TARGETS, t, self._target_label)
        for d, meter in enumerate(self._metrics.drafters):
            self._watch(meter, _DRAFTERS, d, self._drafter_label)
        self._shown: dict[str, int] = {}
        """The depth of each lane that was reported last."""
        for lane in self._metrics.lanes:
            lane.changed = partial(self._show, lane.name)

    def observe(self, exchanges: list[Exchange]) -> None:
        """The next exchanges: the accumulator first, since a span that ends is named by what was true before."""
        for now, name, arguments, answer in exchanges:
            self._metrics.observe([(now, name, arguments, [])])
            self._input(now, name, arguments)
            for effect in answer:
                self._metrics.observe([(now, "", (), [effect])])
                self._effect(now, effect)

    def _input(self, now: float, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "computed":
            self._at_drafter[arguments[0]].popleft()
        elif name == "commit":
            self._stepped(arguments[0])
        elif name == "load":
            self._loader(now, "busy", arguments[0])

    def _effect(self, now: float, effect: Effect) -> None:
        match effect:
            case Loaded(batch=batch):
                self._loader(now, "blocked", batch)
            case Assign(target=target, batch=batch):
                self._at_target[target] = batch
            case Deliver(drafter=drafter, batch=batch):
                self._at_drafter[drafter].append(batch)
            case Recall(drafter=drafter, batch=batch):
                self._at_drafter[drafter].remove(batch)
            case Step(step=step, drafters=drafters):
                self._step_of.update(dict.fromkeys(drafters, step))
            case Drop(step=step):
                self._stepped(step)

    def finish(self, now: float) -> None:
        """The run is over: end what is open, and add what is known only now."""
        self._metrics.finish(now)
        for lane in self._metrics.lanes:
            self._show(lane.name, lane.since, lane.depth)
        self._rates(now)

    def _stepped(self, step: int) -> None:
        self._step_of = {drafter: other for drafter, other in self._step_of.items() if other != step}

    # Tracks ---------------------------------------------------------------------------------------------------

    def _watch(self, meter: WorkerMeter, pid: int, worker: int, label: Callable[[int, int], dict[str, int]]) -> None:
        meter.ended = lambda state, start, end: self._span(
            pid, worker + 1, STATES[state], start, end, label(worker, state)
        )

    def _show(self, lane: str, now: float, depth: int) -> None:
        """Report the lane's depth, unless it is the one reported last."""
        if self._shown.get(lane) != depth:
            self._shown[lane] = depth
            self._counter(_LANES, lane, now, {"batches": depth})

    def _target_label(self, target: int, state: int) -> dict[str, int]:
        batch = self._at_target[target]
        return {} if batch is None or state not in (BUSY, BLOCKED) else {"batch": batch}

    def _drafter_label(self, drafter: int, state: int) -> dict[str, int]:
        if state == BUSY and drafter in self._step_of:
            return {"step": self._step_of[drafter]}
        waiting = self._at_drafter[drafter]
        return {"batch": waiting[0]} if waiting and state in (BUSY, TRANSFER) else {}

    def _loader(self, now: float, state: str, batch: int) -> None:
        if self.loader_timed and now > self._loader_since:
            self._span(_LOADER, 1, state, self._loader_since, now, {"batch": batch})
        self._loader_since = now

    def _rates(self, end: float) -> None:
        """Tokens trained per second, averaged over the parts of the run."""
        if end <= 0:
            return
        times, tokens = np.asarray(self._metrics.times), np.asarray(self._metrics.trained_tokens)
        sums, edges = np.histogram(times, bins=_RATES, range=(0.0, end), weights=tokens)
        for start, total in zip(edges.tolist(), sums.tolist(), strict=False):
            self._counter(_TRAINING, "tokens/s", start, {"tokens/s": round(total * _RATES / end, 3)})

    def _span(self, pid: int, tid: int, state: str, start: float, end: float, args: dict[str, int]) -> None:
        name = " ".join([state, *(f"{key} {value}" for key, value in args.items())])
        ts = _microseconds(start)
        dur = round(_microseconds(end) - ts, 3)
        self._emit({"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": state, "ts": ts, "dur": dur, "args": args})

    def _counter(self, pid: int, name: str, now: float, args: dict[str, float]) -> None:
        self._emit({"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": _microseconds(now), "args": args})


def _loader_timed(trace: Trace) -> bool:
    """Whether loading took time: a batch was offered later than its predecessor was admitted."""
    of_loader = np.isin(trace.kind, (CODE["load"], CODE["loaded"]))
    kind, time_s = trace.kind[of_loader], trace.time_s[of_loader]
    waited = np.diff(time_s, prepend=0.0) > 0
    return bool((waited & (kind == CODE["load"])).any())


def _microseconds(seconds: float) -> float:
    """To the nanosecond."""
    return round(seconds * 1e6, 3)

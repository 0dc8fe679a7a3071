"""What every worker did when, from a trace's columns: the accumulator's states, for all events at once.

`reports.metrics` steps through the events and is the rule; a test holds the two against each other. Here a target's
state follows from its last event. A drafter's follows from the batches in its hand: busy while one has arrived, in
transfer while one is on the way, else starved; joined to a step it is in sync, applying it busy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.trace import CODE, KINDS
from reports.metrics import BLOCKED, BUSY, STARVED, STATES, SYNC, TRANSFER
from reports.recorded import Recorded

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

_TURNS: Final = {"assign": BUSY, "offer": BLOCKED, "admit": STARVED}
_KEEPS, _NONE, _JOINED, _STEPPING = 0, 1, 2, 3
_OVERLAY: Final = {"computed": _NONE, "drop": _NONE, "commit": _NONE, "join": _JOINED, "step": _STEPPING}
_HAND: Final = {"deliver": 1, "computed": -1, "recall": -1}
_READY: Final = {"received": 1, "computed": -1}


@dataclass(frozen=True, eq=False)
class WorkerSpans:
    """One worker's life as S spans, end to end from 0 to `end_s`; each takes time."""

    name: str
    start_s: F64
    """float64[S]"""
    state: U8
    """uint8[S], index into `reports.metrics.STATES`."""
    stepping: NDArray[np.bool_]
    """bool[S]: busy with an optimizer step, not with a batch."""
    end_s: float
    stuck_s: float = 0.0
    """Seconds of the state in which the life ended."""

    @property
    def edges(self) -> F64:
        """float64[S + 1]"""
        return np.append(self.start_s, self.end_s) if len(self.start_s) else np.zeros(1)

    def seconds(self) -> F64:
        """float64[5]: seconds in each state."""
        return np.asarray(np.bincount(self.state, weights=np.diff(self.edges), minlength=len(STATES)), np.float64)

    def shares(self, edges: F64) -> F64:
        """float64[5, K]: the share of each of K bins [edges[k], edges[k + 1]] that the worker spent in each state."""
        mine, width = self.edges, np.diff(self.edges)
        spent = np.zeros((len(STATES), len(mine)))
        for state in range(len(STATES)):
            spent[state, 1:] = np.cumsum(np.where(self.state == state, width, 0.0))
        at = np.array([np.interp(edges, mine, each) for each in spent])
        shares: F64 = np.diff(at, axis=1) / np.diff(edges)
        return shares

    def between(self, start_s: float, end_s: float) -> "WorkerSpans":
        """The spans that touch this stretch of time, cut to it."""
        edges = self.edges
        first = max(int(np.searchsorted(edges, start_s, side="right")) - 1, 0)
        last = int(np.searchsorted(edges[:-1], end_s, side="left"))
        part = slice(first, last)
        starts = np.maximum(self.start_s[part], start_s)
        return WorkerSpans(self.name, starts, self.state[part], self.stepping[part], min(self.end_s, end_s))


def worker_spans(recorded: Recorded) -> list[WorkerSpans]:
    """The targets, then the drafters."""
    return [*_targets(recorded), *_drafters(recorded)]


@dataclass(frozen=True, eq=False)
class Turns:
    """Events that may change one worker's state, R in order."""

    row: I64
    time_s: F64
    state: U8
    """What the worker does after each."""
    stepping: NDArray[np.bool_]

    def before(self, row: int) -> "Turns":
        """Those before a row of the trace."""
        count = int(np.searchsorted(self.row, row))
        return Turns(self.row[:count], self.time_s[:count], self.state[:count], self.stepping[:count])


def target_turns(recorded: Recorded) -> list[Turns]:
    """Each target's turns."""
    rows = recorded.rows(*_TURNS)
    states = _by_kind(_TURNS).astype(np.uint8)[recorded.kind[rows]]
    found = []
    for mine in _split(recorded.worker[rows], recorded.header.targets):
        idle = np.zeros(len(mine), np.bool_)
        found.append(Turns(rows[mine], recorded.time_s[rows[mine]], states[mine], idle))
    return found


def drafter_turns(recorded: Recorded) -> list[Turns]:
    """Each drafter's turns; a commit frees everyone that applied its step."""
    rows = recorded.rows("deliver", "received", "computed", "join", "step", "drop", "recall")
    rows = rows[recorded.worker[rows] >= 0]
    members = recorded.rows("step")
    members = members[recorded.worker[members] >= 0]
    freed_at = _commit_rows(recorded)[recorded.step[members]] if len(members) else members
    freed = freed_at >= 0
    row = np.concatenate([rows, freed_at[freed]])
    worker = np.concatenate([recorded.worker[rows], recorded.worker[members[freed]]])
    found = []
    for mine in _split(worker, recorded.header.drafters):
        mine = mine[np.argsort(row[mine], kind="stable")]
        found.append(_drafter(recorded, row[mine]))
    return found


def _drafter(recorded: Recorded, row: I64) -> Turns:
    kind = recorded.kind[row]
    hand, ready = np.cumsum(_by_kind(_HAND)[kind]), np.cumsum(_by_kind(_READY)[kind])
    overlay = _by_kind(_OVERLAY)[kind]
    said = np.maximum.accumulate(np.where(overlay != _KEEPS, np.arange(len(row)), 0)) if len(row) else row
    overlay = overlay[said]
    idle = np.where(ready > 0, BUSY, np.where(hand > 0, TRANSFER, STARVED))
    state = np.where(overlay == _STEPPING, BUSY, np.where(overlay == _JOINED, SYNC, idle)).astype(np.uint8)
    return Turns(row, recorded.time_s[row], state, overlay == _STEPPING)


def _targets(recorded: Recorded) -> list[WorkerSpans]:
    lost, left = _lost_rows(recorded, "target_lost", recorded.header.targets), _left(recorded)
    found = []
    for t, turns in enumerate(target_turns(recorded)):
        turns, end_s = _life(recorded, turns, lost[t])
        retired = lost[t] < 0 and left == 0 and (not len(turns.state) or turns.state[-1] == STARVED)
        if retired:
            end_s = float(turns.time_s[-1]) if len(turns.state) else 0.0
        found.append(_spans(f"target/{t}", turns, end_s))
    return found


def _drafters(recorded: Recorded) -> list[WorkerSpans]:
    lost = _lost_rows(recorded, "drafter_lost", recorded.header.drafters)
    lives = (_life(recorded, turns, lost[d]) for d, turns in enumerate(drafter_turns(recorded)))
    return [_spans(f"drafter/{d}", turns, end_s) for d, (turns, end_s) in enumerate(lives)]


def _life(recorded: Recorded, turns: Turns, lost_row: int) -> tuple[Turns, float]:
    """The turns until the worker was lost, if it was, and the end of its life."""
    if lost_row < 0:
        return turns, recorded.end_s
    return turns.before(lost_row), float(recorded.time_s[lost_row])


def _spans(name: str, turns: Turns, end_s: float) -> WorkerSpans:
    start = np.concatenate([[0.0], turns.time_s])
    state = np.concatenate([[STARVED], turns.state]).astype(np.uint8)
    stepping = np.concatenate([[False], turns.stepping])
    lasts = np.append(start[1:], end_s) > start
    return WorkerSpans(name, start[lasts], state[lasts], stepping[lasts], end_s, end_s - float(start[-1]))


def _left(recorded: Recorded) -> int:
    """Batches that no target has been given, or that must be given again."""
    return recorded.header.planned - len(recorded.rows("assign")) + len(recorded.rows("recompute"))


def _lost_rows(recorded: Recorded, kind: str, count: int) -> list[int]:
    """The row in which each worker was lost; -1 for the others."""
    found = [-1] * count
    for row in recorded.rows(kind).tolist():
        found[recorded.worker[row]] = row
    return found


def _commit_rows(recorded: Recorded) -> I64:
    """The row in which each step was committed, by step; -1 where it was not."""
    rows = recorded.rows("commit")
    steps = recorded.step[recorded.rows("step", "commit")]
    found = np.full(int(steps.max(initial=-1)) + 1, -1, np.int64)
    found[recorded.step[rows][::-1]] = rows[::-1]  # the first row of each step is the last to be written
    return found


def _by_kind(values: dict[str, int]) -> I64:
    """A table from a kind's code to its value, 0 for the others."""
    table = np.zeros(len(KINDS), np.int64)
    for kind, value in values.items():
        table[CODE[kind]] = value
    return table


def _split(worker: NDArray[np.int16], count: int) -> Sequence[I64]:
    """The positions of each worker's rows, in order."""
    order = np.argsort(worker, kind="stable")
    return np.split(order, np.searchsorted(worker[order], np.arange(1, count)))

"""How long batches took, from a trace's columns: one number for every batch that a worker finished."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.trace import CODE
from reports.metrics import BUSY, STARVED, TRANSFER
from reports.recorded import Recorded
from reports.spans import Turns, drafter_turns, target_turns

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Durations:
    """The batches that one worker finished, in order; Q of them."""

    name: str
    batch: I64
    end_s: F64
    """When it was done."""
    busy_s: F64
    """Seconds of computing; optimizer steps are not in it."""
    transfer_s: F64
    """Seconds of exposed copying."""


def durations(recorded: Recorded) -> list[Durations]:
    """The targets, then the drafters."""
    turns = [(f"target/{t}", each) for t, each in enumerate(target_turns(recorded))]
    turns += [(f"drafter/{d}", each) for d, each in enumerate(drafter_turns(recorded))]
    return [_worker(recorded, name, each) for name, each in turns]


def step_seconds(recorded: Recorded) -> F64:
    """Seconds from the moment all had joined a step to its commit; one number for each step that was applied."""
    begun, done = recorded.rows("step"), recorded.rows("commit")
    count = int(recorded.step[begun].max(initial=-1)) + 1
    start, end = np.full(count, np.nan), np.full(count, np.nan)
    start[recorded.step[begun]] = recorded.time_s[begun]
    known = recorded.step[done] < count
    end[recorded.step[done[known]]] = recorded.time_s[done[known]]
    taken: F64 = (end - start)[~np.isnan(end - start)]
    return taken


def _worker(recorded: Recorded, name: str, turns: Turns) -> Durations:
    done = np.isin(recorded.kind[turns.row], (CODE["offer"], CODE["computed"]))
    during, width = _before(turns.state, STARVED), np.diff(turns.time_s, prepend=0.0)
    computing = (during == BUSY) & (_before(turns.stepping, 0) == 0)
    busy = np.cumsum(np.where(computing, width, 0.0))[done]
    transfer = np.cumsum(np.where(during == TRANSFER, width, 0.0))[done]
    return Durations(
        name=name,
        batch=recorded.batch[turns.row[done]].astype(np.int64),
        end_s=turns.time_s[done],
        busy_s=np.diff(busy, prepend=0.0),
        transfer_s=np.diff(transfer, prepend=0.0),
    )


def _before(values: NDArray[Any], first: int) -> NDArray[Any]:
    """What held between the turn before and each turn."""
    return np.concatenate([np.array([first], values.dtype), values[:-1]])[: len(values)]

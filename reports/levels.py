"""Levels over time (batches in a lane, bytes in a memory) from a trace's columns, and their honest down-sampling.

A level is a step function. A long one is shown by bins of equal time: its mean in each, exactly, and the least and the
most it reached there, so that no peak is lost however wide a bin is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.ledger import STAGED
from policies.sections.limits import Memory
from policies.trace import CODE
from reports.memory import TAKER, batch_bytes, pinned_bytes
from reports.recorded import Recorded
from reports.summaryfile import section

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Level:
    """A level that is 0 at first and `value[k]` from `time_s[k]` on, until `end_s`; C changes, in order."""

    name: str
    time_s: F64
    value: I64
    end_s: float
    capacity: int | None = None
    """The most it may be; None where nothing limits it."""

    @property
    def most(self) -> int:
        return int(self.value.max(initial=0))

    @property
    def mean(self) -> float | None:
        """The average over time; None for a run that took none."""
        return float(self._area(np.array([self.end_s]))[0]) / self.end_s if self.end_s > 0 else None

    def binned(self, edges: F64) -> "BinnedLevel":
        """Mean, least and most in each of K bins [edges[k], edges[k + 1]]."""
        mean = np.diff(self._area(edges)) / np.diff(edges)
        before = np.searchsorted(self.time_s, edges, side="right")
        least, most = np.empty(len(mean), np.int64), np.empty(len(mean), np.int64)
        held = np.append(0, self.value)
        for k in range(len(mean)):  # from what it holds when the bin begins to the last change in it
            part = held[before[k] : before[k + 1] + 1]
            least[k], most[k] = part.min(), part.max()
        return BinnedLevel(self.name, edges, mean, least, most, self.capacity)

    def _area(self, at: F64) -> F64:
        """The integral of the level from 0 to each of these times."""
        times = np.concatenate([[0.0], self.time_s, [self.end_s]])
        levels = np.append(0, self.value)
        areas = np.append(0.0, np.cumsum(levels * np.diff(times)))
        after = np.minimum(np.searchsorted(times[1:-1], at, side="right"), len(levels) - 1)
        area: F64 = areas[after] + levels[after] * (np.minimum(at, self.end_s) - times[after])
        return area


@dataclass(frozen=True, eq=False)
class BinnedLevel:
    """A level in K bins of time."""

    name: str
    edges: F64
    mean: F64
    least: I64
    most: I64
    capacity: int | None


def lane_levels(recorded: Recorded) -> list[Level]:
    """How many batches wait in each lane; a batch that is handed over in the same instant counts."""
    rows = recorded.rows("admit", "deliver", "put_back", "recompute")
    kind = recorded.kind[rows]
    staged = (kind != CODE["recompute"]) | (recorded.extra[rows] == STAGED)
    rows, kind = rows[staged], kind[staged]
    change = np.where(np.isin(kind, (CODE["admit"], CODE["put_back"])), 1, -1)
    found = []
    for number, (name, capacity) in enumerate(recorded.header.lanes):
        mine = recorded.lane[rows] == number
        values = np.cumsum(change[mine])
        found.append(Level(name, recorded.time_s[rows[mine]], values, recorded.end_s, capacity))
    return found


def memory_levels(recorded: Recorded) -> list[Level]:
    """Bytes of hidden states in host memory, on each target and on each drafter, as `reports.memory` counts them.

    Memories in which nothing ever lay are left out; a drafter's model is not
    counted. Empty where the file gives no size of hidden states, or where only a policy of the user's knows on which
    device they lie. Raises ValueError for a trace whose `memory` is not of this version.
    """
    memory = Memory.model_validate(recorded.header.config.get("memory", {}))
    sizes = batch_bytes(memory, recorded.plan["slots"])
    places = _moves(recorded, memory)
    if sizes is None or places is None:
        return []
    on_host = pinned_bytes(sizes) if memory.pinned else sizes
    rows, store = places
    batch = recorded.batch[rows]
    order = np.argsort(batch, kind="stable")
    before = np.full(len(rows), -1, np.int64)
    same = batch[order][1:] == batch[order][:-1]
    before[order[1:]] = np.where(same, store[order[:-1]], -1)
    levels = []
    for number, (name, limit) in enumerate(_stores(recorded, memory)):
        comes, goes = store == number, before == number
        moved = comes != goes
        change = np.where(comes, 1, -1)[moved] * (sizes if number else on_host)[batch[moved]]
        if moved.any():
            levels.append(Level(name, recorded.time_s[rows[moved]], np.cumsum(change), recorded.end_s, limit))
    return levels


def _stores(recorded: Recorded, memory: Memory) -> list[tuple[str, int | None]]:
    header = recorded.header
    devices = [f"drafter/{d}" for d in range(header.drafters)] + [f"target/{t}" for t in range(header.targets)]
    return [("host", memory.host_limit), *((name, memory.device_limit) for name in devices)]


def _moves(recorded: Recorded, memory: Memory) -> tuple[I64, I64] | None:
    """The rows in which a batch comes to lie somewhere, and where: 0 host, 1 + d, 1 + D + t; -1 nowhere."""
    header = recorded.header
    rows = recorded.rows("offer", "admit", "received", "computed", "recompute")
    kind, worker = recorded.kind[rows], recorded.worker[rows].astype(np.int64)
    offer, admit, received = (kind == CODE[name] for name in ("offer", "admit", "received"))
    store = np.full(len(rows), -1, np.int64)
    store[offer] = 1 + header.drafters + worker[offer]
    store[received] = 1 + worker[received]
    if memory.staging == "host":
        store[offer | admit] = 0
    elif section(header.config, "dispatch").get("placement") == TAKER:
        store[admit] = 1 + header.drafters + worker[admit]
    else:
        readers = lane_readers(recorded)
        if readers is None:
            return None
        home = np.array([-1 if reader is None else reader for reader in readers])[recorded.lane[rows[admit]]]
        store[admit] = 1 + np.where(home < 0, worker[admit] % header.drafters, home)
    return rows, store


def lane_readers(recorded: Recorded) -> list[int | None] | None:
    """The only drafter that takes from each lane, None where all do; None for a policy that is not built in."""
    match section(recorded.header.config, "dispatch").get("policy"):
        case "round_robin" | "rotating":
            return list(range(len(recorded.header.lanes)))
        case "shared" | "bucketed":
            return [None] * len(recorded.header.lanes)
    return None

"""A profile put together: processes as a training starts them, measured by a script, written as measured timings."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from dflash_run.crew import Worker
from dflash_run.messages import Ready
from dflash_run.profiling.grid import Cell, grid
from dflash_run.profiling.jobs import be_drafter, be_target
from dflash_run.profiling.machine import all_settings, all_versions, machine
from dflash_run.profiling.measuring import Effort, Found, Measuring
from dflash_run.profiling.pairs import Pair, Trio, pairs_of, trio_of
from dflash_run.profiling.stage import Stage
from dflash_run.training.preparation import Preparation
from dflash_run.training.train import START_S, Hire, orders_for, processes
from dflash_run.transport.memory import SharedMemory
from dflash_run.transport.slots import SlotTable
from dflash_sim.folders import scratch
from dflash_sim.settings import PROCESSES
from dflash_sim.timings_file import Profile, build_profile

WORK: Final = {"target": be_target, "drafter": be_drafter}

Progress = Callable[[str], None]
"""Told what is being measured."""


def work_beside(out: Path) -> Path:
    """The folder of what is needed while timings for this file are measured."""
    path = out.absolute()
    return path.with_name(f".{path.name}.work")


def profile(
    prepared: Preparation,
    *,
    effort: Effort | None = None,
    hire: Hire | None = None,
    place: str = PROCESSES,
    uneven: bool = False,
    work: Path | None = None,
    progress: Progress = lambda what: None,
) -> Profile:
    """Measure what this training would do on this machine. `hire`: where workers come from, who must do `WORK`;
    `place`: where they are; `uneven`: workers of a role are unlike, and each is measured; `work`: the folder of what is
    needed meanwhile, `work_beside` the file; None: a temporary one.

    Raises PipelineError where a worker fails.
    """
    effort, hire = effort or Effort(), hire or processes(work=WORK)
    cells, pairs = grid(prepared.leg, effort.shapes), pairs_of(prepared.placement)
    trio = trio_of(prepared.placement)
    with _ready(prepared, _wanted(prepared, pairs, trio, uneven), effort, hire, progress, work) as measuring:
        progress("measuring targets")
        measuring.firsts(cells)
        if uneven:
            measuring.factors(cells)
        measuring.targets(cells)
        progress("measuring drafters")
        measuring.drafters(cells)
        measuring.parts(cells)
        progress("measuring pairs at once")
        measuring.pairs(pairs, cells)
        if trio is not None:
            measuring.trio(trio, cells)
        measuring.peaks()
    found = measuring.found
    if bool(prepared.placement.gpus()) if effort.again is None else effort.again:
        with _ready(prepared, [("target", 0), ("drafter", 0)], effort, hire, progress, work) as measuring:
            measuring.firsts(cells)
        found.cold, found.first = found.first, measuring.found.first
    return _profile(prepared, found, place)


@contextlib.contextmanager
def _own(work: Path | None) -> Iterator[Path]:
    """A folder for records and meeting points of workers; of a killed process one of a known name is found again."""
    if work is not None:
        with scratch(work) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="dflash-profile-") as made:
        yield Path(made)


@contextlib.contextmanager
def _ready(
    prepared: Preparation, wanted: list[Worker], effort: Effort, hire: Hire, progress: Progress, work: Path | None
) -> Iterator[Measuring]:
    """Workers that have started, and drafters that have formed their group."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_own(work))
        memory = SharedMemory(prepared.slot_bytes, folder / "slots")
        stack.callback(memory.close)
        slots = SlotTable(memory.new)
        orders = orders_for(prepared, folder, slots)
        crew = hire({worker: told for worker, told in orders.items() if worker in wanted})
        stack.callback(crew.close)
        stage = Stage(crew, START_S)
        progress("starting workers")
        for worker in wanted:
            stage.await_(worker, Ready)
        measuring = Measuring(prepared, stage, slots, wanted, effort)
        measuring.together(folder / "group-0")
        yield measuring


def _wanted(prepared: Preparation, pairs: list[Pair], trio: Trio | None, everyone: bool) -> list[Worker]:
    """The workers to start: one of each role, those of pairs and trio, and all drafters where they step together."""
    if everyone:
        return [("target", number) for number in range(len(prepared.placement.targets))] + [
            ("drafter", number) for number in range(len(prepared.placement.drafters))
        ]
    wanted = {("target", 0), ("drafter", 0)} | {worker for pair in pairs for worker in (pair.a, pair.b)}
    wanted |= set(trio.workers) if trio is not None else set()
    if prepared.pipeline.training.sync != "none":
        wanted |= {("drafter", number) for number in range(len(prepared.placement.drafters))}
    return sorted(wanted, key=lambda worker: (worker[0] != "target", worker[1]))


def _profile(prepared: Preparation, found: Found, place: str) -> Profile:
    anchors = prepared.pipeline.training.anchors
    here = machine()
    step: dict[str, Any] = {"seconds": found.step}
    if found.all_reduce:
        step["parts"] = {"all_reduce": found.all_reduce}
    return build_profile(
        {
            "version": 1,
            "machine": here,
            "versions": all_versions(),
            "settings": all_settings(prepared, place),
            "target": _role(found, "target", None),
            "drafter": _role(found, "drafter", anchors),
            "step": step,
            "transfer": _transfer(found.transfer),
            "hidden_bytes_per_token": prepared.pipeline.memory.bytes_per_token,
            "interference": {"cores": here["cores"], "pairs": found.pairs, "trios": found.trios, "power": found.power},
            "memory": {f"{role}_peak_bytes": peak for role, peak in found.peaks.items()},
        }
    )


def _role(found: Found, role: str, anchors: int | None) -> dict[str, Any]:
    cold = found.cold.get(role, [])
    return {
        "samples": _shapes(found, role, anchors),
        "first_seconds": found.first[role],
        "cold_first_seconds": cold,
        "worker_factors": found.factors.get(role, []),
    }


def _shapes(found: Found, role: str, anchors: int | None) -> list[dict[str, Any]]:
    samples: dict[Cell, list[float]] = getattr(found, role)
    return [
        {
            "batch_size": cell.size,
            "length": cell.length,
            "anchors": anchors,
            "seconds": seconds,
            "parts": found.parts.get((role, cell), {}),
        }
        for cell, seconds in samples.items()
    ]


def _transfer(copies: list[tuple[int, float]]) -> dict[str, Any]:
    """Bandwidths of the larger copies only: small ones say how long a message takes."""
    enough = sorted(nbytes for nbytes, _ in copies)[len(copies) // 2]
    return {
        "seconds": [seconds for _, seconds in copies],
        "bytes_per_second": [nbytes / seconds for nbytes, seconds in copies if nbytes >= enough],
    }

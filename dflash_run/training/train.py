"""A training put together: the plan, dispatcher and observers of every run, with processes that really train."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Final

from dflash_run.crew import Crew, ProcessCrew, Worker
from dflash_run.launcher import Launcher
from dflash_run.limits import Limits
from dflash_run.lines import SAVED
from dflash_run.training.briefing import TrainingBriefing
from dflash_run.training.checkpoint import Checkpoint, Checkpoints, remove_unfinished
from dflash_run.training.devices import DeviceSampler
from dflash_run.training.heldout import HeldOutFiles
from dflash_run.training.jobs import be_drafter, be_target
from dflash_run.training.orders import PEAK, TrainingOrders
from dflash_run.training.preparation import Preparation
from dflash_run.training.progress import Progress, trained_runs
from dflash_run.training.recording import recorded
from dflash_run.training.resuming import sizes
from dflash_run.training.saving import Saving
from dflash_run.training.scalars import Scalars
from dflash_run.transport.memory import SharedMemory
from dflash_run.transport.parcel import HOST
from dflash_run.transport.slots import SlotTable
from dflash_sim.folders import claimed
from dflash_sim.interrupts import interruptible
from dflash_sim.prediction import Run, planned_faults, prepare
from dflash_sim.records import RECORDS
from policies.loading import resolved
from reports.observer import Log
from reports.summary import versions

START_S: Final = 1800.0
"""How long workers may take to load their models."""
CLOSE_S: Final = 300.0
"""How long the last checkpoint may take."""
HELD_OUT_SAMPLES: Final = 64
"""Held-out samples that are evaluated on, at most: their hidden states are kept for the whole run."""


Hire = Callable[[Mapping[Worker, TrainingOrders]], Crew]
"""Starts workers with these orders, or tells workers that are kept of another run."""
Work = Mapping[str, Callable[..., None]]
"""By role, the function of (mail, orders) that a worker runs."""
WORK: Final[Work] = {"target": be_target, "drafter": be_drafter}


def processes(start: str = "spawn", work: Work = WORK) -> Hire:
    """A process for each worker, for one run. `start`: how they are started."""
    return lambda orders: ProcessCrew({each: partial(work[each[0]], orders=orders[each]) for each in orders}, start)


def train(
    prepared: Preparation,
    folder: Path,
    *,
    verify: bool = False,
    hire: Hire | None = None,
    watch: Callable[[float, Run, dict[str, float]], None] | None = None,
    run: Run | None = None,
    kind: str = "training",
    ours: bool = False,
    interrupted: Callable[[], bool] | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Train what `prepare_training` prepared; everything is kept in `folder`.

    `hire`: where workers come from; None: spawned processes. `watch(now_s, run, figures)` is called several times a
    second. `run`: one that was prepared for this (`timed=False`). `kind`: what the trace says it is of. `ours`: whether
    the caller has claimed the folder. `interrupted`: whether somebody asked for the end; None: signals are heard here.
    Returns the run and what its summary says of the training.
    """
    pipeline = prepared.pipeline
    run = run or prepare(pipeline, plan=prepared.leg, timed=False)
    progress = _progress(prepared)
    with contextlib.ExitStack() as stack:
        asked = interrupted or stack.enter_context(interruptible())
        stack.enter_context(contextlib.nullcontext() if ours else claimed(folder))
        _clear(folder)  # an earlier run may have been killed
        stack.callback(_clear, folder)
        recording = stack.enter_context(recorded(folder, kind, run))
        scalars = Scalars(folder, pipeline.training.tracker, folder.name, resolved(pipeline))
        stack.callback(scalars.close)
        memory = SharedMemory(prepared.slot_bytes, folder / "slots")
        stack.callback(memory.close)
        slots = SlotTable(memory.new)
        crew = (hire or processes())(orders_for(prepared, folder, slots, verify))
        stack.callback(crew.close)
        briefing = _briefing(prepared, folder, progress, slots, scalars)
        launcher = Launcher(
            dispatcher=run.dispatcher,
            briefing=briefing,
            log=Log(*run.observers(), recording),
            batches=run.plan.count,
            crew=crew,
            stores=folder,
            limits=Limits(
                at_s=pipeline.stop.at_s, watchdog_s=pipeline.stop.watchdog_s, start_s=START_S, close_s=CLOSE_S
            ),
            interrupted=lambda: asked() or bool(recording.failure) or briefing.steps.diverged,
            watch=None if watch is None else lambda now: watch(now, run, _figures(scalars, briefing)),
        )
        briefing.clock = launcher.now
        stack.enter_context(DeviceSampler(folder, prepared.placement.gpus(), launcher.now))
        end = launcher.run()
        run.metrics.finish(end)
        recording.finish(end)
    run.failures.extend(launcher.failures + briefing.failures)
    run.failures.extend(failure for failure in (scalars.failure, recording.failure) if failure)
    run.told["launcher"] = launcher.cost()
    told = _told(prepared, progress, scalars, slots, folder)
    broken = launcher.broken or recording.failure or briefing.steps.lost()
    told["training"] |= {"unsaved": briefing.unsaved, "broken": broken or None}
    return run, told


def _figures(scalars: Scalars, briefing: TrainingBriefing) -> dict[str, float]:
    """The last of each, and the step of the newest checkpoint."""
    saved = None if briefing.saving is None else briefing.saving.saved
    return scalars.latest if saved is None else scalars.latest | {SAVED: saved}


def _progress(prepared: Preparation) -> Progress:
    resumed = prepared.resumed
    return Progress(
        ids=prepared.ids,
        planned=prepared.plan.batches.count,
        before=set() if resumed is None else resumed.checkpoint.batches(),
        steps_before=0 if resumed is None else resumed.checkpoint.step,
    )


def _briefing(
    prepared: Preparation, folder: Path, progress: Progress, slots: SlotTable, scalars: Scalars
) -> TrainingBriefing:
    training = prepared.pipeline.training
    held_out = [int(sample) for sample in prepared.plan.held_out[:HELD_OUT_SAMPLES]]
    saving = None
    if training.sync != "none":
        saving = Saving(Checkpoints(folder, training.keep), partial(_describe, prepared))
    return TrainingBriefing(
        plan=prepared.plan,
        progress=progress,
        slots=slots,
        on_host=prepared.pipeline.memory.staging == "host",
        scalars=scalars,
        saving=saving,
        held_out=HeldOutFiles(held_out, folder / "held_out"),
        save_every=training.save_every,
        evaluate_every=training.evaluate_every,
        log_every=training.log_every,
        groups=prepared.pipeline.topology.drafters if training.sync == "none" else 1,
    )


def _describe(prepared: Preparation, progress: Progress, held_out: dict[str, float]) -> Checkpoint:
    resumed = prepared.resumed
    lineage: tuple[dict[str, Any], ...] = ()
    if resumed is not None:
        parent = {"path": str(resumed.folder), "step": resumed.checkpoint.step}
        lineage = (*resumed.checkpoint.lineage, parent)
    return Checkpoint(
        step=progress.step,
        trained=trained_runs(progress),
        planned=progress.planned,
        plan_hash=prepared.plan.batches.content_hash,
        corpus_hash=prepared.corpus.content_hash,
        config=resolved(prepared.pipeline),
        versions=versions(),
        held_out=dict(held_out),
        lineage=lineage,
        random={"seed": prepared.pipeline.seed},
        shape=sizes(prepared.shape),
    )


def orders_for(
    prepared: Preparation, folder: Path, slots: SlotTable, verify: bool = False
) -> dict[Worker, TrainingOrders]:
    """What each worker is told, targets first."""
    pipeline, placement = prepared.pipeline, prepared.placement
    devices: dict[Worker, tuple[str, ...]] = {("target", t): names for t, names in enumerate(placement.targets)}
    devices |= {("drafter", d): (name,) for d, name in enumerate(placement.drafters)}
    faults = {(fault.role, fault.worker): fault for fault in planned_faults(pipeline)}
    threads = threads_for(len(devices))
    told: dict[Worker, TrainingOrders] = {}
    for worker, names in devices.items():
        role, number = worker
        owner = HOST if pipeline.memory.staging == "host" else number
        fault = faults.get(worker)
        told[worker] = TrainingOrders(
            number=number,
            devices=names,
            config=resolved(pipeline),
            corpus=prepared.corpus.folder,
            mask_token_id=prepared.mask_token_id,
            slot_bytes=prepared.slot_bytes,
            records=folder / RECORDS / f"{role}-{number}.csv",
            probe=slots.take(-1 - number, owner) if role == "target" else slots.nowhere,
            resume=None if prepared.resumed is None else prepared.resumed.folder,
            verify=verify,
            heartbeat_s=min(1.0, pipeline.stop.watchdog_s / 4),
            fails_at=None if fault is None else fault.at_batch,
            failure="crash" if fault is None else fault.kind,
            threads=threads,
        )
    for number in range(len(placement.targets)):
        slots.free(-1 - number)
    return told


def threads_for(workers: int) -> int:
    """Threads that torch gets on the CPU in each of so many workers."""
    return max(1, (os.cpu_count() or 1) // workers)


def _clear(folder: Path) -> None:
    """Remove what only the run itself needed."""
    remove_unfinished(folder)
    for path in (*folder.glob("group-*"), *folder.glob("held_out/*")):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    for path in (folder / "held_out", folder / "slots"):
        with contextlib.suppress(OSError):
            path.rmdir()


def _told(
    prepared: Preparation, progress: Progress, scalars: Scalars, slots: SlotTable, folder: Path
) -> dict[str, Any]:
    """What the summary says of the training itself."""
    resumed = prepared.resumed
    report = prepared.corpus.report
    finite = {name: value for name, value in scalars.latest.items() if isfinite(value)}
    return {
        "training": {
            "step": progress.step,
            "planned_batches": progress.planned,
            "trained_before": len(progress.before),
            "resumed_from": None if resumed is None else str(resumed.folder),
            "figures": finite,
            "data": {
                "read": report.read,
                "kept": report.kept,
                "truncated": report.truncated,
                "dropped": report.dropped,
                "held_out": len(prepared.plan.held_out),
            },
            "devices": {
                "targets": [list(names) for names in prepared.placement.targets],
                "drafters": list(prepared.placement.drafters),
            },
            "peaks": _peaks(folder / RECORDS),
            "forecast": {role: asdict(each) | {"total": each.total} for role, each in prepared.footprints.items()},
            "host_slots": slots.opened(HOST),
            "slot_bytes": prepared.slot_bytes,
        }
    }


def _peaks(records: Path) -> dict[str, Any]:
    """By worker, the most memory that it had; a worker that was killed, or a full disk, leaves none."""
    found = {}
    for path in sorted(records.glob(f"*{PEAK}")):
        with contextlib.suppress(OSError, ValueError):
            found[path.name.removesuffix(PEAK).replace("-", "/")] = json.loads(path.read_text())
    return found

"""Where the workers of validated cases come from, and the profiles that cases share."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dflash_run.crew import ProcessCrew, ThreadCrew
from dflash_run.profiling.measuring import Effort
from dflash_run.profiling.pairs import pairs_of, trio_of
from dflash_run.profiling.profile import WORK, profile, work_beside
from dflash_run.training.preparation import Preparation, prepare_training
from dflash_run.training.train import Hire
from dflash_run.training.troupe import Troupe
from dflash_run.transport.parcel import HEAD_BYTES
from dflash_run.validation.cases import KEPT, NEW, THREADS, Case
from dflash_run.validation.kept import PROFILE
from dflash_run.validation.whole import train_whole
from dflash_sim.fitting import save_timings
from dflash_sim.settings import PROCESSES
from policies.batches import BatchPlan
from policies.loading import from_mapping
from reports.writing import write_bytes

_EFFORTS: Final = {
    NEW: Effort(),
    KEPT: Effort(again=True),
    # A part of a GPU takes a second for a batch, and much the same second each time.
    THREADS: Effort(again=True, shapes=3, repeats=3, most_s=4.0, flow_s=2.5),
}
_WARM: Final = {KEPT: 6, THREADS: 30}
"""Batches for each worker, which new ones get before a run that counts."""
_BETWEEN: Final = 500
"""Numbers of rows that products are launched for, beside those of the first case's plan."""
_LARGEST: Final = 0.2
"""Share of them that are the largest of the plan; the others are spread over its lengths."""


@dataclass
class Company:
    """The workers of cases that are run one after the other."""

    gpus: int
    hire: Hire | None = None
    """None: processes for each case."""
    place: str = PROCESSES
    uneven: bool = False
    kind: str = "training"
    """What its runs are, as their traces and summaries say it."""
    prepare_run: Callable[..., Preparation] = prepare_training
    warm: bool = False
    """Whether workers are kept, so that all that a first batch brings is over when a run begins."""
    effort: Effort | None = None
    profiles: dict[object, Path] = field(default_factory=dict)
    """Those that were measured, by what they depend on."""
    played: set[object] = field(default_factory=set)
    """Topologies, with what their workers are built for, whose workers are warm."""

    def prepare(self, case: Case, work: Path) -> Preparation:
        """The case's training, checked; what is to be read lies in `work`."""
        prepared = self.prepare_run(from_mapping(case.prepare(work)), gpus=self.gpus)
        if not self.warm:
            return prepared
        tokens = prepared.pipeline.memory.bytes_per_token  # slots of the same size for all cases of kept workers
        assert tokens is not None, "filled in when prepared"
        largest = HEAD_BYTES + case.file["data"]["batch"]["samples"] * case.longest * tokens
        return replace(prepared, slot_bytes=max(prepared.slot_bytes, -(-largest // 4096) * 4096))

    def profile(self, prepared: Preparation, case: Case, out: Path, progress: Callable[[str], None]) -> Path:
        """The case's profile, in `out`: measured now, or by a case before of which all is the same that it tells."""
        path, key = out / PROFILE, _told_by(prepared, case)
        if not path.exists() and key in self.profiles:
            write_bytes(path, self.profiles[key].read_bytes())
        if not path.exists():
            effort = self.effort or _EFFORTS[case.workers]
            found = profile(
                prepared,
                effort=effort,
                hire=self.hire,
                place=self.place,
                uneven=self.uneven,
                work=work_beside(path),
                progress=progress,
            )
            save_timings(found, path)
        self.profiles.setdefault(key, path)
        return path

    def warm_up(self, prepared: Preparation, case: Case, folder: Path, progress: Callable[[str], None]) -> None:
        """Some batches, where workers are kept and there are new ones, or new lengths.

        The largest are among them, so that memory grows no more later, and many lengths: cuBLAS takes another kernel
        for many a length, and a thread that launches a kernel for the first time in the process waits for all that was
        launched on any stream of the GPU, as do all threads after it.
        """
        topology, training = prepared.pipeline.topology, prepared.pipeline.training
        data = repr(case.file["data"])
        key = (topology.targets, topology.drafters, training.anchors, training.sync != "none", data)
        if not self.warm or key in self.played:
            return
        progress("warming up")
        chosen = varied(prepared.leg, _WARM[case.workers] * (topology.targets + topology.drafters))
        few = replace(prepared, leg=prepared.leg.select(chosen), ids=[prepared.ids[each] for each in chosen])
        train_whole(few, folder, hire=self.hire)
        self.played.add(key)


def varied(leg: BatchPlan, count: int) -> NDArray[np.int64]:
    """So many of its batches, if there are: the largest, and others spread over the lengths; numbers, rising."""
    by_size = np.argsort(-leg.slots, kind="stable")
    largest, rest = np.split(by_size, [max(round(_LARGEST * count), 1)])
    rest = rest[np.argsort(leg.length[rest], kind="stable")]
    spread = np.linspace(0, max(rest.size - 1, 0), min(count - largest.size, rest.size)).astype(np.int64)
    found: NDArray[np.int64] = np.union1d(largest, rest[spread])
    return found


@contextlib.contextmanager
def company_for(cases: Sequence[Case], work: Path, gpus: int) -> Iterator[Company]:
    """For cases whose workers come from the same place."""
    kind, sizes = cases[0].workers, cases[0].sizes
    assert all((case.workers, case.sizes) == (kind, sizes) for case in cases), "cases of a part share their workers"
    if kind == NEW:
        yield Company(gpus)
        return
    if kind == KEPT:
        troupe = Troupe(ProcessCrew({}), WORK)
        company = Company(gpus, troupe.engage, warm=True)
    else:
        assert kind == THREADS
        from dflash_run.partitions.rehearsal import prepare_rehearsal, set_stage

        stage = set_stage(prepare_rehearsal(from_mapping(cases[0].prepare(work)), gpus=gpus), sizes, _BETWEEN)
        if stage.split.refused is not None:
            print(f"the GPU is not split: {stage.split.refused}", file=sys.stderr)
        troupe = Troupe(ThreadCrew({}), stage.work)
        company = Company(gpus, troupe.engage, stage.place, stage.uneven, "rehearsal", prepare_rehearsal, warm=True)
    try:
        yield company
    finally:
        troupe.close()


def _told_by(prepared: Preparation, case: Case) -> object:
    """What a profile depends on: cases for which this is the same share one."""
    joint = prepared.pipeline.training.sync != "none"
    kinds = {(pair.a[0], pair.b[0], pair.shared) for pair in pairs_of(prepared.placement)}
    training: dict[str, Any] = dict(case.file["training"]) | {"sync": joint}
    members = len(prepared.placement.drafters) if joint else 0
    trio = trio_of(prepared.placement)
    return repr((case.shape, case.file["data"], training, sorted(kinds), trio, members, case.workers, case.sizes))

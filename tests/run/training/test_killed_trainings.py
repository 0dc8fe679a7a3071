"""Trainings in which a target, a drafter or the launcher is killed at random, and which are resumed: exactly once.

`python tests/run/training/test_killed_trainings.py` runs 50 and prints their seeds; the suite runs a few.
"""

import collections
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":  # as a script it finds the tests' helpers from the repository
    sys.path.insert(0, str(Path(__file__).parents[3]))

import dflash_run.training.train as training
from dflash_run.crew import ProcessCrew, Worker
from dflash_run.messages import Computed
from dflash_run.training.checkpoint import FOLDER, complete_in, read
from dflash_run.training.preparation import prepare_training
from dflash_sim.prediction import summary_of
from dflash_sim.records import RECORDS, check_records
from dflash_sim.replay import dispatcher_of, replay
from policies.trace import Input
from reports.tracefile import read_trace
from tests.helpers import check_identities
from tests.run.training.cases import HIRED, START, training_pipeline

LEGS = 6
"""After so many legs a training must have come to its end."""


@dataclass
class Plan:
    """Whom to kill, and after how many batches computed anywhere."""

    victim: Worker | str
    after: int


class KillingCrew(ProcessCrew):
    """Kills one of its processes, or itself, when workers have said often enough that they computed something."""

    plan = Plan("nobody", 0)

    def receive(self, timeout: float) -> list[tuple[Worker, object]]:
        said = super().receive(timeout)
        before, self._count = getattr(self, "_count", 0), 0
        self._count = before + sum(isinstance(message, Computed) for _, message in said)
        if before < self.plan.after <= self._count:
            if self.plan.victim == "launcher":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.plan.victim in self._processes:
                self.process(self.plan.victim).kill()  # type: ignore[arg-type]
        return said


def leg(case: Path, folder: Path, seed: int, number: int, resume: Path | None) -> str:
    """One run of the training with something killed in it; returns how it ended."""
    pick = random.Random(seed * 101 + number)
    targets, drafters = pick.randint(1, 2), pick.randint(1, 2)
    sync = pick.choice(["step", "pooled"])
    changes: dict[str, Any] = {
        "targets": targets,
        "drafters": drafters,
        "dispatch": {"policy": pick.choice(["shared", "round_robin", "rotating"]), "prefetch": pick.randint(0, 1)},
        "training": {"sync": sync, "save_every": pick.randint(1, 3), "accumulate": pick.randint(1, 2)},
        "data": {"epochs": 2},
        "stop": {"watchdog_s": 30},
    }
    workers: list[Worker | str] = [("target", t) for t in range(targets)] + [("drafter", d) for d in range(drafters)]
    victim = pick.choice([*workers, "launcher"]) if number < LEGS - 2 else "nobody"
    KillingCrew.plan = Plan(victim, pick.randint(1, 40))
    if victim != "launcher":
        return _train(case, folder, resume, changes)
    given = (case, folder, resume, changes, KillingCrew.plan)
    child = multiprocessing.get_context(START).Process(target=_in_child, args=given)
    child.start()
    child.join(300)
    assert not child.is_alive(), "the launcher neither ended nor died"
    return "killed" if child.exitcode == -signal.SIGKILL else "ended"


def _in_child(case: Path, folder: Path, resume: Path | None, changes: dict[str, Any], plan: Plan) -> None:
    KillingCrew.plan = plan
    _train(case, folder, resume, changes)


def _train(case: Path, folder: Path, resume: Path | None, changes: dict[str, Any]) -> str:
    training.ProcessCrew = KillingCrew  # type: ignore[misc]
    try:
        prepared = prepare_training(training_pipeline(case, **changes), gpus=0, resume=resume)
        run, told = training.train(prepared, folder, verify=True, hire=HIRED)
    finally:
        training.ProcessCrew = ProcessCrew  # type: ignore[misc]
    summary = summary_of(run, kind="training", **told)
    check_identities(summary)
    assert summary["batches"]["lost"] == 0
    trace = read_trace(folder)
    assert replay(trace, dispatcher_of(trace)) == []
    assert check_records(trace, folder / RECORDS) == []
    return str(summary["stop_reason"])


def _commits(folder: Path) -> collections.Counter[int]:
    """How often each batch of this leg was committed, as far as its trace goes."""
    found: collections.Counter[int] = collections.Counter()
    for _, event in read_trace(folder).events():
        if isinstance(event, Input) and event.name == "commit":
            found.update(event.args[1])
    return found


def check(seed: int, case: Path, folder: Path) -> list[str]:
    """A training in legs, each resumed from the newest checkpoint; returns how each leg ended."""
    ends: list[str] = []
    resume: Path | None = None
    before: set[int] = set()
    for number in range(LEGS):
        here = folder / f"leg-{number}"
        ends.append(leg(case, here, seed, number, resume))
        saved = complete_in(here / FOLDER)
        if ends[-1] != "killed":
            assert max(_commits(here).values(), default=1) == 1, "a batch was trained twice in a leg"
        if saved:
            kept = read(saved[-1])
            assert kept.batches() >= before, "a resumed training lost what was trained before"
            before, resume = kept.batches(), saved[-1]
            if len(before) == kept.planned:
                return ends
    raise AssertionError(f"not all batches were trained after {LEGS} legs: {ends}")


@pytest.mark.parametrize("seed", range(3))
def test_a_training_whose_parts_are_killed_trains_every_batch_once(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path / "case", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 50))
def test_many_trainings_whose_parts_are_killed_train_every_batch_once(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path / "case", tmp_path)


if __name__ == "__main__":
    legs: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    for each in seeds:
        with tempfile.TemporaryDirectory(prefix="killed-") as name:
            try:
                legs.update(check(each, Path(name) / "case", Path(name)))
            except BaseException:
                print(f"seed {each}:", file=sys.stderr)
                raise
    print(
        f"seeds 0 to {seeds.stop - 1}: {len(seeds)} trainings in {sum(legs.values())} legs, "
        f"{time.monotonic() - start:.0f} s; "
        f"legs ended {dict(legs)}; every batch trained once along each lineage, 0 lost, 0 hangs"
    )

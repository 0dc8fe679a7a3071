"""Workers that are kept from one run to the next."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_run.crew import ProcessCrew
from dflash_run.profiling.measuring import Effort
from dflash_run.profiling.profile import WORK, profile
from dflash_run.training.preparation import prepare_training
from dflash_run.training.train import train
from dflash_run.training.troupe import Troupe
from dflash_sim.prediction import Run, summary_of
from dflash_sim.records import RECORDS, check_records
from dflash_sim.replay import dispatcher_of, replay
from reports.tracefile import read_trace
from tests.run.training.cases import START, training_pipeline

QUICK = Effort(repeats=3, most_repeats=3, least_s=0.0, flow_s=0.05, rounds=1)


@pytest.fixture
def troupe() -> Iterator[Troupe]:
    kept = Troupe(ProcessCrew({}, START), WORK)
    yield kept
    kept.close()


def play(troupe: Troupe, folder: Path, out: str, **changes: Any) -> tuple[Run, dict[str, Any]]:
    prepared = prepare_training(training_pipeline(folder, **changes), gpus=0)
    return train(prepared, folder / out, verify=True, hire=troupe.engage)


def pids(troupe: Troupe) -> dict[object, int | None]:
    crew = troupe.crew
    assert isinstance(crew, ProcessCrew)
    return {worker: crew.process(worker).pid for worker in crew.workers()}


def test_kept_workers_train_each_run_as_new_ones_do(troupe: Troupe, tmp_path: Path) -> None:
    first, told = play(troupe, tmp_path, "first", training={"sync": "step"})
    before = pids(troupe)
    again, retold = play(troupe, tmp_path, "again", training={"sync": "step"})
    assert pids(troupe) == before
    for run in (first, again):
        assert summary_of(run)["batches"]["trained"] == 12
    assert retold["training"]["figures"] == pytest.approx(told["training"]["figures"])
    for name in ("first", "again"):
        trace = read_trace(tmp_path / name)
        assert replay(trace, dispatcher_of(trace)) == [] and check_records(trace, tmp_path / name / RECORDS) == []


def test_a_profile_and_runs_of_other_topologies_share_their_workers(troupe: Troupe, tmp_path: Path) -> None:
    prepared = prepare_training(training_pipeline(tmp_path, targets=2, training={"sync": "none"}), gpus=0)
    assert profile(prepared, effort=QUICK, hire=troupe.engage).target is not None
    before = pids(troupe)
    for number, (targets, drafters, sync) in enumerate([(2, 1, "none"), (1, 2, "step"), (2, 2, "pooled")]):
        run, _ = play(troupe, tmp_path, str(number), targets=targets, drafters=drafters, training={"sync": sync})
        assert summary_of(run)["batches"]["trained"] == 12
    after = pids(troupe)
    assert len(after) == 4 and all(after[worker] == pid for worker, pid in before.items())


def test_what_a_worker_was_built_for_decides_whether_it_is_kept(troupe: Troupe, tmp_path: Path) -> None:
    play(troupe, tmp_path, "first")
    before = pids(troupe)
    play(troupe, tmp_path, "other", training={"anchors": 3})
    assert not set(before.values()) & set(pids(troupe).values())


def test_a_worker_that_fails_is_replaced_in_the_next_run(troupe: Troupe, tmp_path: Path) -> None:
    fault = [{"worker": "drafter/1", "at_batch": 2, "kind": "crash"}]
    hurt, _ = play(troupe, tmp_path, "hurt", drafters=2, faults=fault)
    assert hurt.failures and summary_of(hurt)["batches"]["trained"] == 12
    whole, _ = play(troupe, tmp_path, "whole", drafters=2)
    assert not whole.failures and summary_of(whole)["batches"]["trained"] == 12

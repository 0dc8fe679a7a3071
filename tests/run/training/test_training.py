"""Trainings end to end on the CPU: real processes, real gradients, losses of workers, checkpoints, resumption."""

import collections
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dflash_run.training.checkpoint import BEST, FOLDER, complete_in, find, read
from dflash_run.training.preparation import prepare_training
from dflash_run.training.train import train
from dflash_sim.prediction import Run, summary_of
from dflash_sim.records import RECORDS, check_records
from dflash_sim.replay import dispatcher_of, replay
from policies.faults import PipelineError
from policies.trace import Input
from reports.tracefile import read_trace
from tests.helpers import check_identities
from tests.run.training.cases import HIRED, training_pipeline


def trained(case: Path, folder: Path, *, resume: Path | None = None, **changes: Any) -> tuple[Run, dict[str, Any]]:
    """Run a training and check what must hold of each."""
    prepared = prepare_training(training_pipeline(case, **changes), gpus=0, resume=resume)
    run, told = train(prepared, folder, verify=True, hire=HIRED)
    summary = summary_of(run, kind="training", **told)
    check_identities(summary)
    trace = read_trace(folder)
    assert replay(trace, dispatcher_of(trace)) == []
    assert check_records(trace, folder / RECORDS) == []
    commits: collections.Counter[int] = collections.Counter()
    for _, event in trace.events():
        if isinstance(event, Input) and event.name == "commit":
            commits.update(event.args[1])
    assert not [batch for batch, times in commits.items() if times > 1]
    return run, summary


def weights_of(run: Path) -> dict[str, Any]:
    return load_file(find(run) / "weights.safetensors")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("case")


def test_one_target_and_one_drafter_train_every_batch_and_leave_a_checkpoint(case: Path, tmp_path: Path) -> None:
    run, summary = trained(case, tmp_path, data={"held_out": 0.1, "epochs": 2}, training={"save_every": 4, "keep": 2})
    assert summary["stop_reason"] == "data_exhausted" and run.failures == []
    kept = read(find(tmp_path))
    assert kept.batches() == set(range(kept.planned)) and kept.step == summary["optimizer_steps"]
    assert len(complete_in(tmp_path / FOLDER)) <= 3 and (tmp_path / FOLDER / BEST / "checkpoint.json").is_file()
    assert math.isfinite(summary["training"]["figures"]["held_out_loss"])
    assert not list(tmp_path.glob("group-*")) and not (tmp_path / "held_out").exists()


@pytest.mark.parametrize("sync", ["step", "pooled"])
def test_two_drafters_end_with_the_weights_of_one_that_accumulates(case: Path, tmp_path: Path, sync: str) -> None:
    given = {"data": {"order": "given"}}
    trained(case, tmp_path / "two", drafters=2, training={"sync": sync, "learning_rate": 1e-2}, **given)
    trained(case, tmp_path / "one", training={"accumulate": 2, "learning_rate": 1e-2}, **given)
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name, weight in one.items():
        assert (weight - two[name]).norm() <= 1e-4 * weight.norm(), name


@pytest.mark.parametrize("worker", ["target/1", "drafter/1"])
def test_a_worker_that_crashes_leaves_the_rest_to_train_everything_once(
    case: Path, tmp_path: Path, worker: str
) -> None:
    faults = [{"worker": worker, "at_batch": 3, "kind": "crash"}]
    run, summary = trained(case, tmp_path, targets=2, drafters=2, training={"sync": "step"}, faults=faults)
    assert summary["stop_reason"] == "data_exhausted" and summary["batches"]["trained"] == summary["batches"]["planned"]
    assert [failure.partition(":")[0] for failure in run.failures] == [worker]


def test_a_drafter_that_hangs_inside_the_all_reduce_is_given_up(case: Path, tmp_path: Path) -> None:
    faults = [{"worker": "drafter/0", "at_batch": 2, "kind": "hang_in_step"}]
    run, summary = trained(case, tmp_path, drafters=2, faults=faults, stop={"watchdog_s": 3})
    assert summary["stop_reason"] == "data_exhausted" and summary["batches"]["lost"] == 0
    assert len(run.failures) == 1 and run.failures[0].startswith("drafter/0: silent")


def test_a_resumed_training_does_what_is_left_on_another_topology_and_policy(case: Path, tmp_path: Path) -> None:
    trained(case, tmp_path / "a", stop={"max_steps": 5}, training={"save_every": 2})
    first = read(find(tmp_path / "a"))
    assert 0 < len(first.batches()) < first.planned
    _, summary = trained(
        case, tmp_path / "b", resume=tmp_path / "a", targets=2, drafters=2,
        dispatch={"policy": "round_robin"}, training={"sync": "step"},
    )
    second = read(find(tmp_path / "b"))
    assert second.batches() == set(range(first.planned))
    assert summary["batches"]["planned"] == first.planned - len(first.batches())
    assert [each["step"] for each in second.lineage] == [first.step]


def test_a_resumed_training_ends_with_the_weights_of_one_in_a_piece(case: Path, tmp_path: Path) -> None:
    given = {"data": {"order": "given"}}
    trained(case, tmp_path / "whole", **given)
    trained(case, tmp_path / "a", stop={"max_steps": 5}, **given)
    trained(case, tmp_path / "b", resume=tmp_path / "a", **given)
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "b")
    for name, weight in whole.items():
        assert (weight - parts[name]).norm() <= 1e-4 * weight.norm(), name


def test_a_changed_batch_plan_is_refused(case: Path, tmp_path: Path) -> None:
    trained(case, tmp_path / "a", stop={"max_steps": 3})
    with pytest.raises(PipelineError, match="batch plan"):
        prepare_training(training_pipeline(case, seed=7), gpus=0, resume=tmp_path / "a")

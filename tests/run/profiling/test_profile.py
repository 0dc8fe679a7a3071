"""Profiles of tiny trainings on the CPU, and what refuses them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_run.profiling.grid import grid, middle
from dflash_run.profiling.measuring import Effort
from dflash_run.profiling.pairs import Trio, pairs_of, trio_of
from dflash_run.profiling.profile import profile
from dflash_run.training.devices import Placement
from dflash_run.training.preparation import prepare_training
from policies.faults import PipelineError
from tests.run.training.cases import PROFILED, training_pipeline

QUICK = Effort(repeats=3, most_repeats=3, least_s=0.0, flow_s=0.03, rounds=1)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("case")


def test_a_profile_holds_raw_samples_of_every_part_and_the_settings_they_depend_on(case: Path) -> None:
    pipeline = training_pipeline(case, targets=2, drafters=2)
    prepared = prepare_training(pipeline, gpus=0)
    found = profile(prepared, effort=QUICK, hire=PROFILED)
    shapes = {(cell.size, cell.length) for cell in grid(prepared.leg)}
    assert found.target is not None and found.drafter is not None and found.step is not None
    for role, parts in ((found.target, {"padding", "forward"}), (found.drafter, {"padding", "forward", "backward"})):
        assert {(each.batch_size, each.length) for each in role.samples} == shapes
        assert all(len(each.seconds) == 3 and parts <= set(each.parts) for each in role.samples)
        assert len(role.first_seconds) == 2
    assert {each.anchors for each in found.drafter.samples} == {4}
    assert len(found.step.seconds) == 3 * len(shapes) and len(found.step.parts["all_reduce"]) == 3
    assert found.transfer is not None and found.transfer.bytes_per_second
    assert found.hidden_bytes_per_token == 64 * 4
    assert found.settings["threads"] >= 1 and found.settings["target_device"] == "cpu"
    assert {"hidden_size": 64, "taps": 1, "block_size": 4, "anchors": 4}.items() <= found.settings.items()
    assert found.machine["cores"] >= 1 and {"torch", "python"} <= set(found.versions)
    pairs = found.interference.pairs
    assert [(pair.a, pair.b) for pair in pairs] == [
        ("target", "target"), ("target", "drafter"), ("drafter", "drafter"),
    ]
    assert all(pair.factor_a > 0 and pair.shared == "host" for pair in pairs)
    assert all(pair.copy_b is not None for pair in pairs if pair.b == "drafter")
    assert found.memory["drafter_peak_bytes"] > 1e6


def test_pairs_are_one_of_each_kind_and_name_the_gpu_that_they_share() -> None:
    colocated = Placement(targets=(("cuda:0",), ("cuda:1",)), drafters=("cuda:0", "cuda:1"))
    found = {(pair.a[0], pair.b[0], pair.shared): (pair.a[1], pair.b[1]) for pair in pairs_of(colocated)}
    assert found == {
        ("target", "target", "host"): (0, 1),
        ("target", "drafter", "cuda:0"): (0, 0),
        ("target", "drafter", "host"): (0, 1),
        ("drafter", "drafter", "host"): (0, 1),
    }


@pytest.mark.parametrize(
    ("targets", "drafters", "expected"),
    [
        (5, 3, ("target/0", "drafter/0", "target/1")),
        (1, 3, ("target/0", "drafter/0", "drafter/1")),
        (0, 4, ("drafter/0", "drafter/1", "drafter/2")),
        (2, 1, None),
    ],
)
def test_three_of_the_workers_of_a_gpu_are_measured_at_once_where_more_share_it(
    targets: int, drafters: int, expected: tuple[str, ...] | None
) -> None:
    elsewhere = (("cuda:1",), ("cpu",))
    many = Placement(targets=elsewhere + (("cuda:0",),) * targets, drafters=("cuda:0",) * drafters)
    found, first = trio_of(many), 2
    if expected is None:
        assert found is None
        return
    assert found is not None and found.shared == "cuda:0"
    told = [f"{role}/{number - first if role == 'target' else number}" for role, number in found.workers]
    assert tuple(told) == expected


def test_what_three_take_at_once_is_told_by_their_places(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Trio((("target", 0), ("drafter", 0), ("target", 1)), "cuda:0")
    monkeypatch.setattr("dflash_run.profiling.profile.trio_of", lambda placement: chosen)
    prepared = prepare_training(training_pipeline(case, targets=2, drafters=1, training={"sync": "none"}), gpus=0)
    (trio,) = profile(prepared, effort=QUICK, hire=PROFILED).interference.trios
    assert trio.workers == ("target", "drafter", "target") and trio.shared == "cuda:0"
    assert all(factor > 0.2 for factor in trio.factors) and all(error >= 0 for error in trio.errors)


def test_the_grid_spans_the_plan_and_has_no_shape_twice(case: Path) -> None:
    leg = prepare_training(training_pipeline(case), gpus=0).leg
    cells = grid(leg)
    assert 1 <= len(cells) <= 7 and len({(cell.size, cell.length) for cell in cells}) == len(cells)
    assert {cells[0].slots, cells[-1].slots} == {int(leg.slots.min()), int(leg.slots.max())}
    assert all(cell.slots == int(leg.slots[cell.batch]) for cell in cells) and middle(cells) in cells


def test_first_batches_are_measured_again_in_new_processes_where_compiling_matters(case: Path) -> None:
    prepared = prepare_training(training_pipeline(case), gpus=0)
    found = profile(prepared, effort=replace(QUICK, again=True), hire=PROFILED)
    assert found.target is not None and found.drafter is not None
    assert len(found.drafter.first_seconds) == len(found.drafter.cold_first_seconds) == 1
    assert found.drafter.first_seconds != found.drafter.cold_first_seconds


def test_a_worker_that_fails_ends_the_profile_with_its_reason(case: Path) -> None:
    prepared = prepare_training(training_pipeline(case), gpus=0)
    shutil.move(case / "target" / "config.json", case / "target" / "away.json")
    try:
        with pytest.raises(PipelineError, match=r"(target|drafter)/0: could not be measured"):
            profile(prepared, effort=QUICK, hire=PROFILED)
    finally:
        shutil.move(case / "target" / "away.json", case / "target" / "config.json")


@pytest.mark.parametrize("sync", ["none", "step"])
def test_under_prefetch_batches_are_timed_while_the_next_one_arrives(case: Path, sync: str) -> None:
    pipeline = training_pipeline(case, drafters=2, dispatch={"prefetch": 1}, training={"sync": sync})
    found = profile(prepare_training(pipeline, gpus=0), effort=QUICK, hire=PROFILED)
    assert found.drafter is not None and found.step is not None and found.transfer is not None
    batches = sum(len(shape.seconds) for shape in found.drafter.samples)
    assert len(found.step.seconds) == batches // 3 * 4 and len(found.transfer.seconds) == batches // 3

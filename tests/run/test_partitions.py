"""Rehearsals with real kernels: the split of a GPU by a driver that is played here, and a whole one on the CPU."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from typer.testing import CliRunner  # noqa: E402

from dflash_run.cli import app  # noqa: E402
from dflash_run.partitions import multiprocessors  # noqa: E402
from dflash_run.partitions.memory import shares  # noqa: E402
from dflash_run.partitions.multiprocessors import split  # noqa: E402
from dflash_run.partitions.rehearsal import _products, _rows, prepare_rehearsal, set_stage  # noqa: E402
from dflash_run.training.footprint import Footprint  # noqa: E402
from dflash_sim.replay import dispatcher_of, replay  # noqa: E402
from policies.faults import PipelineError  # noqa: E402
from reports.commands import guarded  # noqa: E402
from reports.tracefile import read_trace  # noqa: E402
from tests.run.training.cases import training_file, training_pipeline  # noqa: E402


class Driver:
    """An H200's 132 multiprocessors: eight groups of 16, or fifteen of 8, in one call."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    available = {8: 15, 16: 8, 24: 5}

    def __init__(self) -> None:
        self.groups: list[int] = []

    def cuDeviceGet(self, index: int) -> tuple[int, int]:  # noqa: N802
        return 0, index

    def cuDeviceGetDevResource(self, gpu: int, kind: int) -> tuple[int, str]:  # noqa: N802
        return 0, "whole"

    def cuDevSmResourceSplitByCount(self, count: int, whole: str, flags: int, least: int) -> tuple[Any, ...]:  # noqa: N802
        assert whole == "whole", "what a call splits off cannot be split again"
        found = min(count, self.available.get(least, 0))
        return 0, [SimpleNamespace(sm=SimpleNamespace(smCount=least)) for _ in range(count)], found, None

    def cuDevResourceGenerateDesc(self, parts: Sequence[Any], count: int) -> tuple[int, int]:  # noqa: N802
        assert len(parts) == count
        return 0, sum(part.sm.smCount for part in parts)

    def cuGreenCtxCreate(self, size: int, gpu: int, flags: int) -> tuple[int, int]:  # noqa: N802
        self.groups.append(size)
        return 0, len(self.groups)

    def cuGreenCtxStreamCreate(self, context: int, flags: int, priority: int) -> tuple[int, int]:  # noqa: N802
        return 0, context


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    played = Driver()
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", SimpleNamespace(driver=played))
    monkeypatch.setattr(multiprocessors.torch, "zeros", lambda *a, **k: None)
    monkeypatch.setattr(multiprocessors.torch.cuda, "ExternalStream", lambda stream, device: f"stream {stream}")
    monkeypatch.setattr(multiprocessors.torch.cuda, "Stream", lambda device: "plain")
    monkeypatch.setattr(
        multiprocessors.torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132)
    )
    return played


GPU = torch.device("cuda:0")


def test_eight_workers_get_a_group_of_sixteen_multiprocessors_each(driver: Driver) -> None:
    found = split(GPU, 8)
    assert found.refused is None and found.multiprocessors == (16,) * 8 == tuple(driver.groups)
    assert found.streams == tuple(f"stream {number + 1}" for number in range(8))


def test_groups_of_given_sizes_are_joined_from_the_largest_parts_that_fit(driver: Driver) -> None:
    found = split(GPU, 8, [16] * 7 + [8])
    assert found.refused is None and driver.groups == [16] * 7 + [8]


@pytest.mark.parametrize(
    ("count", "sizes", "why"),
    [(8, [16] * 7 + [24], "the driver gives 15 parts of 8"), (17, None, "multiples of 8"), (2, [12, 8], "multiples")],
)
def test_where_the_driver_refuses_workers_share_the_gpu_and_it_is_said(
    driver: Driver, count: int, sizes: list[int] | None, why: str
) -> None:
    found = split(GPU, count, sizes)
    assert found.streams == ("plain",) * count and found.multiprocessors == ()
    assert found.refused is not None and why in found.refused
    assert str(found) == "plain streams"


def test_a_rehearsal_with_real_kernels_trains_every_batch_in_threads(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    given = training_file(tmp_path, targets=2, drafters=2, training={"sync": "none"})
    del given["topology"]["devices"]
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    done = CliRunner().invoke(app, ["rehearse", str(file), "--compute", "torch", "-o", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["kind"] == "rehearsal" and summary["batches"]["trained"] == summary["batches"]["planned"] == 12
    assert summary["compute"] == {"workers": "threads, threads of the processor", "refused": None}
    trace = read_trace(tmp_path / "run")
    assert trace.header.kind == "rehearsal" and replay(trace, dispatcher_of(trace)) == []


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_threads_that_fail_cost_no_batch(tmp_path: Path, kind: str) -> None:
    faults = [{"worker": "drafter/1", "at_batch": 2, "kind": kind}, {"worker": "target/0", "at_batch": 2, "kind": kind}]
    stop = {"watchdog_s": 2}
    given = training_file(tmp_path, targets=2, drafters=2, training={"sync": "none"}, faults=faults, stop=stop)
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    CliRunner().invoke(app, ["rehearse", str(file), "--compute", "torch", "-o", str(tmp_path / "run"), "--json"])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert [failure.partition(":")[0] for failure in sorted(summary["failures"])] == ["drafter/1", "target/0"]
    lost = summary["batches"]["lost"]  # under sync none a drafter takes along what it alone has trained
    assert summary["batches"]["trained"] + lost == 12 and lost <= 1


def test_what_one_device_cannot_do_is_refused_with_all_other_faults(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"training": {"sync": "step"}, "topology": {"target_gpus": 2}, "model": {"taps": [77]}}
    with pytest.raises(PipelineError) as caught:
        prepare_rehearsal(training_pipeline(tmp_path, **changes), gpus=0)
    assert {"training.sync", "topology.target_gpus", "model.taps"} <= {fault.key for fault in caught.value.faults}


def test_sizes_must_be_one_for_each_worker(tmp_path: Path) -> None:
    prepared = prepare_rehearsal(training_pipeline(tmp_path, training={"sync": "none"}), gpus=0)
    with pytest.raises(PipelineError, match="must be 2 numbers, one for each worker"):
        set_stage(prepared, [8, 8, 8])


def test_sizes_without_a_gpu_to_split_are_refused_and_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="--multiprocessors: got '8,8'; goes with a GPU to split: here is none"):
        set_stage(prepare_rehearsal(training_pipeline(tmp_path, training={"sync": "none"}), gpus=0), [8, 8])


def test_sizes_of_workers_that_sleep_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(app, ["rehearse", str(tmp_path / "p.yaml"), "--multiprocessors", "8,8"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("--multiprocessors: got '8,8'; goes with --compute torch: workers that sleep need none")


def test_workers_take_memory_ahead_as_far_as_there_is_any() -> None:
    each = {
        "target": Footprint(model=4, frozen=0, activations=1, buffers=5),
        "drafter": Footprint(model=5, frozen=1, activations=7, buffers=1),
    }
    count = {"target": 5, "drafter": 3}
    assert shares(each, count, 1_000) == {"target": 7, "drafter": 10}
    half = shares({role: replace(one, activations=one.activations * 100) for role, one in each.items()}, count, 1_038)
    assert 0.7 * 1_000 < 5 * half["target"] + 3 * half["drafter"] <= 0.8 * 1_000, "models are left their place"
    assert shares(each, count, 10) == {"target": 0, "drafter": 0}


def test_products_are_launched_for_all_sizes_of_the_plan_and_for_some_between(tmp_path: Path) -> None:
    prepared = prepare_rehearsal(training_pipeline(tmp_path, training={"sync": "none"}), gpus=0)
    slots = set(prepared.leg.slots.tolist())
    assert _rows(prepared, 0) == sorted(slots)
    assert slots < set(_rows(prepared, 50)) and min(_rows(prepared, 50)) == min(slots)
    sizes = {(each.inputs, each.outputs, each.learns) for each in _products(prepared)}
    assert {(64, 64, False), (64, 64, True)} <= sizes, "the target's projections, and the drafter's of one tap"

"""The whole chain at a tiny size: profile, predict, train, compare, and all of it again from what was kept."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dflash_run.profiling.measuring import Effort
from dflash_run.validation.cases import CASES, HOST, PARTS, THREADS, Case
from dflash_run.validation.cases import KEPT as PROCESSES
from dflash_run.validation.chain import limits_of, validate
from dflash_run.validation.checking import differences
from dflash_run.validation.command import checked as main
from dflash_run.validation.company import Company, company_for, varied
from dflash_run.validation.kept import remake
from dflash_run.validation.overlay import draw
from dflash_run.validation.table import Limits, as_json, rows
from dflash_sim.replay import dispatcher_of, replay
from dflash_sim.timings_file import read_timings
from policies.faults import PipelineError
from policies.loading import from_mapping
from reports.tracefile import read_trace
from tests.run.training.cases import PROFILED

KEPT = Path(__file__).parents[3] / "docs" / "validation"
CPU = next(case for case in CASES if case.name == "cpu-1-1-shared")
SINGLY = {**CPU.file, "data": {"batch": {"samples": 1}}}
TINY = replace(CPU, samples=200, mean=60, longest=120, file=SINGLY)
QUICK = Effort(repeats=4, most_repeats=4, least_s=0.0, flow_s=0.1, rounds=1)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(what is kept, what is not) of one chain."""
    out, work = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("work")
    validate(TINY, out, work, Company(0, PROFILED, effort=QUICK))
    return out, work


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_the_chain_keeps_profile_prediction_summary_trace_and_table(done: tuple[Path, Path]) -> None:
    out, _ = done
    names = {path.name for path in out.iterdir()}
    assert names == {"timings.json", "prediction.json", "summary.json", "trace.parquet", "table.json"}
    table = {row["quantity"]: row for row in read(out / "table.json")["rows"]}
    assert {"throughput", "time to finish", "target/0 busy", "drafter/0 busy"} <= set(table)
    keys = {"quantity", "predicted", "measured", "difference", "limit", "unit"}
    assert all(keys <= set(row) for row in table.values())
    # How far prediction and run are apart says how busy the machine was; with the run's own times they must agree.
    assert table["throughput"]["predicted"] > 0
    assert abs(table["throughput, by the run's own times"]["difference"]) < 0.3
    assert table["time to finish, after a tenth of the run"]["predicted"] > 0


def test_the_prediction_was_written_before_the_run_with_the_hash_of_its_profile(done: tuple[Path, Path]) -> None:
    out, work = done
    told = read(out / "prediction.json")
    assert told["profile"]["sha256"] == hashlib.sha256((out / "timings.json").read_bytes()).hexdigest()
    assert (out / "prediction.json").stat().st_mtime < (work / f"run-{TINY.name}" / "trace.parquet").stat().st_mtime
    outcome = read(out / "summary.json")["prediction"]
    assert outcome["profile_sha256"] == told["profile"]["sha256"]
    assert outcome["makespan_s"]["predicted"] == told["summary"]["makespan_s"]


def test_the_table_is_worked_out_again_from_what_was_kept(done: tuple[Path, Path]) -> None:
    out, _ = done
    remade = remake(out, limits_of(TINY))
    kept = read(out / "table.json")["rows"]
    assert remade.drifts == [] and differences(TINY.name, kept, as_json(remade.table)) == []
    assert [row.predicted for row in remade.table] == pytest.approx([row["predicted"] for row in kept])


def test_a_profile_of_other_settings_is_refused_with_the_difference_named(done: tuple[Path, Path]) -> None:
    out, work = done
    other = replace(TINY, file={**TINY.file, "model": {**TINY.file["model"], "block_size": 8}})
    with pytest.raises(PipelineError, match="was measured with block_size 4, and here it is 8"):
        validate(other, out, work, Company(0, PROFILED))
    assert read_timings(out / "timings.json").settings["block_size"] == 4


def test_differences_and_limits_are_in_the_same_measure() -> None:
    worker = {"name": "target/0", "lifetime_s": 10.0, "busy_s": 5.0, **dict.fromkeys(
        ("blocked_s", "starved_s", "sync_s", "transfer_s"), 0.0)}
    a = {"throughput": {"tokens_per_s": 110.0, "steady_tokens_per_s": None}, "makespan_s": 10.0,
         "workers": [worker], "lanes": [{"name": "shared", "capacity": 4, "mean": 1.0}]}
    b = {**a, "throughput": {"tokens_per_s": 100.0, "steady_tokens_per_s": 100.0},
         "workers": [{**worker, "busy_s": 4.0}], "lanes": [{"name": "shared", "capacity": 4, "mean": 2.0}]}
    limits = Limits(rate=0.03, share=0.03, end=0.2)
    table = {row.quantity: row for row in rows(
        [a], b, foreseen_end=9.0, own_rate=99.0, solo_rate=125.0, copy_s=2.0, limits=limits)}
    assert table["copies hidden"].predicted == 1.0
    assert table["efficiency"].measured == pytest.approx(0.8)
    assert table["throughput"].difference == pytest.approx(0.1) and table["throughput"].holds is False
    assert table["target/0 busy"].difference == pytest.approx(0.1)
    assert table["shared mean depth"].difference == pytest.approx(-0.25)
    assert table["steady throughput"].difference is None and table["steady throughput"].holds is None
    assert table["time to finish, after a tenth of the run"].holds is True


def test_what_chance_decides_is_predicted_by_a_mean_and_its_spread_is_told() -> None:
    def told(busy: float, depth: float | None, rate: float) -> dict[str, Any]:
        worker = {"name": "target/0", "lifetime_s": 10.0, "busy_s": busy, **dict.fromkeys(
            ("blocked_s", "starved_s", "sync_s", "transfer_s"), 0.0)}
        return {"throughput": {"tokens_per_s": rate, "steady_tokens_per_s": rate}, "makespan_s": 10.0,
                "workers": [worker], "lanes": [{"name": "shared", "capacity": 4, "mean": depth}]}

    limits = Limits(rate=0.03, share=0.03, end=0.2)
    draws = [told(4.0, 1.0, 90.0), told(5.0, None, 95.0), told(6.0, 3.0, 99.0)]
    table = {row.quantity: row for row in rows(
        draws, told(5.0, 2.0, 90.0), foreseen_end=9.0, own_rate=99.0, solo_rate=125.0, copy_s=None, limits=limits)}
    busy, depth, rate = (table[name] for name in ("target/0 busy", "shared mean depth", "throughput"))
    assert (busy.predicted, busy.chance) == pytest.approx((0.5, 0.1)) and busy.holds
    assert (depth.predicted, depth.difference) == (0.5, 0.0)
    assert (rate.predicted, rate.chance) == (90.0, None), "the first's, which was written before the run"


def test_every_case_is_a_pipeline_and_fits_its_part(tmp_path: Path) -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    parts: dict[str, float] = {}
    for case in CASES:
        parts[case.part] = parts.get(case.part, 0.0) + case.minutes
        small = replace(case, samples=3, shape="tiny")
        assert from_mapping(small.prepare(tmp_path)).name == case.name
    assert set(parts) == set(PARTS) and max(parts.values()) <= 8  # minutes


@pytest.mark.parametrize("case", [case for case in CASES if (KEPT / case.name / "table.json").exists()], ids=str)
def test_kept_predictions_do_not_drift(case: Case) -> None:
    remade = remake(KEPT / case.name, limits_of(case))
    assert remade.drifts == []
    kept = read(KEPT / case.name / "table.json")["rows"]
    assert differences(case.name, kept, as_json(remade.table)) == []


@pytest.mark.parametrize("case", [case for case in CASES if (KEPT / case.name / "table.json").exists()], ids=str)
def test_kept_traces_are_replayed_with_equal_effects(case: Case) -> None:
    trace = read_trace(KEPT / case.name)
    assert replay(trace, dispatcher_of(trace)) == []


@pytest.mark.parametrize("workers", [PROCESSES, THREADS])
def test_cases_of_kept_workers_share_a_profile_and_are_compared_each(workers: str, tmp_path: Path) -> None:
    """`seconds` decides how much is trained; a case of another policy finds its profile, and its workers warm."""
    first = replace(TINY, name="first", workers=workers, seconds=0.5, samples=60)
    lone = replace(first, name="lone", file={**SINGLY, "dispatch": {"policy": "round_robin", "depth": 4}})
    with company_for([first, lone], tmp_path / "work", 0) as company:
        company.effort = replace(QUICK, again=True)
        for case in (first, lone):
            validate(case, tmp_path / case.name, tmp_path / "work", company)
    profiles = [(tmp_path / name / "timings.json").read_bytes() for name in ("first", "lone")]
    assert profiles[0] == profiles[1]
    told = [read(tmp_path / name / "summary.json") for name in ("first", "lone")]
    assert [each["policy"] for each in told] == ["shared", "round_robin"]
    assert all(each["batches"]["trained"] == each["batches"]["planned"] >= 60 for each in told)
    place = read(tmp_path / "first" / "timings.json")["settings"]["workers"]
    assert place == {PROCESSES: "processes", THREADS: "threads, threads of the processor"}[workers]


def test_the_records_topology_is_split_over_as_many_gpus_as_there_are() -> None:
    splits = {
        gpus: [(case.file["topology"]["targets"], case.file["topology"]["drafters"]) for case in CASES
               if case.part == f"{HOST}{gpus}-splits"]
        for gpus in (2, 4, 8)
    }  # fmt: skip
    assert splits == {2: [], 4: [(3, 1), (1, 3)], 8: [(6, 2), (4, 4)]}
    assert all(sum(split) == gpus for gpus, found in splits.items() for split in found)
    steps = [case for case in CASES if case.part == f"{HOST}8-steps"]
    assert [(case.gpus, case.file["training"]["sync"]) for case in steps] == [(8, "step"), (8, "step"), (8, "pooled")]


def test_without_gpus_their_parts_are_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("there are GPUs")
    assert main(["--host", "policies"]) == 2
    assert "from 2 to 16 are needed" in capsys.readouterr().err


def test_the_picture_shows_the_run_over_its_prediction(done: tuple[Path, Path]) -> None:
    pytest.importorskip("matplotlib")
    draw(done[0])
    picture = (done[0] / "overlay.svg").read_text(encoding="utf-8")
    assert "prediction" in picture and "trained [% of the tokens]" in picture
    assert len(picture) < 200_000


@pytest.mark.parametrize(("batches", "count"), [(400, 144), (10, 144), (144, 144), (1, 6), (400, 1)])
def test_workers_are_warmed_up_with_the_largest_batches_and_with_many_lengths(batches: int, count: int) -> None:
    lengths = np.random.default_rng(3).integers(200, 1500, batches)
    plan = SimpleNamespace(length=lengths, slots=4 * lengths)
    chosen = varied(plan, count)  # type: ignore[arg-type]
    assert len(set(chosen.tolist())) == len(chosen) == min(count, batches) and (np.diff(chosen) > 0).all()
    assert lengths[chosen].max() == lengths.max()
    if count > 100 and batches > 100:
        assert lengths[chosen].min() == lengths.min() and np.diff(np.sort(lengths[chosen])).max() < 60

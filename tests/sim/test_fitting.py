"""Timings from traces: durations are those that were drawn, and predictions from them are those of the run."""

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from typer.testing import CliRunner

from dflash_sim.cli import app, guarded
from dflash_sim.comparison import predict
from dflash_sim.doubts import doubts_of
from dflash_sim.durations import Durations, profiled_shape
from dflash_sim.fitting import fit, fit_sources, fit_trace, measured_parts, save_timings
from dflash_sim.prediction import draw_times, lanes_of, plan_of, planned_faults
from dflash_sim.service import ServiceTimes
from dflash_sim.simulator import Simulator
from dflash_sim.timings_file import Profile, RoleProfile, TimingsError, build_profile, read_timings, write_timings
from policies.assembly import build_dispatcher
from policies.batches import BatchPlan
from policies.effects import Assign, Deliver, Drop, Loaded, Recall, Step
from policies.loading import from_mapping, resolved
from policies.pipeline import Pipeline
from policies.trace import CODE
from reports.observer import Exchange, Log
from reports.tracefile import PlannedWork, TraceWriter, feed, read_trace
from tests.helpers import pipeline_of
from tests.recording import CASES, Case

BLOCKS = np.random.default_rng(5).choice([200, 700, 1500, 3000], 2500)
TIMED: dict[str, Any] = {
    "topology": {"targets": 3, "drafters": 2},
    # Four samples of a length in a row: every batch is of one of four shapes.
    "data": {"lengths": np.repeat(BLOCKS, 4).tolist(), "batch": {"samples": 4}, "order": "given"},
    "dispatch": {"policy": "shared", "depth": 2, "prefetch": 1},
    "training": {"sync": "step", "accumulate": 2},
    "timings": {
        "target": {"tokens_per_second": 5000, "cv": 0.15},
        "drafter": {"tokens_per_second": 8000, "cv": 0.1},
        "loader": {"seconds": 0.05, "cv": 0.5},
        "transfer": {"seconds": 0.1},
        "step": {"seconds": 0.15},
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "prefetch, step": {},
    "no prefetch, pooled": {"dispatch": {"policy": "shared"}, "training": {"sync": "pooled", "accumulate": 3}},
    "buckets, prefetch 3, none": {
        "data": TIMED["data"] | {"buckets": [512, 2048]},
        "dispatch": {"policy": "bucketed", "prefetch": 3},
        "training": {"sync": "none", "accumulate": 2},
    },
    "placed": {"dispatch": {"policy": "shared", "placement": "producer"}},
}


def variant(name: str) -> Pipeline:
    return pipeline_of(**{**TIMED, **VARIANTS[name]})


def record(pipeline: Pipeline, folder: Path, kind: str = "simulation") -> tuple[BatchPlan, ServiceTimes]:
    """Simulate with a trace in `folder`; returns the batches and the times that were drawn."""
    plan = plan_of(pipeline)
    dispatcher = build_dispatcher(pipeline, plan.bucket_names, plan.bucket.tolist())
    times = draw_times(pipeline, plan, pipeline.seed, None)
    with TraceWriter(
        folder,
        kind=kind,
        targets=pipeline.topology.targets,
        drafters=pipeline.topology.drafters,
        lanes=lanes_of(dispatcher),
        plan=plan,
        config=resolved(pipeline),
    ) as writer:
        simulator = Simulator(
            dispatcher=dispatcher,
            times=times,
            log=Log(writer),
            batches=plan.count,
            placement=pipeline.dispatch.placement,
            faults=planned_faults(pipeline),
            at_s=pipeline.stop.at_s,
        )
        writer.finish(simulator.run())
    return plan, times


def with_file(pipeline: Pipeline, file: Path) -> Pipeline:
    sections = resolved(pipeline) | {"timings": {"file": str(file)}}
    return type(pipeline).model_validate(sections)


def samples_of(profile: Profile, role: str) -> dict[tuple[int, int], list[float]]:
    part: RoleProfile | None = getattr(profile, role)
    assert part is not None
    return {(each.batch_size, each.length): sorted(each.seconds) for each in part.samples}


def drawn_by_shape(plan: BatchPlan, seconds: Any) -> dict[tuple[int, int], list[float]]:
    shapes = defaultdict(list)
    for size, length, value in zip(plan.samples.tolist(), plan.length.tolist(), seconds, strict=True):
        shapes[size, length].append(float(value))
    return {shape: sorted(values) for shape, values in shapes.items()}


def faults_of(*paths: Path) -> list[str]:
    with pytest.raises(TimingsError) as caught:
        fit_sources(paths)
    return list(caught.value.faults)


def profile_of(**more: Any) -> Profile:
    role = {"samples": [{"batch_size": 4, "length": 700, "seconds": [0.5, 0.6]}]}
    return build_profile({"target": role} | more)


def saved(profile: Profile, path: Path) -> Path:
    write_timings(profile, path)
    return path


# Round trips


@pytest.mark.parametrize("name", VARIANTS)
def test_the_fitted_samples_are_the_times_that_were_drawn(name: str, tmp_path: Path) -> None:
    plan, times = record(variant(name), tmp_path)
    fitted = fit_sources([tmp_path])
    for role in ("target", "drafter"):
        drawn = drawn_by_shape(plan, getattr(times, f"{role}_times").times(0))
        found = samples_of(fitted, role)
        assert found.keys() == drawn.keys() and len(drawn) == 4
        for shape, seconds in drawn.items():
            assert found[shape] == pytest.approx(seconds, rel=1e-6)
            assert np.mean(found[shape]) == pytest.approx(np.mean(seconds), rel=1e-9)
    assert fitted.loader is not None and fitted.transfer is not None and fitted.step is not None
    assert fitted.loader.seconds == pytest.approx([times.loader(batch) for batch in range(plan.count)], rel=1e-6)
    assert set(np.round(fitted.transfer.seconds, 6)) == {0.1}
    assert set(np.round(fitted.step.seconds, 6)) == {0.15}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_prediction_from_the_fit_has_the_throughput_of_the_run(name: str, tmp_path: Path) -> None:
    pipeline = variant(name)
    record(pipeline, tmp_path)
    save_timings(fit_sources([tmp_path / "trace.parquet"]), tmp_path / "timings.json")
    _, measured = predict(pipeline)
    run, predicted = predict(with_file(pipeline, tmp_path / "timings.json"))
    for key in ("tokens_per_s", "steady_tokens_per_s"):
        assert predicted["throughput"][key] == pytest.approx(measured["throughput"][key], rel=0.02)
    assert run.measured is not None
    assert all(use.resampled == use.batches == 2500 for use in run.measured.used.values())


def test_slow_first_batches_are_set_apart_and_predicted_again(tmp_path: Path) -> None:
    slow = {"tokens_per_second": 8000, "cv": 0.1, "first_seconds": 500}
    pipeline = pipeline_of(**{**TIMED, "timings": {**TIMED["timings"], "drafter": slow}})
    record(pipeline, tmp_path)
    fitted = fit_sources([tmp_path])
    assert fitted.drafter is not None
    assert fitted.drafter.first_seconds == pytest.approx([500, 500])
    save_timings(fitted, tmp_path / "timings.json")
    _, predicted = predict(with_file(pipeline, tmp_path / "timings.json"))
    assert predicted["makespan_s"] == pytest.approx(predict(pipeline)[1]["makespan_s"], rel=0.02)


def test_workers_that_differ_keep_factors_where_asked(tmp_path: Path) -> None:
    timings = {"target": {"seconds": [1.0, 2.0]}, "drafter": {"seconds": 0.5}}
    record(pipeline_of(topology={"targets": 2}, data={"batches": 300}, timings=timings), tmp_path)
    fitted = fit_sources([tmp_path], per_worker=True)
    assert fitted.target is not None
    slow, fast = fitted.target.worker_factors[1], fitted.target.worker_factors[0]
    assert slow / fast == pytest.approx(2.0)
    assert set(np.round(fitted.target.samples[0].seconds, 9)) == {1.0}
    assert fit_sources([tmp_path]).target != fitted.target


# Listed batches


def test_a_listed_batch_is_looked_up_again_and_its_factors_are_not_applied_twice(tmp_path: Path) -> None:
    entries = [
        {"tokens": 65536, "length": 2048, "seconds": 8.0, "target_seconds": 3.0},
        {"tokens": 30000, "length": 1000, "seconds": 2.0},
        {"tokens": 500, "length": 1000},
    ]
    pipeline = pipeline_of(data={"batches": entries * 30, "order": "shuffled"}, seed=3)
    record(pipeline, tmp_path)
    fitted = fit_sources([tmp_path])
    shapes = {(32, 2048), (30, 1000), (1, 500)}
    assert samples_of(fitted, "target").keys() == samples_of(fitted, "drafter").keys() == shapes
    for role in ("target", "drafter"):
        assert all(seconds == pytest.approx([1.0] * 30) for seconds in samples_of(fitted, role).values())
    save_timings(fitted, tmp_path / "timings.json")
    _, predicted = predict(with_file(pipeline, tmp_path / "timings.json"))
    assert predicted["makespan_s"] == pytest.approx(predict(pipeline)[1]["makespan_s"])


def test_a_training_takes_what_it_takes_whatever_factors_are_listed(tmp_path: Path) -> None:
    record(pipeline_of(data={"batches": [{"tokens": 64, "seconds": 8.0}] * 9}), tmp_path, kind="training")
    assert samples_of(fit_sources([tmp_path]), "drafter")[1, 64] == pytest.approx([8.0] * 9)


def test_listed_batches_that_are_not_those_of_the_run_are_refused(tmp_path: Path) -> None:
    record(pipeline_of(data={"batches": [{"tokens": 64, "seconds": 8.0}] * 9}), tmp_path)
    trace = read_trace(tmp_path)
    with pytest.raises(TimingsError, match=r"data.batches: its list makes other batches"):
        fit_trace(replace(trace, header=replace(trace.header, plan_hash="another")))


@pytest.mark.parametrize(
    ("slots", "length", "shape"),
    [
        (65536, 2048, (32, 2048)),
        (700, 700, (1, 700)),
        (65537, 2048, (32, 2048)),
        (1000, 300, (3, 333)),
        (512, 2048, (1, 512)),
        (0, 0, (1, 1)),
    ],
)
def test_a_shape_has_the_slots_of_the_batch_or_nearly(slots: int, length: int, shape: tuple[int, int]) -> None:
    assert profiled_shape(slots, length) == shape


# Losses


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whatever_happens_every_duration_is_one_that_was_drawn(case: Case, tmp_path: Path) -> None:
    case.record(tmp_path)
    trace = read_trace(tmp_path)
    durations = Durations(work=trace.work, drafters=case.drafters)
    feed(trace, durations)
    noiseless = {"target": 1000.0, "drafter": 1500.0}
    drawn = {(role, slots): slots / rate for role, rate in noiseless.items() for slots in trace.work.slots}
    for role, event in (("target", "offer"), ("drafter", "computed")):
        rows = [row for row in durations.rows if row.role == role]
        assert len(rows) == (trace.kind == CODE[event]).sum()
        # cv 0.3: five standard deviations of the logarithm
        assert all(0.2 < row.seconds / drawn[role, row.samples * row.length] < 5 for row in rows)
    for found, seconds in ((durations.transfer, case.transfer), (durations.steps, case.step)):
        assert found == pytest.approx([seconds or 0.0] * len(found), abs=1e-9)


def observed(*exchanges: Exchange, placement: str | None = None, hidden: bool = True) -> Durations:
    work = PlannedWork(tokens=[8] * 4, slots=[8] * 4, samples=[1] * 4, length=[8] * 4, bucket=[0] * 4)
    durations = Durations(work=work, drafters=2, placement=placement, hidden=hidden)
    durations.observe(exchanges)
    return durations


def deliver(batch: int, drafter: int = 0, source: int = 0) -> Deliver:
    return Deliver(drafter, batch, 0, source, 0, False)


def test_what_a_lost_target_was_computing_gives_no_record() -> None:
    durations = observed(
        (0.0, "target_ready", (0,), [Assign(0, 1, 0)]),
        (4.0, "target_lost", (0,), [Assign(1, 1, 0)]),
        (6.0, "offer", (1, 1), []),
    )
    assert [(row.worker, row.seconds) for row in durations.rows] == [(1, 2.0)]


def test_a_batch_taken_ahead_begins_when_the_step_before_is_over() -> None:
    durations = observed(
        (0.0, "drafter_ready", (0,), [deliver(0), deliver(1)]),
        (1.0, "received", (0, 0), []),
        (2.0, "received", (0, 1), []),
        (4.0, "computed", (0, 0), [Step(0, (0, 1), (0,))]),
        (9.0, "commit", (0, (0,)), []),
        (11.0, "computed", (0, 1), [Step(1, (0, 1), (1,))]),
        (11.0, "abandon", (1,), [Drop(1, (0, 1))]),
    )
    assert [row.seconds for row in durations.rows] == [3.0, 2.0]
    assert durations.steps == [5.0] and durations.transfer == [1.0, 1.0]


def test_a_copy_after_one_that_was_broken_off_is_not_measured() -> None:
    durations = observed(
        (0.0, "drafter_ready", (0,), [deliver(0), deliver(1), deliver(2)]),
        (3.0, "target_lost", (0,), [Recall(0, 0)]),
        (9.0, "received", (0, 1), []),
        (10.5, "received", (0, 2), []),
    )
    assert durations.transfer == [1.5]


def test_only_copies_that_the_placement_asks_for_are_transfers() -> None:
    calls: list[Exchange] = [
        (0.0, "drafter_ready", (0,), [deliver(0, 0, 0)]),
        (0.0, "received", (0, 0), []),
        (0.0, "drafter_ready", (1,), [deliver(1, 1, 2)]),
        (0.5, "received", (1, 1), []),
    ]
    assert observed(*calls).transfer == [0.0, 0.5]
    assert observed(*calls, placement="producer").transfer == [0.5]
    assert observed(*calls, placement="taker").transfer == []


def test_of_a_real_drafter_only_copies_count_for_which_it_waited() -> None:
    """While it launches it hears of nothing: when it says that a copy has ended is then no measure of the copy."""
    calls: list[Exchange] = [
        (0.0, "drafter_ready", (0,), [deliver(0), deliver(1)]),
        (0.5, "received", (0, 0), []),
        (0.5, "load", (0, 1), [deliver(2)]),
        (7.0, "received", (0, 1), []),
        (7.5, "received", (0, 2), []),
    ]
    assert observed(*calls).transfer == [0.5, 6.5, 0.5]
    assert observed(*calls, hidden=False).transfer == [0.5]


def test_the_loader_is_measured_from_the_admission_of_its_last_batch() -> None:
    durations = observed(
        (1.0, "load", (0, 1), [Loaded(0, 0)]),
        (3.0, "load", (1, 1), []),
        (8.0, "target_ready", (0,), [Loaded(1, 0)]),
        (8.5, "load", (2, 1), [Loaded(2, 0)]),
    )
    assert durations.loader == [1.0, 2.0, 0.5]


def test_batches_that_are_ready_together_share_the_loaders_time() -> None:
    durations = observed(
        (1.0, "load", (0, 1), [Loaded(0, 0)]),
        (4.0, "load", (1, 3), []),
        (8.0, "target_ready", (0,), [Loaded(3, 0)]),
    )
    assert durations.loader == [1.0, 1.0, 1.0, 1.0]


# Sources


def test_costs_that_were_not_there_are_left_out(tmp_path: Path) -> None:
    record(pipeline_of(data={"batches": 20}), tmp_path)
    fitted = fit_sources([tmp_path])
    assert fitted.step is None and fitted.loader is None and fitted.transfer is None


def test_settings_anchors_and_bytes_come_from_the_configuration_of_the_trace(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "model": {"name_or_path": "some/model", "taps": [1, 9, 17]},
        "memory": {"hidden_size": 64, "taps": 3},
        "training": {"anchors": 256},
    }
    record(pipeline_of(data={"batches": 20}, **sections), tmp_path)
    fitted = fit_sources([tmp_path])
    said = {"model": "some/model", "taps": 3, "block_size": 16, "drafter_layers": 5, "anchors": 256, "loss": "ce"}
    assert said.items() <= fitted.settings.items()
    assert fitted.hidden_bytes_per_token == 64 * 3 * 2
    assert fitted.target is not None and fitted.drafter is not None
    assert (fitted.target.samples[0].anchors, fitted.drafter.samples[0].anchors) == (None, 256)


def test_a_profile_and_traces_in_any_form_are_merged(tmp_path: Path) -> None:
    pipeline = pipeline_of(data={"batches": 20, "batch_tokens": 700})
    for name in ("whole", "killed"):
        record(pipeline, tmp_path / name)
    parts = tmp_path / "killed" / "trace.parts"
    parts.mkdir()
    shutil.move(tmp_path / "killed" / "trace.parquet", parts / "000000.parquet")
    renamed = shutil.copy(tmp_path / "whole" / "trace.parquet", tmp_path / "renamed")
    profile = saved(profile_of(machine={"gpu": "A"}), tmp_path / "profile.json")
    killed = tmp_path / "killed"
    merged = fit_sources([profile, tmp_path / "whole", killed, killed / "trace.parquet", parts, renamed])
    assert merged.machine == {"gpu": "A"}
    counts = {shape: len(seconds) for shape, seconds in samples_of(merged, "target").items()}
    assert counts == {(4, 700): 2, (1, 700): 5 * 20}


def test_every_unusable_source_is_told_in_one_pass_with_its_path(tmp_path: Path) -> None:
    missing, text, broken = tmp_path / "missing.json", tmp_path / "text.json", tmp_path / "trace.parquet"
    text.write_text("no timings")
    broken.write_bytes(b"PAR1 and no more")
    empty, alike = tmp_path / "empty", tmp_path / "alike"
    Case(batches=0).record(empty)
    no_time = tmp_path / "no_time"
    record(pipeline_of(data={"batches": 5}, timings={"drafter": {"seconds": 0}}), no_time)
    alike.mkdir()
    one = saved(profile_of(settings={"model": "a"}), tmp_path / "one.json")
    other = saved(profile_of(settings={"model": "b"}), tmp_path / "other.json")
    paths = [missing, text, broken, empty, alike, no_time, other]
    faults = faults_of(missing, text, broken, empty, one, alike, no_time, other)
    for fault, path in zip(faults, paths, strict=True):
        assert fault.startswith(str(path)) and len(fault.splitlines()) == 1
    assert "every one of 5 batches took no time" in faults[5]
    assert "settings.model: 'b': another source has 'a'" in faults[6]


def test_a_trace_with_an_event_missing_is_refused_and_not_a_crash(tmp_path: Path) -> None:
    record(pipeline_of(data={"batches": 20}), tmp_path)
    trace = read_trace(tmp_path)
    kept = np.flatnonzero(trace.kind != CODE["assign"])
    columns = ("time_s", "kind", "worker", "batch", "lane", "step", "source", "extra")
    with pytest.raises(TimingsError, match="never began"):
        fit_trace(replace(trace, **{column: getattr(trace, column)[kept] for column in columns}))


# The command


def test_the_command_writes_the_timings_and_tells_what_was_measured(tmp_path: Path) -> None:
    record(variant("prefetch, step"), tmp_path / "run")
    out = tmp_path / "new" / "timings.json"
    told = CliRunner().invoke(app, ["fit", str(tmp_path / "run"), "-o", str(out)])
    assert told.exit_code == 0, told.output
    for name in ("target", "drafter", "step", "loader", "transfer"):
        assert f"\n{name} " in told.output
    assert [path.name for path in out.parent.iterdir()] == ["timings.json"]
    again = tmp_path / "again.json"
    as_json = CliRunner().invoke(app, ["fit", str(out), "-o", str(again), "--json"])
    assert json.loads(as_json.stdout) == json.loads(out.read_text()) == json.loads(again.read_text())


def test_the_command_needs_a_source_and_an_output_and_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = str(saved(profile_of(), tmp_path / "profile.json"))
    for arguments in ([profile], ["-o", profile], ["none", "-o", "x"], [profile, "-o", "."], ["", "-o", "x"]):
        assert guarded(app, ["fit", *arguments]) == 2
        errors = capsys.readouterr().err
        assert len(errors.splitlines()) == 1 and "Traceback" not in errors


def told_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    """The lines of a `fit` that is refused."""
    assert guarded(app, ["fit", *map(str, arguments)]) == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    "out",
    [
        "run/trace.parquet",
        "run/summary.json",
        "run/prediction.json",
        "run/trace.parts/000000.parquet",
        "link/trace.parquet",
        "linked.parquet",
        "hard.parquet",
        "other/trace.parquet",
        "other/summary.json",
        "other/trace.parts/new",
        "notes.txt",
        "profile.json",
        "other/../profile.json",
    ],
)
def test_the_output_never_replaces_what_is_read_or_a_runs_own_files(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run", "other"):
        record(pipeline_of(data={"batches": 20}), tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "linked.parquet").symlink_to(tmp_path / "run" / "trace.parquet")
    (tmp_path / "hard.parquet").hardlink_to(tmp_path / "run" / "trace.parquet")
    profile = saved(profile_of(), tmp_path / "profile.json")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other" / "summary.json").write_text('{"kind": "training"}')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    [fault] = told_of(capsys, tmp_path / "run", profile, "-o", tmp_path / out)
    assert fault.startswith("-o: got ") and "must not replace" in fault and "give another" in fault
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert guarded(app, ["fit", str(tmp_path / "run"), "-o", str(tmp_path / "run" / "timings.json")]) == 0


def test_the_output_is_checked_first_and_told_with_all_other_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = saved(profile_of(), tmp_path / "profile.json")
    for out, rule in (
        ("", "must name a file"),
        (".", "must be a file; it is a folder"),
        (tmp_path, "must be a file; it is a folder"),
        (profile / "x.json", f"{profile} is no folder"),
    ):
        first, second = told_of(capsys, profile, tmp_path / "none", "-o", out)
        assert first.startswith("-o: got ") and rule in first and "there is no such file" in second


# Interference is counted once

ONE_CARD = Path(__file__).parents[2] / "docs" / "validation" / "gpu-1-1-one-card"
PAIR = {"a": "target", "b": "drafter", "shared": "cuda:0", "factor_a": 2.0, "factor_b": 2.0}


def kept_rate(timings: Profile, folder: Path) -> float:
    """Tokens per second that these timings predict for the committed run on one card."""
    trace = read_trace(ONE_CARD)
    config = {key: value for key, value in trace.header.config.items() if key not in ("data", "timings")}
    batches = [
        {"tokens": tokens, "length": length, "samples": samples}
        for tokens, length, samples in zip(trace.work.slots, trace.work.length, trace.work.samples, strict=True)
    ]
    file = saved(timings, folder / "timings.json")
    pipeline = from_mapping(config | {"data": {"batches": batches}, "timings": {"file": str(file)}})
    rate: float = predict(pipeline)[1]["throughput"]["tokens_per_s"]
    return rate


def test_a_trace_and_a_profile_with_interference_predict_together_what_the_trace_alone_does(tmp_path: Path) -> None:
    profile = ONE_CARD / "timings.json"
    alone = kept_rate(fit_sources([ONE_CARD]), tmp_path)
    for sources in ([ONE_CARD, profile], [profile, ONE_CARD]):
        assert kept_rate(fit_sources(sources), tmp_path) == pytest.approx(alone, rel=0.02)
    fitted = saved(fit_sources([ONE_CARD]), tmp_path / "fitted.json")  # a file remembers that it is of a run
    assert kept_rate(fit_sources([fitted, profile]), tmp_path) == pytest.approx(alone, rel=0.02)


def test_beside_a_trace_a_profile_with_interference_gives_what_the_trace_lacks(tmp_path: Path) -> None:
    record(pipeline_of(data={"batches": 20, "batch_tokens": 700}), tmp_path / "run", kind="training")
    shapes = [
        {"batch_size": size, "length": 700, "seconds": [0.5], "parts": {"forward": [0.4]}} for size in (1, 4)
    ]
    role = {"samples": shapes, "first_seconds": [9.0], "worker_factors": [1.0]}
    profile = build_profile(
        {
            "target": role,
            "step": {"seconds": [0.25]},
            "machine": {"gpu": "A"},
            "memory": {"target_peak_bytes": 7},
            "hidden_bytes_per_token": 64,
            "interference": {"cores": 4, "pairs": [PAIR]},
        }
    )
    both = fit_sources([saved(profile, tmp_path / "profile.json"), tmp_path / "run"])
    assert both.target is not None and both.step is not None
    assert samples_of(both, "target") == samples_of(fit_sources([tmp_path / "run"]), "target")
    assert both.target.samples[0].parts == {"forward": (0.4,)}
    assert (both.target.first_seconds, both.target.worker_factors) == ((9.0,), ())
    assert both.step.seconds == (0.25,)  # the run had no steps
    assert both.interference.in_samples and not both.interference.pairs and both.interference.cores is None
    assert (both.machine, both.memory, both.hidden_bytes_per_token) == ({"gpu": "A"}, {"target_peak_bytes": 7}, 64)


def test_a_profile_without_interference_is_pooled_with_a_trace(tmp_path: Path) -> None:
    record(pipeline_of(data={"batches": 20, "batch_tokens": 700}), tmp_path / "run", kind="training")
    both = fit_sources([tmp_path / "run", saved(profile_of(), tmp_path / "profile.json")])
    assert {shape: len(seconds) for shape, seconds in samples_of(both, "target").items()} == {(1, 700): 20, (4, 700): 2}


def test_what_is_left_out_is_told_in_one_line(tmp_path: Path) -> None:
    arguments = ["fit", str(ONE_CARD), str(ONE_CARD / "timings.json"), "-o", str(tmp_path / "timings.json")]
    told = CliRunner().invoke(app, arguments)
    [line] = [line for line in told.stdout.splitlines() if "left out" in line]
    assert "interference" in line and "target, drafter, step, transfer" in line
    assert "predict runs of that topology" in line
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(as_json.stdout) and "left out" in as_json.stderr
    alone = CliRunner().invoke(app, ["fit", str(ONE_CARD), "-o", str(tmp_path / "timings.json")])
    assert "left out" not in alone.output


# What runs were is told, too

WITH_MODEL: dict[str, Any] = {"model": {"name_or_path": "/a/target-tiny"}, "data": {"batches": 20}}


def read_by_workers(folder: Path, kind: str, **config: Any) -> Path:
    """A trace whose header says that samples were read: a run of that kind computed."""
    pipeline = pipeline_of(**WITH_MODEL)
    record(pipeline, folder, kind)
    trace = read_trace(folder)
    told = dict(trace.header.config) | {"data": {"path": "tokens.jsonl"}} | config
    table = pq.read_table(folder / "trace.parquet")
    schema = replace(trace.header, config=told).schema()
    pq.write_table(table.replace_schema_metadata(schema.metadata), folder / "trace.parquet")
    return folder


@pytest.mark.parametrize(
    ("kind", "devices", "said"),
    [
        ("training", None, {"workers": "processes"}),
        ("training", {"targets": "cuda:0"}, {"workers": "processes", "target_device": "cuda"}),
        (
            "rehearsal",
            {"targets": ["cuda:0", "cpu"], "drafters": "cpu"},
            {"workers": "threads", "target_device": "cpu+cuda", "drafter_device": "cpu"},
        ),
    ],
)
def test_settings_say_what_the_header_of_a_run_that_computed_decides_and_no_more(
    kind: str, devices: Any, said: dict[str, str], tmp_path: Path
) -> None:
    topology = {"targets": 1, "drafters": 1, "target_gpus": 1, **({"devices": devices} if devices else {})}
    memory = {"staging": "device", "hidden_size": 64, "taps": 1, "dtype_bytes": 2}
    read_by_workers(tmp_path, kind, topology=topology, memory=memory)
    found = fit_sources([tmp_path]).settings
    told = said | {"staging": "device", "hidden_size": 64, "model": "/a/target-tiny"}
    assert told.items() <= found.items()
    assert {"target_device", "drafter_device", "threads"} & found.keys() <= said.keys()


def test_the_settings_of_committed_traces_agree_with_their_profiles() -> None:
    folders = [path.parent for path in ONE_CARD.parent.glob("*/trace.parquet")]
    assert len(folders) >= 13
    for folder in folders:
        both = fit_sources([folder, folder / "timings.json"])
        assert both.settings["workers"] == read_timings(folder / "timings.json").settings["workers"]


def of_topology(targets: int, drafters: int, /, **devices: Any) -> dict[str, Any]:
    named = {"devices": devices} if devices else {}
    return {"topology": {"targets": targets, "drafters": drafters, "target_gpus": 1, **named}}


@pytest.mark.parametrize(
    ("kind", "topology", "shared"),
    [
        ("training", of_topology(2, 2), []),
        ("training", of_topology(2, 1, targets=["cuda:0", "cuda:1"], drafters="cuda"), ["1 + 1"]),
        ("training", of_topology(2, 2, targets=["cuda:1", "cuda:0"], drafters=["cuda:0", "cuda:1"]), ["1 + 1"] * 2),
        ("training", of_topology(2, 2, targets="cpu", drafters="cpu"), []),
        ("training", of_topology(1, 1, targets="cuda:0"), None),
        ("rehearsal", of_topology(5, 3), None),
        ("rehearsal", of_topology(5, 3, targets="cuda:0", drafters="cuda:0"), ["5 + 3"]),
    ],
)  # fmt: skip
def test_timings_of_a_run_keep_its_topology_and_which_workers_shared_a_gpu(
    kind: str, topology: dict[str, Any], shared: list[str] | None, tmp_path: Path
) -> None:
    found = fit_sources([read_by_workers(tmp_path, kind, **topology)]).settings
    counts = topology["topology"]
    assert (found["targets"], found["drafters"]) == (counts["targets"], counts["drafters"])
    assert found.get("shared_gpus") == shared


def test_simulated_runs_hold_no_interference_and_keep_no_topology(tmp_path: Path) -> None:
    record(pipeline_of(**WITH_MODEL), tmp_path)
    assert not {"targets", "drafters", "shared_gpus"} & fit_sources([tmp_path]).settings.keys()


def test_runs_of_other_topologies_are_not_pooled(tmp_path: Path) -> None:
    one = read_by_workers(tmp_path / "one", "training", **of_topology(1, 1))
    same = read_by_workers(tmp_path / "same", "training", **of_topology(1, 1))
    two = read_by_workers(tmp_path / "two", "training", **of_topology(2, 1))
    near = read_by_workers(tmp_path / "near", "training", **of_topology(1, 1, targets="cuda:0", drafters="cuda:0"))
    [fault] = faults_of(one, same, two)
    assert fault.startswith(f"{two}: settings.targets: 2: another source has 1; ")
    assert fault.endswith("hold the interference of their topology: fit each topology by itself")
    [fault] = faults_of(one, near)
    assert fault.startswith(f"{near}: settings.shared_gpus: ['1 + 1']: another source has []; ")


def test_timings_of_an_unknown_topology_are_pooled_with_a_line_and_the_result_knows_none(tmp_path: Path) -> None:
    run = read_by_workers(tmp_path / "run", "training", **of_topology(2, 2))
    old = saved(profile_of(interference={"in_samples": True}), tmp_path / "old.json")
    fitted = fit([run, old])
    assert fitted.remarks()[0].startswith("not known: of which topology some of the timings are")
    assert not {"targets", "drafters", "shared_gpus"} & fitted.profile.settings.keys()
    assert fit([run, run]).remarks() == []


@pytest.mark.parametrize(
    ("settings", "doubt"),
    [
        ({"targets": 2, "drafters": 1, "shared_gpus": []}, ""),
        ({"targets": 1, "drafters": 1}, "fitted from a run of 1 + 1 workers, whose interference the timings hold; they "
         "do not tell that of 2 + 1 workers: "),
        ({"targets": 2, "drafters": 1, "shared_gpus": ["2 + 1"]}, "fitted from a run of GPUs shared by 2 + 1 workers"),
        ({}, "not known: the topology of the run that the timings are fitted from"),
    ],
)  # fmt: skip
def test_a_prediction_of_another_topology_than_the_runs_is_told_as_doubtful(
    settings: dict[str, Any], doubt: str, tmp_path: Path
) -> None:
    role = {"samples": [{"batch_size": 1, "length": 1, "seconds": [0.5, 0.6]}]}
    content = {"target": role, "drafter": role, "settings": settings, "interference": {"in_samples": True}}
    file = saved(build_profile(content), tmp_path / "timings.json")
    path = tmp_path / "pipeline.json"
    path.write_text(json.dumps({"topology": {"targets": 2}, "data": {"batches": 9}, "timings": {"file": str(file)}}))
    said = CliRunner().invoke(app, ["run", str(path), "-o", str(tmp_path / "run")])
    doubts = json.loads((tmp_path / "run" / "summary.json").read_text()).get("timings_doubted", [])
    assert said.exit_code == 0 and [text[: len(doubt)] for text in doubts] == [doubt] * bool(doubt)
    assert ("doubtful " + doubt[:40] in said.stdout) == bool(doubt)


def test_a_run_whose_shared_gpus_are_not_known_is_told_only_where_the_prediction_shares_some() -> None:
    settings = {"targets": 1, "drafters": 1}
    fitted = build_profile({"settings": settings, "interference": {"in_samples": True}})
    assert doubts_of(pipeline_of(data={"batches": 2}), fitted) == []
    near = pipeline_of(data={"batches": 2}, topology={"devices": {"targets": "cuda:0", "drafters": "cuda:0"}})
    [doubt] = doubts_of(near, fitted)
    assert doubt.startswith("not known: which workers shared a GPU")


def test_runs_that_computed_in_other_places_or_not_at_all_are_not_pooled(tmp_path: Path) -> None:
    training, threads = read_by_workers(tmp_path / "t", "training"), read_by_workers(tmp_path / "r", "rehearsal")
    simulated, asleep = tmp_path / "simulated", tmp_path / "asleep"
    record(pipeline_of(**WITH_MODEL), simulated)
    record(pipeline_of(**WITH_MODEL), asleep, kind="rehearsal")
    profile = saved(profile_of(settings={"workers": "processes"}), tmp_path / "profile.json")
    for one, other in ((training, simulated), (threads, asleep), (threads, profile), (simulated, profile)):
        [fault] = faults_of(one, other)
        assert fault.startswith(f"{other}: settings.workers: ") and "another source has" in fault
    assert fit_sources([simulated, simulated]).settings["workers"] == "simulated"
    assert fit_sources([training, profile]).settings["workers"] == "processes"


def test_models_are_known_by_the_last_part_of_their_path_when_sources_are_merged(tmp_path: Path) -> None:
    one = saved(profile_of(settings={"model": "/a/target-tiny"}), tmp_path / "one.json")
    same = saved(profile_of(settings={"model": "/b/target-tiny/"}), tmp_path / "same.json")
    other = saved(profile_of(settings={"model": "/a/target-small"}), tmp_path / "other.json")
    assert fit_sources([one, same]).settings == {"model": "/a/target-tiny"}
    assert "settings.model: '/a/target-small'" in faults_of(one, same, other)[0]


# What is wrong with a trace


@pytest.mark.parametrize("factor", [1e-14, 1e11])
def test_times_that_no_machine_gives_are_one_line_with_the_trace_and_their_range(factor: float, tmp_path: Path) -> None:
    timings = {role: {"seconds": [1.0, 2.0][index] * factor} for index, role in enumerate(("target", "drafter"))}
    record(pipeline_of(data={"batches": 20}, timings=timings), tmp_path)
    [fault] = faults_of(tmp_path)
    assert fault.startswith(f"{tmp_path}: its times: ") and "must be 1e-12 to 1e+09 s" in fault
    assert "record the run again" in fault and "profile" not in fault and f"e{np.log10(factor):+.0f}" in fault


def test_planned_batches_that_do_not_come_first_are_told_as_that(tmp_path: Path) -> None:
    record(pipeline_of(data={"batches": 20}), tmp_path)
    table = pq.read_table(tmp_path / "trace.parquet")
    pq.write_table(pa.concat_tables([table.slice(1), table.slice(0, 1)]), tmp_path / "trace.parquet")
    [fault] = faults_of(tmp_path)
    assert "its planned batches do not come first" in fault and "of 20" not in fault


def test_first_batches_and_shapes_are_told_for_each_role() -> None:
    role = {"samples": [{"batch_size": 4, "length": 700, "seconds": [0.5, 0.7]}], "first_seconds": [60.0, 62.0]}
    (part, loader) = measured_parts(build_profile({"drafter": role, "loader": {"seconds": [0.1]}}))
    assert (part.name, part.shapes, part.samples, part.median, part.first) == ("drafter", 1, 2, 0.6, 61.0)
    assert (loader.name, loader.shapes, loader.samples) == ("loader", None, 1)

"""Figures' numbers from a trace's columns: they equal the accumulator's, for every kind of run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.trace import TraceError
from reports.counted import metrics_of_columns
from reports.durations import durations, step_seconds
from reports.flow import commits, eta_history, rate_over_time
from reports.levels import Level, lane_levels
from reports.metrics import BUSY, STATES, TRANSFER, Metrics
from reports.recorded import Recorded, read_recorded
from reports.shapes import mixing_of, shapes_of
from reports.spans import WorkerSpans, worker_spans
from reports.statistics import Eta, remaining_time
from reports.summary import Facts, summarize, to_json
from reports.tracefile import metrics_of, read_trace
from tests.recording import BY_HAND, CASES, Case

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def recorded_of(case: Case, folder: Path) -> Recorded:
    case.record(folder, rows_per_part=100)
    return read_recorded(folder)


@pytest.fixture
def run(tmp_path: Path) -> Recorded:
    return recorded_of(CASES["timed extras"], tmp_path)


# The numbers are the accumulator's ------------------------------------------------------------------------------


@cases
def test_the_spans_of_every_worker_add_up_to_its_meter(case: Case, tmp_path: Path) -> None:
    recorded = recorded_of(case, tmp_path)
    metrics = metrics_of(read_trace(tmp_path))
    meters = [*metrics.targets, *metrics.drafters]
    for meter, spans in zip(meters, worker_spans(recorded), strict=True):
        assert (spans.name, spans.end_s) == (meter.name, meter.end)
        np.testing.assert_allclose(spans.seconds(), meter.seconds, rtol=1e-12, atol=1e-9)
        assert (np.diff(spans.edges) > 0).all()


@pytest.mark.parametrize("calls", BY_HAND.values(), ids=BY_HAND)
def test_the_spans_of_what_no_simulation_does_add_up_to_the_meters(calls: Any, tmp_path: Path) -> None:
    Case(sync="step", targets=1, drafters=1, batches=1).record_by_hand(tmp_path, calls)
    metrics = metrics_of(read_trace(tmp_path))
    for meter, spans in zip([*metrics.targets, *metrics.drafters], worker_spans(read_recorded(tmp_path)), strict=True):
        assert spans.seconds().tolist() == meter.seconds


@cases
def test_the_lanes_have_the_depths_of_their_meters(case: Case, tmp_path: Path) -> None:
    recorded = recorded_of(case, tmp_path)
    metrics = metrics_of(read_trace(tmp_path))
    for meter, level in zip(metrics.lanes, lane_levels(recorded), strict=True):
        assert (level.name, level.capacity, level.most) == (meter.name, meter.capacity, meter.most)
        assert (level.mean or 0.0) * recorded.end_s == pytest.approx(meter.area)
        assert meter.depth == (level.value[-1] if len(level.value) else 0)


@cases
def test_the_commits_are_those_of_the_accumulator(case: Case, tmp_path: Path) -> None:
    recorded = recorded_of(case, tmp_path)
    metrics, done = metrics_of(read_trace(tmp_path)), commits(recorded)
    assert done.time_s.tolist() == list(metrics.times)
    assert done.tokens.tolist() == list(metrics.trained_tokens)
    np.testing.assert_allclose(done.length, metrics.window_lengths)
    assert int((done.buckets > 1).sum()) == metrics.mixed_windows == mixing_of(done).mixed
    assert int(done.buckets.sum()) == metrics.bucket_sum
    assert done.firsts == sorted(metrics.firsts)


WHOLE = {name: case for name, case in CASES.items() if not (case.faults or case.at_s or case.max_steps)}


@pytest.mark.parametrize("case", WHOLE.values(), ids=WHOLE)
def test_the_seconds_of_batches_and_steps_add_up_to_the_meters(case: Case, tmp_path: Path) -> None:
    recorded = recorded_of(case, tmp_path)
    metrics, found, spans = metrics_of(read_trace(tmp_path)), durations(recorded), worker_spans(recorded)
    for meter, each, life in zip([*metrics.targets, *metrics.drafters], found, spans, strict=True):
        stepping = float(np.diff(life.edges)[life.stepping].sum())
        assert len(each.batch) == meter.batches
        assert each.busy_s.sum() + stepping == pytest.approx(meter.seconds[BUSY])
        assert each.transfer_s.sum() == pytest.approx(meter.seconds[TRANSFER])
    if case.step:
        assert step_seconds(recorded) == pytest.approx([case.step] * metrics.windows)


def summary_by(metrics: Metrics, case: Case) -> Any:
    facts = Facts(kind="simulation", policy=case.policy, seed=0, config={}, anchors=8)
    text = to_json(summarize(metrics, case.plan(), facts))
    return json.loads(text, parse_float=lambda number: round(float(number), 7))


@cases
def test_a_summary_counted_from_the_columns_is_that_of_the_events(case: Case, tmp_path: Path) -> None:
    recorded = recorded_of(case, tmp_path)
    by_events, by_columns = metrics_of(read_trace(tmp_path)), metrics_of_columns(recorded)
    assert summary_by(by_columns, case) == summary_by(by_events, case)
    assert bytes(by_columns.place) == bytes(by_events.place)
    assert (by_columns.fed_at, by_columns.to_assign) == (by_events.fed_at, by_events.to_assign)
    assert by_columns.loader_busy == pytest.approx(by_events.loader_busy)
    assert by_columns.loaded_tokens == by_events.loaded_tokens


def test_what_is_planned_is_counted_by_bucket_without_a_rest(run: Recorded) -> None:
    shapes, plan = shapes_of(run), CASES["timed extras"].plan()
    assert shapes.buckets == tuple(plan.bucket_names)
    assert shapes.batches.sum() == plan.count and shapes.tokens.sum() == plan.tokens.sum()
    assert shapes.slots.sum() == plan.slots.sum()
    assert shapes.padding_share == pytest.approx(1 - plan.tokens.sum() / plan.slots.sum())


# Down-sampling loses nothing ------------------------------------------------------------------------------------


@cases
def test_shares_in_bins_hold_every_second_of_a_life(case: Case, tmp_path: Path) -> None:
    recorded = recorded_of(case, tmp_path)
    edges = np.linspace(0.0, max(recorded.end_s, 1.0), 38)
    for spans in worker_spans(recorded):
        shares = spans.shares(edges)
        np.testing.assert_allclose(shares @ np.diff(edges), spans.seconds(), atol=1e-9)
        assert shares.min() >= -1e-12 and shares.sum(axis=0).max() <= 1 + 1e-9


def test_bins_of_the_throughput_hold_every_trained_token(run: Recorded) -> None:
    done = commits(run)
    rate = rate_over_time(done)
    assert float((rate.tokens_per_s * np.diff(rate.edges)).sum()) == pytest.approx(done.tokens.sum())


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.integers(0, 5)), max_size=30), st.integers(1, 12))
def test_a_binned_level_keeps_the_area_the_least_and_the_most(points: list[tuple[float, int]], bins: int) -> None:
    points.sort()
    times, values = np.array([t for t, _ in points]), np.array([v for _, v in points], np.int64)
    level, edges = Level("lane", times, values, 10.0), np.linspace(0.0, 10.0, bins + 1)
    binned = level.binned(edges)
    assert float((binned.mean * np.diff(edges)).sum()) == pytest.approx((level.mean or 0.0) * 10.0)
    assert max(binned.most.max(), 0) == level.most
    assert (binned.least <= binned.mean + 1e-9).all() and (binned.mean <= binned.most + 1e-9).all()


def test_a_part_of_the_spans_is_cut_to_its_time() -> None:
    spans = WorkerSpans("x", np.array([0.0, 2.0, 5.0]), np.array([2, 0, 1], np.uint8), np.zeros(3, np.bool_), 7.0)
    part = spans.between(3.0, 6.0)
    assert part.edges.tolist() == [3.0, 5.0, 6.0] and part.state.tolist() == [0, 1]
    assert spans.between(8.0, 9.0).edges.tolist() == [0.0]
    assert dict(zip(STATES, spans.seconds().tolist(), strict=True))["busy"] == 3.0


# The ETA as it was estimated -----------------------------------------------------------------------------------


def test_the_history_of_the_eta_is_what_the_estimator_said_then(run: Recorded) -> None:
    done, planned = commits(run), int(run.plan["tokens"].sum())
    history = eta_history(done, planned, run.end_s, True)
    assert history.truth_s == run.end_s and history.total_s[-1] == pytest.approx(run.end_s)
    cut = int(np.searchsorted(done.time_s, history.at_s[5], side="right"))
    firsts = [first for first in done.firsts if first < cut]
    left = float(planned - done.tokens[:cut].sum())
    said = remaining_time(done.time_s[:cut], done.tokens[:cut].astype(np.float64), left, firsts=firsts)
    assert isinstance(said, Eta)
    assert history.total_s[5] == pytest.approx(done.time_s[cut - 1] + said.seconds)


# What is no trace ----------------------------------------------------------------------------------------------


@cases
def test_the_columns_are_read_alike_from_parts_and_whole(case: Case, tmp_path: Path) -> None:
    case.record(tmp_path / "whole", rows_per_part=100)
    case.record(tmp_path / "one", rows_per_part=10**6)
    whole, one = read_recorded(tmp_path / "whole"), read_recorded(tmp_path / "one")
    for column in ("time_s", "kind", "worker", "batch", "lane", "step", "extra"):
        assert np.array_equal(getattr(whole, column), getattr(one, column)), column
    assert (whole.complete, whole.end_s) == (one.complete, one.end_s) == (True, read_trace(tmp_path / "one").end_s)


def test_a_trace_whose_bytes_were_cut_is_refused_with_its_name(tmp_path: Path) -> None:
    CASES["shared, step"].record(tmp_path)
    file = tmp_path / "trace.parquet"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(TraceError, match=r"trace\.parquet: it cannot be read as Parquet"):
        read_recorded(tmp_path)


def test_a_folder_without_a_trace_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such trace: record one"):
        read_recorded(tmp_path)

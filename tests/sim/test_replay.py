"""Replay: a fresh dispatcher answers a recorded run's inputs alike, and what was altered is found where it stands."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash_sim.replay import LIMIT, NOTHING, Refused, replay
from policies.effects import Admit, Assign
from policies.trace import CODE, Input
from reports.tracefile import Trace, read_trace
from tests.recording import ABANDONED, CASES, Case

CASE = CASES["shared, step"]


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    CASE.record(tmp_path)
    return read_trace(tmp_path)


def first(trace: Trace, kind: str, after: int = 0) -> int:
    rows = np.flatnonzero(trace.kind == CODE[kind])
    return int(rows[rows > after][0])


def changed(trace: Trace, column: str, row: int, change: Callable[[int], int]) -> Trace:
    values = getattr(trace, column).copy()
    values[row] = change(int(values[row]))
    return replace(trace, **{column: values})


def without(trace: Trace, row: int) -> Trace:
    columns = ("time_s", "kind", "worker", "batch", "lane", "step", "source", "extra")
    return replace(trace, **{column: np.delete(getattr(trace, column), row) for column in columns})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_recorded_run_replays_without_a_difference(case: Case, tmp_path: Path) -> None:
    case.record(tmp_path)
    assert replay(read_trace(tmp_path), case.dispatcher()) == []


def test_an_abandoned_step_replays_without_a_difference(tmp_path: Path) -> None:
    case = Case(sync="step", targets=1, drafters=1, batches=1)
    case.record_by_hand(tmp_path, ABANDONED)
    assert replay(read_trace(tmp_path), case.dispatcher()) == []


def test_an_altered_effect_is_found_at_its_position(trace: Trace) -> None:
    admits, offers = trace.kind == CODE["admit"], trace.kind == CODE["offer"]
    row = int(np.flatnonzero(admits[1:] & offers[:-1])[20]) + 1
    (found,) = replay(changed(trace, "worker", row, lambda worker: (worker + 1) % 3), CASE.dispatcher())
    assert found.position == row
    assert found.time_s == trace.time_s[row]
    assert isinstance(found.expected, Admit) and isinstance(found.got, Admit)
    assert found.input == Input("offer", (found.got.target, found.got.batch))
    assert str(found).startswith(f"event row {row} (t = {found.time_s:g} s), after offer(target=")


def test_a_missing_effect_is_found_where_it_should_be(trace: Trace) -> None:
    row = first(trace, "loaded", after=100)
    (found, *_) = replay(without(trace, row), CASE.dispatcher())
    assert found.position == row


def test_an_effect_at_the_end_of_an_answer_that_is_missing_is_found(trace: Trace) -> None:
    row = first(trace, "release", after=100)
    (found,) = replay(without(trace, row), CASE.dispatcher())
    assert (found.position, found.expected) == (row, NOTHING)


def test_an_altered_input_is_refused_where_it_stands(trace: Trace) -> None:
    row = first(trace, "offer", after=200)
    (found, *_) = replay(changed(trace, "batch", row, lambda batch: batch - 1), CASE.dispatcher())
    assert found.position == row + 1
    assert isinstance(found.got, Refused)
    assert "offered batch" in str(found)


def test_a_list_that_was_altered_is_found(trace: Trace) -> None:
    row = first(trace, "step", after=300)
    (found,) = replay(changed(trace, "batch", row + 1, lambda batch: batch - 1), CASE.dispatcher())
    assert found.position == row


def test_positions_count_every_row_of_an_event_with_lists(trace: Trace) -> None:
    commits = np.flatnonzero((trace.kind == CODE["commit"]) & (trace.extra == 1))
    answered = [int(row) for row in commits if trace.kind[row + 2] == CODE["deliver"]]
    (found,) = replay(changed(trace, "source", answered[0] + 2, lambda target: (target + 1) % 3), CASE.dispatcher())
    assert found.position == answered[0] + 2


def test_another_dispatcher_differs_at_its_first_other_decision(trace: Trace) -> None:
    other = replace(CASE, policy="rotating")
    found = replay(trace, other.dispatcher())
    assert 0 < len(found) <= LIMIT
    assert isinstance(found[0].expected, Admit | Assign)


def test_the_beginning_of_a_run_that_was_cut_off_replays_alone(trace: Trace) -> None:
    calls = list(trace.calls())
    short = calls[len(calls) // 2].row
    columns = ("time_s", "kind", "worker", "batch", "lane", "step", "source", "extra")
    cut = replace(trace, complete=False, **{column: getattr(trace, column)[:short] for column in columns})
    assert replay(cut, CASE.dispatcher()) == []

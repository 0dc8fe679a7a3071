"""The trace file: nothing lost, the same numbers as live, and clear words for a file that is not one."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from policies.trace import CODE, KINDS
from reports.tracefile import Header, TraceError, TraceWriter, feed, metrics_of, read_trace
from tests.recording import ABANDONED, CASES, REFUSED, Case, Events, numbers


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a recorded run of a few hundred events, in several row groups."""
    CASES["shared, step"].record(tmp_path, rows_per_part=100)
    return tmp_path


def open_writer(folder: Path, **more: object) -> TraceWriter:
    return Case().writer(folder, [("shared", 4)], **more)


# What is read is what happened ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_events_come_back_as_they_were_observed(case: Case, tmp_path: Path) -> None:
    _, live = case.record(tmp_path, rows_per_part=100)
    trace = read_trace(tmp_path)
    assert list(trace.events()) == live.seen
    assert trace.complete


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_metrics_from_a_file_are_exactly_the_live_ones(case: Case, tmp_path: Path) -> None:
    live, _ = case.record(tmp_path)
    assert numbers(metrics_of(read_trace(tmp_path))) == numbers(live)


def test_the_cases_hold_every_kind_of_input_and_effect_but_what_no_simulation_does(tmp_path: Path) -> None:
    seen: set[int] = set()
    for case in CASES.values():
        case.record(tmp_path)
        seen |= set(np.unique(read_trace(tmp_path).kind).tolist())
    missing = {kind.name for code, kind in enumerate(KINDS) if code not in seen and not kind.mark}
    assert missing == {"abandon", "drop", "refused"}


@pytest.mark.parametrize(("calls", "kinds"), [(ABANDONED, {"abandon", "drop"}), (REFUSED, {"refused", "recall"})])
def test_what_no_simulation_does_comes_back_with_the_same_numbers(
    calls: tuple[tuple[object, ...], ...], kinds: set[str], tmp_path: Path
) -> None:
    live, events = Case(sync="step", targets=1, drafters=1, batches=1).record_by_hand(tmp_path, calls)
    trace = read_trace(tmp_path)
    assert list(trace.events()) == events.seen
    assert numbers(metrics_of(trace)) == numbers(live)
    assert live.ended == "data_exhausted"
    assert {CODE[kind] for kind in kinds} <= set(trace.kind.tolist())


def test_an_observer_fed_twice_sees_the_same(run: Path) -> None:
    first, second = Events(), Events()
    trace = read_trace(run)
    assert feed(trace, first) == feed(trace, second) == trace.end_s
    assert first.seen == second.seen == list(trace.events())


def test_the_header_and_the_plan_come_back(run: Path) -> None:
    plan, trace = CASES["shared, step"].plan(), read_trace(run)
    assert trace.header == Header.of(
        kind="simulation",
        targets=3,
        drafters=2,
        lanes=[("shared", 4)],
        plan=plan,
        config={"seed": 0, "dispatch": {"policy": "shared"}},
    )
    for column in ("tokens", "slots", "samples", "length", "bucket"):
        assert getattr(trace.work, column) == getattr(plan, column).tolist()


def test_a_run_is_over_when_the_recorder_says_so(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.observe([(1.0, "target_ready", (0,), [])])
        writer.finish(9.0)
    trace = read_trace(tmp_path)
    assert (trace.complete, trace.end_s, metrics_of(trace).targets[0].end) == (True, 9.0, 9.0)


def test_the_same_run_gives_the_same_bytes_however_often_it_is_flushed(tmp_path: Path) -> None:
    ticks = iter(range(10**6))
    often = {"every_s": 1.0, "clock": lambda: next(ticks)}
    for name, more in {"once": {}, "again": {}, "often": often}.items():
        CASES["accumulate"].record(tmp_path / name, rows_per_part=150, **more)
    once, again, flushed = ((tmp_path / name / "trace.parquet").read_bytes() for name in ("once", "again", "often"))
    assert once == again == flushed


def test_a_closed_trace_leaves_nothing_else_behind(run: Path) -> None:
    assert [path.name for path in run.iterdir()] == ["trace.parquet"]


def test_parts_and_row_groups_end_with_a_whole_call(run: Path) -> None:
    file = pq.ParquetFile(run / "trace.parquet")
    firsts = [file.read_row_group(group)["kind"][0].as_py() for group in range(1, file.num_row_groups)]
    inputs = {kind.name for kind in KINDS if kind.effect is None}
    assert len(firsts) > 5 and set(firsts) <= inputs


# A run that is cut off --------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from reports.tracefile import TraceWriter
from tests.recording import CASES
observe = TraceWriter.observe
def killed(self, exchanges):
    for exchange in exchanges:
        observe(self, [exchange])
        if exchange[0] > 35:
            os.kill(os.getpid(), signal.SIGKILL)
TraceWriter.observe = killed
CASES["shared, step"].record(Path(sys.argv[1]), rows_per_part=50)
"""


def test_a_killed_run_leaves_its_first_events_readable(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed")]
    killed = subprocess.run(command, check=False, cwd=Path(__file__).parents[2])
    assert killed.returncode == -9
    _, live = CASES["shared, step"].record(tmp_path / "whole")
    trace = read_trace(tmp_path / "killed")
    events = list(trace.events())
    assert 150 < len(events) < len(live.seen)
    assert events == live.seen[: len(events)]
    assert not trace.complete
    assert metrics_of(trace).windows > 0


def test_a_live_run_is_readable_a_few_seconds_behind(tmp_path: Path) -> None:
    clock = iter([0.0, 1.0, 5.0, 5.0, 6.0])
    writer = open_writer(tmp_path, every_s=5.0, clock=lambda: next(clock))
    lengths = []
    for target in range(3):
        writer.observe([(0.0, "target_ready", (target,), [])])
        lengths.append(len(read_trace(tmp_path)))
    assert lengths == [0, 2, 2]
    writer.close()
    assert len(read_trace(tmp_path)) == 3


def test_flushing_often_keeps_one_open_part(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, rows_per_part=10)
    for _ in range(25):
        writer.observe([(0.0, "drafter_ready", (1,), [])])
        writer.flush()
    parts = sorted(path.name for path in (tmp_path / "trace.parts").iterdir())
    assert parts == ["000000.parquet", "000001.parquet", "000002.parquet", "000003.parquet"]
    assert len(read_trace(tmp_path / "trace.parts")) == 25


def test_an_error_in_the_driver_still_closes_the_trace(tmp_path: Path) -> None:
    with pytest.raises(KeyError), open_writer(tmp_path) as writer:
        writer.observe([(0.5, "target_ready", (2,), [])])
        raise KeyError("the driver's own")
    trace = read_trace(tmp_path / "trace.parquet")
    assert (len(trace), trace.complete, trace.end_s) == (1, False, 0.5)


def test_a_new_run_in_the_folder_replaces_the_old_trace_at_once(run: Path) -> None:
    open_writer(run)
    assert len(read_trace(run)) == 0


def test_what_a_kill_leaves_half_written_is_ignored(tmp_path: Path) -> None:
    open_writer(tmp_path).flush()
    (tmp_path / "trace.parts" / "000001.tmp").write_bytes(b"PAR1 half")
    (tmp_path / "trace.parquet.tmp").write_bytes(b"PAR1 half")
    assert len(read_trace(tmp_path)) == 0


# Files that are no trace ------------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(path.name) in str(caught.value)
    return str(caught.value)


def test_a_missing_file_is_named_with_the_command_that_makes_one(tmp_path: Path) -> None:
    assert "no such trace: record one with `dflash-sim run FILE --trace`" in refused(tmp_path / "trace.parquet")
    assert "no such trace" in refused(tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, rows_per_part=1)
    for _ in range(3):
        writer.observe([(0.0, "drafter_ready", (1,), [])])
    (tmp_path / "trace.parts" / "000002.parquet").unlink()
    assert "part 000002 is missing" in refused(tmp_path / "trace.parts")


def test_parts_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    for name, batches in {"a": 5, "b": 6}.items():
        writer = Case(batches=batches).writer(tmp_path / name, [("shared", 4)])
        writer.observe([(0.0, "target_ready", (0,), [])])
        writer.flush()
    ours, theirs = (tmp_path / name / "trace.parts" / "000001.parquet" for name in ("a", "b"))
    ours.write_bytes(theirs.read_bytes())
    with pytest.raises(TraceError, match=r"000001.parquet: it belongs to another run"):
        read_trace(tmp_path / "a")


def test_another_parquet_file_is_not_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"time_s": [0.0]}), path)
    assert "it is a Parquet file, but not a trace" in refused(path)


def test_text_is_not_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_text("seed: 0\n")
    assert "cannot be read as Parquet" in refused(path)


def test_a_newer_format_is_named(run: Path) -> None:
    path = run / "trace.parquet"
    table = pq.read_table(path)
    newer = table.schema.metadata[b"dflash.trace"].replace(b'"format":1', b'"format":2')
    pq.write_table(table.replace_schema_metadata({b"dflash.trace": newer}), path)
    assert "it has format 2, this version reads 1" in refused(path)


def test_a_truncated_or_flipped_file_is_refused_or_read_as_it_was(run: Path) -> None:
    path, chance = run / "trace.parquet", random.Random(1)
    whole, events = path.read_bytes(), list(read_trace(run).events())
    refusals = 0
    for attempt in range(60):
        damaged = bytearray(whole)
        if attempt % 2:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            assert list(read_trace(path).events()) == events
        except TraceError:
            refusals += 1
    assert refusals > 30


def altered(path: Path, column: str, row: int, value: float) -> None:
    """Change one cell of the file (rows of events, after those of the plan)."""
    table = pq.read_table(path)
    row += CASES["shared, step"].batches
    place = table.schema.get_field_index(column)
    values = table[column].to_pylist()
    values[row] = value
    pq.write_table(table.set_column(place, table.field(place), pa.array(values, table.field(place).type)), path)


@pytest.mark.parametrize(
    ("column", "row", "value", "words"),
    [
        ("time_s", 100, 1e9, "event row 100 .*: the next time is not a later one"),
        ("time_s", 100, float("nan"), "event row .*: the next time is not a later one"),
        ("worker", 1, 3, "event row 1 .target_ready.: worker is not one that the run had"),
        ("worker", 1, -1, "event row 1 .target_ready.: worker is not one"),
        ("worker", 3, 2, "event row 3 .drafter_ready.: worker is not one"),
        ("batch", 5, 60, "event row 5 .load.: batch is not one that the run had"),
        ("batch", 5, 1, "event row 5 .load.: it loads what the run had not"),
        ("extra", 5, 0, "event row 5 .load.: it loads what the run had not"),
        ("extra", 5, -1, "event row 5 .load.: extra is not one that the run had"),
        ("extra", 5, 61, "event row 5 .load.: extra is not one that the run had"),
        ("kind", 0, "assign", "event row 0 .assign.: an effect without an input"),
        ("kind", 9, "plan", "a column is missing, empty or unknown"),
        ("kind", 9, "finish", "event row 9 .finish.: a mark among the events"),
        ("kind", 9, "surprise", "a column is missing, empty or unknown"),
    ],
)
def test_rows_that_cannot_be_are_named_by_their_position(
    run: Path, column: str, row: int, value: float, words: str
) -> None:
    altered(run / "trace.parquet", column, row, value)
    with pytest.raises(TraceError, match=words):
        read_trace(run)


def test_a_list_that_is_cut_is_named(run: Path) -> None:
    path = run / "trace.parquet"
    trace = read_trace(path)
    commit = int(np.flatnonzero((trace.kind == CODE["commit"]) & (trace.extra > 0))[0])
    table = pq.read_table(path)
    cut = table.num_rows - len(trace) - 1 + commit + 1
    pq.write_table(table.slice(0, cut), path)
    with pytest.raises(TraceError, match=rf"event row {commit} \(commit\): rows of it are missing"):
        read_trace(path)

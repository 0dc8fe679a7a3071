"""Workers' own records beside a trace: what is missing, too much or foreign is told, in little memory."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sim.prediction import simulate
from dflash_sim.records import RECORDS, check_records
from policies.loading import from_mapping
from policies.trace import CODE, TraceError
from reports.tracefile import Trace, read_trace
from tests.recording import CASES


def write_records(trace: Trace, folder: Path) -> Path:
    """As workers would that did what the trace says."""
    (folder / RECORDS).mkdir()
    for kind, role, did in (("offer", "target", "computed"), ("deliver", "drafter", "taken")):
        there = trace.kind == CODE[kind]
        for worker in set(trace.worker[there].tolist()):
            batches = trace.batch[there & (trace.worker == worker)]
            text = "".join(f"{did},{batch}\n" for batch in batches)
            (folder / RECORDS / f"{role}-{worker}.csv").write_text(text)
    return folder / RECORDS


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    CASES["shared, step"].record(tmp_path)
    return read_trace(tmp_path)


@pytest.fixture
def records(trace: Trace, tmp_path: Path) -> Path:
    return write_records(trace, tmp_path)


def altered(file: Path, change: Callable[[list[str]], list[str]]) -> int:
    """Change a worker's lines; returns the batch of its last one before."""
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(change(lines)))
    return int(lines[-1].partition(",")[2])


def test_records_of_what_the_trace_says_match(trace: Trace, records: Path) -> None:
    assert check_records(trace, records) == []


@pytest.mark.parametrize("worker", ["target/0", "drafter/1"])
def test_a_line_that_is_missing_or_there_twice_is_told_of_its_worker(trace: Trace, records: Path, worker: str) -> None:
    file = records / f"{worker.replace('/', '-')}.csv"
    whole = file.read_text()
    batch = altered(file, lambda lines: lines[:-1])
    assert check_records(trace, records) == [f"{worker}, batch {batch}: 1 by the trace, 0 in the worker's own records"]
    file.write_text(whole)
    altered(file, lambda lines: [*lines, lines[-1]])
    assert check_records(trace, records) == [f"{worker}, batch {batch}: 1 by the trace, 2 in the worker's own records"]


def test_workers_and_batches_that_the_run_did_not_have_are_told_in_order(trace: Trace, records: Path) -> None:
    altered(records / "drafter-0.csv", lambda lines: [*lines, "taken,123456\n"])
    (records / "target-9.csv").write_text("computed,3\n")
    assert [fault.partition(":")[0] for fault in check_records(trace, records)] == [
        "drafter/0, batch 123456",
        "target/9, batch 3",
    ]


def test_workers_may_know_more_than_a_trace_that_was_cut_off_and_not_less(trace: Trace, records: Path) -> None:
    cut = replace(trace, complete=False)
    altered(records / "target-0.csv", lambda lines: [*lines, "computed,3\n"])
    assert check_records(cut, records) == []
    batch = altered(records / "target-1.csv", lambda lines: lines[:-1])
    assert [fault.partition(":")[0] for fault in check_records(cut, records)] == [f"target/1, batch {batch}"]


@pytest.mark.parametrize("line", ["taken,3", "computed,x", "computed,", "3", "computed," + "9" * 5_000])
def test_a_line_that_no_worker_writes_is_refused_with_its_number(trace: Trace, records: Path, line: str) -> None:
    (records / "target-0.csv").write_text(f"computed,3\n{line}\n")
    with pytest.raises(TraceError, match=r"target-0\.csv: line 2 is "):
        check_records(trace, records)


def test_what_a_kill_cut_off_is_no_line(trace: Trace, records: Path) -> None:
    altered(records / "target-0.csv", lambda lines: [*lines, "comput"])
    assert check_records(trace, records) == []


def test_records_are_compared_in_little_memory_a_batch(tmp_path: Path) -> None:
    count = 5_000
    timings = {"target": {"seconds": 1.0}, "drafter": {"seconds": 1.0}}
    topology = {"targets": 8, "drafters": 4}
    simulate(from_mapping({"topology": topology, "data": {"batches": count}, "timings": timings}), trace_in=tmp_path)
    trace = read_trace(tmp_path)
    records = write_records(trace, tmp_path)
    tracemalloc.start()
    assert check_records(trace, records) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * count

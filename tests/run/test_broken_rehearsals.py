"""Rehearsals that a reader broke: deadlocks, folders used twice, records of an earlier run, suspended launchers."""

import fcntl
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dflash_run.attendance import Attendance
from dflash_run.rehearsal import rehearse
from dflash_sim.folders import LOCK, claimed
from dflash_sim.prediction import summary_of
from dflash_sim.records import RECORDS, check_records
from policies.faults import PipelineError
from policies.trace import TraceError
from reports.tracefile import read_trace
from tests.helpers import pipeline_of

FILE = {
    "data": {"batches": 12},
    "timings": {"target": {"seconds": 1.0}, "drafter": {"seconds": 1.0}},
    "training": {"sync": "none"},
}


@pytest.fixture
def lazy_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A policy of the user's that stops giving after five takes."""
    text = (
        "from policies.builtin import Shared\n"
        "class Lazy(Shared):\n"
        "    taken = 0\n"
        "    def take(self, consumer, view):\n"
        "        lane = super().take(consumer, view)\n"
        "        self.taken += lane == 0\n"
        "        return lane if self.taken < 5 else -1\n"
    )
    (tmp_path / "lazymod.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "lazymod:Lazy"


@pytest.mark.parametrize("driver", ["threads", "processes"])
def test_a_rehearsal_in_which_nothing_can_happen_any_more_ends_as_a_deadlock(
    driver: str, lazy_policy: str, tmp_path: Path
) -> None:
    pipeline = pipeline_of(**FILE, dispatch={"policy": lazy_policy})
    began = time.monotonic()
    run = rehearse(pipeline, tmp_path / "run", driver=driver, speedup=60)
    summary = summary_of(run, kind="rehearsal")
    assert summary["stop_reason"] == "deadlock" and summary["waiting"]
    assert time.monotonic() - began < 30


def test_a_folder_that_a_run_writes_into_is_refused_to_another(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(PipelineError, match="no other run writes into"):
        rehearse(pipeline_of(**FILE), tmp_path, speedup=1000)
    rehearse(pipeline_of(**FILE), tmp_path, speedup=1000)
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("next_one", [False, True])
def test_a_folder_that_a_run_leaves_while_another_takes_it_belongs_to_one(
    next_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ends, and with `next_one` a third takes the folder, after the second has opened the file to lock."""
    first, second, third = (claimed(tmp_path) for _ in range(3))
    first.__enter__()
    lock = fcntl.flock

    def late(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        first.__exit__(None, None, None)
        if next_one:
            third.__enter__()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    if next_one:
        with pytest.raises(PipelineError, match="no other run writes into"):
            second.__enter__()
        third.__exit__(None, None, None)
    else:
        with second, pytest.raises(PipelineError, match="no other run writes into"):
            third.__enter__()
    assert not (tmp_path / LOCK).exists()


def test_records_of_an_earlier_run_are_not_taken_for_the_new_ones(tmp_path: Path) -> None:
    rehearse(pipeline_of(**FILE, topology={"targets": 3}), tmp_path, speedup=1000)
    rehearse(pipeline_of(**FILE), tmp_path, speedup=1000)
    assert check_records(read_trace(tmp_path), tmp_path / RECORDS) == []


def test_a_file_that_is_no_record_is_refused_with_its_line(tmp_path: Path) -> None:
    rehearse(pipeline_of(**FILE), tmp_path, speedup=1000)
    for wrong in (b"taken,1\n", b"computed,x\n", b"\xff\n"):
        (tmp_path / RECORDS / "target-0.csv").write_bytes(b"computed,0\n" + wrong)
        with pytest.raises(TraceError, match="line 2"):
            check_records(read_trace(tmp_path), tmp_path / RECORDS)


class _Mute:
    """A crew that says nothing."""

    def post(self, worker: object, message: object) -> None: ...
    def receive(self, timeout: float) -> list[object]:
        return []

    def abandon(self, worker: object) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("where", ["before it listens", "while it listens", "after it listened"])
def test_nobody_was_silent_while_the_launcher_itself_stood_still(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, stall = 100.0, 7.0 if where == "while it listens" else 0.0
    monkeypatch.setattr("dflash_run.attendance.time.monotonic", lambda: now)

    class Crew(_Mute):
        def receive(self, timeout: float) -> list[tuple[tuple[str, int], object]]:
            nonlocal now, stall
            now, stall = now + timeout + stall, 0.0
            return []

    people = Attendance(Crew(), [("target", 0)], lambda worker, message: None)  # type: ignore[arg-type]
    people.note(("target", 0), object())
    now += 7.0 if where == "before it listens" else 0.0
    people.receive(0.1)
    now += 7.0 if where == "after it listened" else 0.0
    assert people.silent(3.0) == []
    for _ in range(40):
        people.receive(0.1)
    assert people.silent(3.0) == [("target", 0)]


def test_a_second_interrupt_ends_a_run_whose_worker_is_stopped(tmp_path: Path) -> None:
    from dflash_run.crew import ProcessCrew

    class Stopping(ProcessCrew):
        def close(self) -> None:
            os.kill(self.process(("target", 0)).pid, signal.SIGSTOP)  # type: ignore[arg-type]
            for delay in (0.3, 0.6):
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
            super().close()

    import dflash_run.rehearsal as module

    module.CREWS["stopping"] = Stopping
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        rehearse(pipeline_of(**FILE, stop={"at_s": 1.0}), tmp_path, driver="stopping", speedup=10)
    assert time.monotonic() - began < 20

"""Rehearsals: real workers, messages and payloads, in threads and in processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dflash_run.payload import PayloadError, PayloadStore
from dflash_run.rehearsal import rehearse
from dflash_sim.comparison import predict
from dflash_sim.prediction import Run, summary_of
from dflash_sim.records import RECORDS, check_records
from dflash_sim.replay import dispatcher_of, replay
from reports.summary import is_incomplete
from reports.tracefile import read_trace
from tests.helpers import check_identities, pipeline_of

ROOT = Path(__file__).parents[2]
DRIVERS = ("threads", "processes")
SMALL: dict[str, Any] = {
    "topology": {"targets": 3, "drafters": 2},
    "data": {"batches": 40},
    "timings": {"target": {"seconds": 1.0}, "drafter": {"seconds": 0.6}},
}


def rehearsed(folder: Path, driver: str = "threads", speedup: float = 100.0, **sections: Any) -> tuple[Run, dict]:
    """A small rehearsal whose identities, replay and workers' records have been checked, with its summary."""
    run = rehearse(pipeline_of(**{**SMALL, **sections}), folder, driver=driver, speedup=speedup)
    summary = summary_of(run, kind="rehearsal")
    check_identities(summary)
    trace = read_trace(folder)
    assert trace.complete
    assert replay(trace, dispatcher_of(trace)) == []
    assert check_records(trace, folder / RECORDS) == []
    assert not (folder / "payloads").exists()
    return run, summary


@pytest.mark.parametrize(
    ("policy", "driver"),
    [("round_robin", "threads"), ("rotating", "threads"), ("bucketed", "threads"), *(("shared", d) for d in DRIVERS)],
)
def test_a_rehearsal_trains_everything_as_predicted(policy: str, driver: str, tmp_path: Path) -> None:
    run, summary = rehearsed(tmp_path, driver, 20.0, dispatch={"policy": policy})
    _, predicted = predict(run.pipeline)
    assert summary["batches"]["trained"] == 40 and not is_incomplete(summary)
    # Never faster than the sleeps allow. How close it comes, `make validate-rehearsal` shows on a quiet machine.
    assert summary["makespan_s"] >= 0.9 * predicted["makespan_s"]


@pytest.mark.parametrize("sync", ["step", "pooled"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_are_applied_together(sync: str, accumulate: int, tmp_path: Path) -> None:
    timings = {**SMALL["timings"], "step": {"seconds": 0.2}, "transfer": {"seconds": 0.1}, "loader": {"seconds": 0.1}}
    _, summary = rehearsed(
        tmp_path,
        training={"sync": sync, "accumulate": accumulate},
        timings=timings,
        dispatch={"policy": "round_robin", "prefetch": 1},
    )
    assert summary["batches"]["trained"] == 40


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("worker", ["target/1", "drafter/0"])
def test_a_run_goes_on_after_a_crash_and_says_who_failed_at_which_batch(
    worker: str, driver: str, tmp_path: Path
) -> None:
    fault = {"worker": worker, "at_batch": 3, "kind": "crash"}
    _, summary = rehearsed(tmp_path, driver, faults=[fault], training={"sync": "step"})
    assert summary["batches"]["trained"] == 40 and summary["batches"]["lost"] == 0
    (failure,) = summary["failures"]
    assert failure.startswith(f"{worker}: InjectedCrash") and ", at batch " in failure


def test_under_none_what_a_lost_drafter_had_trained_is_lost(tmp_path: Path) -> None:
    _, summary = rehearsed(tmp_path, faults=[{"worker": "drafter/0", "at_batch": 4, "kind": "crash"}])
    assert summary["batches"]["lost"] == 3 and is_incomplete(summary)
    assert summary["batches"]["trained"] == 37


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_hanging_worker_is_given_up_by_the_watchdog(driver: str, tmp_path: Path) -> None:
    fault = {"worker": "target/0", "at_batch": 2, "kind": "hang"}
    _, summary = rehearsed(tmp_path, driver, faults=[fault], stop={"watchdog_s": 1.5}, training={"sync": "step"})
    assert summary["batches"]["trained"] == 40
    assert summary["failures"] == ["target/0: silent for 1.5 s, at batch " + summary["failures"][0].split()[-1]]


def test_the_last_worker_to_hang_ends_the_run_by_the_watchdog(tmp_path: Path) -> None:
    fault = {"worker": "drafter/0", "at_batch": 2, "kind": "hang"}
    topology = {"targets": 2, "drafters": 1}
    _, summary = rehearsed(tmp_path, topology=topology, faults=[fault], stop={"watchdog_s": 1.5})
    assert summary["stop_reason"] == "watchdog" and is_incomplete(summary)


def test_the_watchdog_leaves_a_slow_worker_alone(tmp_path: Path) -> None:
    timings = {"target": {"seconds": 0.1}, "drafter": {"seconds": 3.0}}
    _, summary = rehearsed(
        tmp_path,
        speedup=1.0,
        topology={"targets": 1, "drafters": 1},
        data={"batches": 2},
        timings=timings,
        stop={"watchdog_s": 1.5},
    )
    assert summary["batches"]["trained"] == 2 and summary["failures"] == []


def test_losing_all_workers_of_a_role_ends_the_run_at_once(tmp_path: Path) -> None:
    faults = [{"worker": f"drafter/{d}", "at_batch": 2, "kind": "crash"} for d in (0, 1)]
    _, summary = rehearsed(tmp_path, faults=faults)
    assert summary["stop_reason"] == "worker_lost" and len(summary["failures"]) == 2


def test_a_block_that_was_changed_on_the_way_is_refused(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path)
    store.put(7, 100)
    store.get(7)
    (tmp_path / "8.bin").write_bytes((tmp_path / "7.bin").read_bytes())
    with pytest.raises(PayloadError, match="batch 8: the block says batch 7"):
        store.get(8)
    (tmp_path / "7.bin").write_bytes((tmp_path / "7.bin").read_bytes()[:-1])
    with pytest.raises(PayloadError, match="batch 7"):
        store.get(7)
    with pytest.raises(PayloadError, match="cannot be read"):
        store.get(9)


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    file = folder / "small.yaml"
    file.write_text(json.dumps({**SMALL, "data": {"batches": 4000}}))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "dflash_run", "rehearse", "small.yaml", "-o", "out", *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_trace(folder: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and len(list((folder / "out" / "trace.parts").glob("*.parquet"))) < 2:
        time.sleep(0.05)


def workers_of(launcher: int) -> list[int]:
    """The live child processes that are workers, by their parent."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, line in commands.items() if b"spawn_main" in line]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_in_order_within_five_seconds(driver: str, number: int, tmp_path: Path) -> None:
    process = command(tmp_path, "--driver", driver, "--speedup", "50")
    wait_for_trace(tmp_path)
    workers = workers_of(process.pid)
    start = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 130 and time.monotonic() - start < 5
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["stop_reason"] == "interrupted"
    check_identities(summary)
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]


def test_a_killed_worker_process_is_replaced_by_the_others(tmp_path: Path) -> None:
    process = command(tmp_path, "--driver", "processes", "--speedup", "100", "--set", "data.batches=1200", "--json")
    wait_for_trace(tmp_path)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    summary = json.loads(output)
    assert process.returncode == 0 and summary["batches"]["trained"] == 1200
    assert "killed by signal 9" in summary["failures"][0]
    trace = read_trace(tmp_path / "out")
    assert replay(trace, dispatcher_of(trace)) == []
    assert check_records(trace, tmp_path / "out" / RECORDS) == []


def test_a_killed_launcher_leaves_a_readable_trace_and_no_orphans(tmp_path: Path) -> None:
    process = command(tmp_path, "--driver", "processes", "--speedup", "50")
    wait_for_trace(tmp_path)
    workers = workers_of(process.pid)
    process.kill()
    process.communicate(timeout=30)
    until = time.monotonic() + 5
    while time.monotonic() < until and any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.05)
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    trace = read_trace(tmp_path / "out")
    assert not trace.complete and replay(trace, dispatcher_of(trace)) == []

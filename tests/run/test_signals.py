"""Signals that go to a run's whole process group: workers do not hear them, the launcher ends in order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from dflash_run.crew import ProcessCrew
from dflash_run.messages import Finish, Forget, Received
from dflash_run.worker import Mail
from dflash_sim.interrupts import SIGNALS, held, interruptible

WORKER = ("target", 0)


def echo(mail: Mail) -> None:
    """Says first who it is, then answers everything."""
    mail.send(Received(os.getpid()))
    while not isinstance(message := mail.get(None), Finish):
        assert isinstance(message, Forget)
        mail.send(Received(message.batch))


def heard(crew: ProcessCrew) -> object:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for _, message in crew.receive(0.1):
            return message
    raise AssertionError("nothing was said")


@pytest.fixture
def crew() -> Iterator[ProcessCrew]:
    made = ProcessCrew({WORKER: echo})
    yield made
    made.close()


def test_workers_do_not_hear_what_is_sent_to_the_whole_group(crew: ProcessCrew) -> None:
    told = heard(crew)
    assert isinstance(told, Received)
    for number in SIGNALS:
        os.kill(told.batch, number)
    crew.post(WORKER, Forget(7))
    assert heard(crew) == Received(7)


def test_workers_end_with_a_launcher_that_does_not_close_them(tmp_path: Path) -> None:
    """Neither an exit without `close` nor a SIGKILL leaves one behind."""
    script = (
        "import os, signal, sys\n"
        "from dflash_run.crew import ProcessCrew\n"
        "from tests.run.test_signals import WORKER, echo, heard\n"
        "if __name__ == '__main__':\n"
        "    crew = ProcessCrew({WORKER: echo})\n"
        "    print(heard(crew).batch, flush=True)\n"
        "    if sys.argv[1] == 'killed':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "launcher.py").write_text(script)
    root = str(Path(__file__).parents[2])
    for how in ("killed", "ended"):
        command = [sys.executable, str(tmp_path / "launcher.py"), how]
        path = os.pathsep.join([root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        told = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, timeout=60)
        worker = int(told.stdout)
        until = time.monotonic() + 10
        while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert not Path(f"/proc/{worker}").exists(), how


def test_a_signal_while_a_worker_is_started_is_heard_when_it_has_started() -> None:
    """One that read half of what it is to do would end with a traceback; one that nobody knows of would stay."""
    for number in SIGNALS - {signal.SIGTERM, signal.SIGHUP}:
        done = []
        with pytest.raises(KeyboardInterrupt), held():
            signal.raise_signal(number)
            done.append(number)
        assert done


def test_a_worker_that_is_started_when_ctrl_c_comes_is_known_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BaseProcess] = []
    start = SpawnProcess.start

    def interrupted(process: BaseProcess) -> None:
        signal.raise_signal(signal.SIGINT)  # as a thread of a library's hears it, though it is blocked here
        start(process)  # type: ignore[arg-type]
        made.append(process)

    crew = ProcessCrew({})
    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        crew.add(WORKER, echo)
    assert isinstance(heard(crew), Received) and crew.workers() == [WORKER]
    crew.close()
    assert made[0].exitcode is not None


@pytest.mark.parametrize("number", sorted(SIGNALS))
def test_each_signal_asks_for_the_end_and_only_a_later_one_insists(number: int) -> None:
    with interruptible() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), number)
        assert interrupted()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)  # `timeout` sends it twice
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_hangup_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupted()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("running", [True, False])
def test_a_signal_that_comes_again_and_again_ends_a_run_in_order_and_once(tmp_path: Path, running: bool) -> None:
    """Until the summary is there; before the run starts there is none, and nothing is left to end in order."""
    file = tmp_path / "p.yaml"
    file.write_text(
        "topology: {targets: 1, drafters: 1}\ndata: {batches: 100000}\n"
        "timings: {target: {seconds: 0.01}, drafter: {seconds: 0.01}}\n"
    )
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "dflash_run", "rehearse", str(file), "-o", str(tmp_path / "run")]
    path = os.pathsep.join([root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    said = tmp_path / "said"
    with said.open("wb") as out:
        started = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=out, stderr=out)
    until = time.monotonic() + 60
    there = (tmp_path / "run" / "trace.parts") if running else (tmp_path / "run")
    while not there.exists() and time.monotonic() < until:
        time.sleep(0.01)
    while started.poll() is None and time.monotonic() < until:
        started.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    assert started.wait(1) == 130, said.read_text()
    assert "Traceback" not in said.read_text()
    assert not running or (tmp_path / "run" / "summary.json").exists()

"""Validations that are cut off: nothing of a part of a run is taken for the run, and nobody is left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_run.crew import Crew, ProcessCrew, Worker
from dflash_run.messages import Computed
from dflash_run.training.orders import TrainingOrders
from dflash_run.validation import command
from dflash_run.validation.cases import Case
from dflash_run.validation.chain import validate
from dflash_run.validation.company import Company
from tests.run.training.cases import PROFILED
from tests.run.validation.test_chain import QUICK, TINY

LONG = replace(TINY, samples=6000)


class Watched:
    """A crew; `act(crew)` once so many batches were computed, targets' and drafters'."""

    def __init__(self, crew: ProcessCrew, batches: int, act: Callable[[ProcessCrew], None]) -> None:
        self._crew, self._left, self._act = crew, batches, act
        self.post, self.abandon, self.close = crew.post, crew.abandon, crew.close

    def receive(self, timeout: float) -> list[tuple[Worker, object]]:
        said = self._crew.receive(timeout)
        before = self._left
        self._left -= sum(isinstance(message, Computed) for _, message in said)
        if before > 0 >= self._left:
            self._act(self._crew)
        return said


def company(batches: int, act: Callable[[ProcessCrew], None]) -> Company:
    """Whose second crew, that of the run after the profile's, is watched; 0 batches: as it is hired."""
    hired: list[ProcessCrew] = []

    def hire(orders: Mapping[Worker, TrainingOrders]) -> Crew:
        crew = PROFILED(orders)
        assert isinstance(crew, ProcessCrew)
        hired.append(crew)
        if len(hired) == 2 and not batches:
            act(crew)
        return Watched(crew, batches, act) if len(hired) == 2 and batches else crew

    return Company(0, hire, effort=QUICK)


def interrupt(crew: ProcessCrew) -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("batches", [0, 40])
def test_an_interrupted_run_leaves_profile_and_prediction_and_is_run_when_it_is_called_again(
    batches: int, tmp_path: Path
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        validate(TINY, out, work, company(batches, interrupt))
    assert {path.name for path in out.iterdir()} == {"timings.json", "prediction.json"}
    before = (out / "timings.json").read_bytes()
    assert validate(TINY, out, work, Company(0, PROFILED, effort=QUICK))
    assert (out / "timings.json").read_bytes() == before and (out / "table.json").exists()


def test_an_interrupt_while_workers_are_warmed_up_ends_the_case(tmp_path: Path) -> None:
    warm = replace(TINY, workers="kept processes", samples=60)
    with pytest.raises(KeyboardInterrupt):
        validate(warm, tmp_path / "out", tmp_path / "work", replace(company(0, interrupt), warm=True))
    assert not (tmp_path / "out" / "prediction.json").exists()


def test_a_run_that_lost_its_worker_is_told_in_a_line_and_the_next_case_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill(crew: ProcessCrew) -> None:
        pid = crew.process(("target", 0)).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def given(cases: Sequence[Case], work: Path, gpus: int) -> Iterator[Company]:
        yield company(40, kill)

    monkeypatch.setattr(command, "company_for", given)
    monkeypatch.setattr(command, "draw_missing", lambda folder: None)
    status = command.run([TINY, replace(TINY, name="next")], tmp_path, tmp_path / "work", 0, again=False)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "incomplete" in line]
    assert status == 1 and line.startswith(f"{TINY.name}: incomplete (worker_lost): ")
    assert "of 200 batches trained; lost target/0" in line and "no table is kept, run it again" in line
    assert not {"table.json", "summary.json"} & {path.name for path in (tmp_path / TINY.name).iterdir()}
    assert (tmp_path / "next" / "table.json").exists()


SCRIPT = """
import contextlib, sys
from dataclasses import replace
from dflash_run.validation import command
from reports.commands import run_and_exit
from tests.run.validation.test_interrupts import LONG, QUICK, Company, PROFILED

@contextlib.contextmanager
def given(cases, work, gpus):
    yield Company(0, PROFILED, effort=QUICK)

if __name__ == "__main__":
    command.CASES = [LONG, replace(LONG, name="next")]
    command.company_for = given
    run_and_exit(lambda: command.checked(sys.argv[1:]))
"""


@pytest.mark.parametrize("when", ["measuring drafters", "training 6,000 batches"])
def test_ctrl_c_ends_a_validation_with_its_status_and_everyone_in_it(when: str, tmp_path: Path) -> None:
    (tmp_path / "play.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[3]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    out, said = tmp_path / "out", tmp_path / "said"
    options = ["--part", "cpu", "--out", str(out), "--work", str(tmp_path / "work")]
    with said.open("wb") as file:
        started = subprocess.Popen(
            [sys.executable, str(tmp_path / "play.py"), *options],
            env={**os.environ, "PYTHONPATH": path}, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + 90
    while when not in said.read_text() and started.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(1.0 if when.startswith("training") else 0.0)
    os.killpg(started.pid, signal.SIGINT)
    assert started.wait(60) == 130, said.read_text()
    assert when in said.read_text() and "Traceback" not in said.read_text()
    assert not (out / LONG.name / "table.json").exists() and not (out / "next").exists()
    until = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(started.pid, 0)
            time.sleep(0.05)

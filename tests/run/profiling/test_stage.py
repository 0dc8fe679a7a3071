"""Workers that fall silent while they are measured: a profile ends with their name, however they hang."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dflash_run.crew import Crew, ProcessCrew, ThreadCrew, Worker
from dflash_run.messages import Alive, Computed, Finish
from dflash_run.profiling.measuring import Effort
from dflash_run.profiling.profile import profile
from dflash_run.profiling.stage import Phase, Stage
from dflash_run.training.orders import TrainingOrders
from dflash_run.training.preparation import prepare_training
from dflash_run.worker import Mail
from policies.faults import PipelineError
from tests.run.training.cases import PROFILED, training_pipeline

SOUND, LAZY = ("target", 0), ("target", 1)
QUICK = Effort(repeats=3, most_repeats=3, least_s=0.0, flow_s=0.03, rounds=1)


def working(batches: int, alive: bool = False, takes_s: float = 0.0) -> Callable[[Mail], None]:
    """A worker that answers so often; then it says nothing any more, or only that it is alive."""

    def work(mail: Mail) -> None:
        left = batches
        while not isinstance(mail.get(None), Finish):
            until = time.monotonic() + (takes_s if left or not alive else 10.0)
            while time.monotonic() < until:
                time.sleep(0.05)
                mail.send(Alive())
            if left:
                mail.send(Computed(0))
                left -= 1

    return work


def flow(silence_s: float, patience_s: float, lazy: Callable[[Mail], None]) -> dict[Worker, dict[str, list[float]]]:
    stage = Stage(ThreadCrew({SOUND: working(10**9, takes_s=0.01), LAZY: lazy}), patience_s)
    stage.silence_s = silence_s
    return stage.flow({worker: [Phase("batch", Computed, object())] for worker in (SOUND, LAZY)}, 0.1)


@pytest.mark.parametrize(("silence_s", "patience_s"), [(0.4, 60.0), (60.0, 0.4)])
def test_a_worker_that_falls_silent_among_busy_ones_is_given_up(silence_s: float, patience_s: float) -> None:
    with pytest.raises(PipelineError, match=r"target/1: could not be measured: did not answer within 0\.4 s"):
        flow(silence_s, patience_s, working(1))


def test_a_worker_that_only_ever_says_that_it_is_alive_is_given_up_in_the_end() -> None:
    with pytest.raises(PipelineError, match=r"target/1: could not be measured: did not answer within 1 s"):
        flow(0.4, 1.0, working(1, alive=True))


def test_a_batch_may_take_longer_than_silence_may() -> None:
    found = flow(0.4, 60.0, working(3, takes_s=0.8))
    assert len(found[LAZY]["batch"]) == 3 and min(found[LAZY]["batch"]) > 0.7


def test_nobody_was_silent_while_the_profile_itself_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = ThreadCrew({LAZY: working(1, takes_s=0.3)})
    heard, naps = crew.receive, iter([2.2])

    def receive(timeout: float) -> list[tuple[Worker, object]]:
        for nap in naps:
            time.sleep(nap)
            return []
        return heard(timeout)

    monkeypatch.setattr(crew, "receive", receive)
    stage = Stage(crew, 60.0)
    stage.silence_s = 1.0
    assert stage.ask(LAZY, object(), Computed)[0] == Computed(0)


def test_an_answer_that_does_not_come_is_told_in_the_same_words() -> None:
    stage = Stage(ThreadCrew({LAZY: working(0)}), 60.0)
    stage.silence_s = 0.4
    with pytest.raises(PipelineError, match=r"target/1: could not be measured: did not answer within 0\.4 s"):
        stage.ask(LAZY, object(), Computed)


def test_a_stopped_process_ends_a_profile_after_the_watchdogs_seconds(tmp_path: Path) -> None:
    crews: list[ProcessCrew] = []

    def hire(orders: Mapping[Worker, TrainingOrders]) -> Crew:
        crew = PROFILED(orders)
        assert isinstance(crew, ProcessCrew)
        crews.append(crew)
        return crew

    def stop(what: str) -> None:
        if what == "measuring pairs at once":
            pid = crews[0].process(("target", 0)).pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)

    prepared = prepare_training(training_pipeline(tmp_path, stop={"watchdog_s": 1.5}), gpus=0)
    with pytest.raises(PipelineError, match=r"target/0: could not be measured: did not answer within 1\.5 s"):
        profile(prepared, effort=QUICK, hire=hire, progress=stop)
    assert not crews[0].process(("target", 0)).is_alive()

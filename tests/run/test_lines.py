"""What a run says where no terminal shows the live view: lines of progress now and then, rare events at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dflash_run.live as live
from dflash_run.cli import app
from dflash_run.lines import EVALUATED, FIRST_S, LEAST_S, MOST_S, SAVED, Lines, progress
from dflash_run.training.command import _tokenising
from dflash_sim.cli import guarded
from dflash_sim.prediction import Run, prepare, simulate
from tests.helpers import pipeline_of

PIPELINE: dict[str, Any] = {
    "topology": {"targets": 2, "drafters": 1},
    "data": {"batches": 60},
    "timings": {"target": {"seconds": 1}, "drafter": {"seconds": 1}},
}


@pytest.fixture
def run() -> Run:
    return simulate(pipeline_of(**PIPELINE))


def looks(seconds: float, every_s: float = 0.25) -> list[float]:
    """The times at which lines of progress came in a run of so many wall seconds."""
    wall, said = [100.0], []
    lines = Lines(lambda text: said.append(wall[0] - 100.0), clock=lambda: wall[0])
    run = prepare(pipeline_of(**PIPELINE))
    while wall[0] <= 100.0 + seconds:
        lines.look(wall[0] - 100.0, run, {})
        wall[0] += every_s
    return said


def test_lines_come_early_and_then_ever_more_seldom_up_to_a_few_minutes() -> None:
    times = looks(6 * 3600.0, 5.0)
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert times[0] == FIRST_S and gaps[0] == LEAST_S and gaps == sorted(gaps)
    assert gaps[-1] == MOST_S and len(times) < 120


def test_a_run_that_is_shorter_than_the_first_line_says_nothing() -> None:
    assert looks(FIRST_S - 1.0) == []


def test_a_line_tells_of_batches_rate_end_loss_lanes_and_what_bounds(run: Run) -> None:
    text = progress(run.metrics.now, run, {"loss": 2.314})
    assert text.startswith("at 61 s: 60 of 60 batches (100%), 1 tok/s, loss 2.31, lanes 0/")
    assert ", drafters: they take 1 tok/s" in text and "\n" not in text


def test_a_run_that_stands_still_is_not_said_to_end_at_once() -> None:
    run = simulate(pipeline_of(**PIPELINE, stop={"at_s": 30.5}))
    assert "30.5 s left" in progress(30.5, run, {}) and "left" not in progress(300.0, run, {})


def test_before_anything_is_trained_a_line_claims_no_rate_and_no_end() -> None:
    text = progress(3.0, prepare(pipeline_of(**PIPELINE)), {})
    assert text.startswith("at 3 s: 0 of 60 batches (0%), no steady rate yet, lanes 0/") and "left" not in text


def test_lost_workers_evaluations_and_checkpoints_are_told_at_once_and_once(run: Run) -> None:
    said: list[str] = []
    lines = Lines(said.append, clock=lambda: 0.0)
    figures: dict[str, float] = {"loss": 2.0}
    lines.look(1.0, run, figures)
    assert not said
    run.metrics.targets[1].lost = True
    for _ in range(3):
        lines.look(2.0, run, figures | {EVALUATED: 3.5, SAVED: 500})
    lines.look(3.0, run, figures | {EVALUATED: float("nan"), SAVED: 500})
    lines.look(4.0, run, figures | {EVALUATED: float("nan"), SAVED: 1000})
    assert said == [
        "at 2 s: target/1 is lost",
        "at 2 s: held-out expected accepted length 3.500",
        "at 2 s: checkpoint of step 500 saved",
        "at 3 s: held-out expected accepted length nan",
        "at 4 s: checkpoint of step 1,000 saved",
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    fault = {"worker": "target/0", "at_batch": 3, "kind": "crash"}
    sections = {**PIPELINE, "training": {"sync": "none"}, "faults": [fault]}
    (tmp_path / "small.json").write_text(json.dumps(sections))
    return tmp_path / "small.json"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come as often as the run is looked at."""
    monkeypatch.setattr(live, "_EVERY_S", 0.0)
    for name in ("FIRST_S", "LEAST_S", "MOST_S"):
        monkeypatch.setattr(f"dflash_run.lines.{name}", 0.0)


def rehearsed(file: Path, *more: str) -> int:
    return guarded(app, ["rehearse", str(file), "--speedup", "50", "-o", str(file.parent / "run"), *more])


@pytest.mark.usefixtures("often")
def test_a_rehearsal_into_a_log_says_where_it_is_how_far_and_who_was_lost(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearsed(file) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == f"in {file.parent / 'run'}"
    assert said.out.splitlines()[-1] == f"summary and trace in {file.parent / 'run'}"
    assert said.err.count("target/0 is lost") == 1 and " of 60 batches (" in said.err and "\x1b" not in said.err


@pytest.mark.usefixtures("often")
def test_with_json_on_stdout_all_lines_go_to_stderr(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rehearsed(file, "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["batches"]["trained"] == 60
    assert said.err.startswith(f"in {file.parent / 'run'}\n") and " of 60 batches (" in said.err


def test_preparing_data_that_takes_long_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wall = [0.0]
    monkeypatch.setattr("dflash_run.training.command.time.monotonic", lambda: wall[0])
    told: Callable[[int], None] = _tokenising(Console(width=80))
    for thousands in range(1, 13):
        wall[0] += 1.0
        told(1000 * thousands)
    assert capsys.readouterr().out.splitlines() == [
        "preparing data: 5,000 samples read",
        "preparing data: 10,000 samples read",
    ]

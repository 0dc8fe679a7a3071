"""Texts of the page and the terminal: seconds of the right kind, names from outside, words that fit their numbers."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from reports.cli import _print_difference, _say
from reports.draw import training, workers
from reports.draw.style import short_worker
from reports.metrics import STARVED, STATES, TRANSFER, Life, WorkerMeter
from reports.page.build import build
from reports.page.elements import coded, tag, text_of
from reports.runs import Given, Run
from reports.sampled import Samples
from reports.table import counted, print_run
from reports.verdict import _mean, _named
from tests.reports.test_runs import only, recorded_run

EVIL = "a\x1b[31m\u202eb\x07"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return only(recorded_run(tmp_path / "run", data={"batches": 8}))


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (("simulation", "rehearsal"), "Times are model seconds of the run."),
        (("training",), "Times are seconds of the clock."),
        (("training", "simulation"), "Times of a simulation are model seconds, those of others seconds of the clock."),
    ],
)
def test_the_footer_says_model_seconds_only_of_what_was_modelled(
    kinds: tuple[str, ...], said: str, run: Run, tmp_path: Path
) -> None:
    runs = [
        replace(run, name=kind, slug=kind, recorded=None, summary=run.summary | {"kind": kind}) for kind in kinds
    ]
    assert said in build(Given(runs=runs), tmp_path / "out", {}).read_text()


def test_captions_say_where_the_bars_come_from(run: Run, tmp_path: Path) -> None:
    assert "From the summary." in build(Given(runs=[run]), tmp_path / "a", {}).read_text()
    (run.path / "summary.json").unlink()
    text = build(Given(runs=[only(run.path)]), tmp_path / "b", {}).read_text()
    assert "Counted from the trace." in text and "From the summary." not in text
    assert "The run is too short for a steady rate." in text and "The steady rate leaves out" not in text


def test_terminal_escapes_from_files_are_shown_and_not_sent(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    evil = replace(run, name=EVIL, missing=[EVIL])
    evil.summary["verdict"]["text"] = EVIL
    _say(evil)
    _print_difference(evil, run)
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\x07" not in said and "\u202e" not in said and r"\x1b[31m\u202eb\x07" in said


def test_what_turns_the_direction_of_text_is_shown_by_its_number_and_names_are_isolated(
    run: Run, tmp_path: Path
) -> None:
    assert text_of(tag("p", EVIL, title=EVIL)).count(r"\u202e") == 2
    text = build(Given(runs=[replace(run, name=f"אבג {EVIL}")]), tmp_path / "out", {}).read_text()
    assert not set("\u202e\x1b\x07") & set(text) and "<h2><bdi>אבג" in text


def test_backticks_of_a_text_become_code_and_stay_escaped() -> None:
    assert text_of(coded("try `a <b>` or ` alone")) == "try <code>a &lt;b&gt;</code> or ` alone"


def test_long_worker_names_are_shortened_in_figures_and_whole_in_the_table(run: Run, tmp_path: Path) -> None:
    names = [f"target/{'x' * 300}/{number}" for number in range(2)]
    for worker, name in zip(run.summary["workers"], names, strict=False):
        worker["name"] = name
    labels = [each.get_text() for each in workers.worker_bars("k", "r", run.summary["workers"]).figure.axes[0].texts]
    assert not [label for label in labels if len(label) > 30]
    assert short_worker(names[0]) != short_worker(names[1]) and len(short_worker(names[0])) <= 22
    build(Given(runs=[run]), tmp_path / "out", {})
    assert names[0] in (tmp_path / "out" / "tables" / "run-workers.csv").read_text()
    svg = (tmp_path / "out" / "figures" / "run-workers.svg").read_text()
    assert "x" * 40 not in re.sub(r"aria-label=\S+", "", svg)


def test_shares_above_the_whole_are_clipped_with_a_word(run: Run) -> None:
    run.summary["workers"][0]["busy_s"] = 3 * run.summary["workers"][0]["lifetime_s"]
    assert "Clipped at 100 %" in workers.worker_bars("k", "r", run.summary["workers"]).caption
    sampled = Samples({"utilization/cuda:0": (np.arange(4.0), np.array([0.5, 1.7, 1.0, 0.5]))})
    plate = training.devices("k", "r", sampled)
    assert plate is not None and "clipped" in plate.caption and "75%" in plate.alt


def test_one_step_is_no_steps_and_many_workers_are_counted() -> None:
    assert [counted(number, "stretch", "stretches") for number in (1, 2)] == ["1 stretch", "2 stretches"]
    assert (counted(1, "step"), counted(0, "step")) == ("1 step", "0 steps")
    meters: list[Any] = [SimpleNamespace(role="target", name=f"target/{number}") for number in range(32)]
    assert _named(cast(list[WorkerMeter], meters)) == "32 targets"
    assert _named(cast(list[WorkerMeter], meters[:8])) == "targets 0, 1, 2, 3, 4, 5, 6 and 7"


def lived(seconds: float, state: int, *, waited: float = 0.0, lost: bool = False) -> Life:
    meter = WorkerMeter("drafter/0", "drafter")
    meter.turn(0.0, state)
    meter.turn(waited, STATES.index("busy"))
    meter.close(seconds)
    meter.lost = lost
    return Life(meter, meter.seconds, seconds)


def test_the_wait_for_a_hung_worker_is_no_share_of_the_verdict() -> None:
    well, hung = lived(100.0, TRANSFER, waited=10.0), lived(20.0, TRANSFER, waited=19.0, lost=True)
    assert _mean([well, hung], TRANSFER) == pytest.approx(0.1)
    assert _mean([hung], TRANSFER) == pytest.approx(0.95)


def test_shares_of_several_workers_are_weighted_by_their_time() -> None:
    assert _mean([lived(100.0, STARVED, waited=10.0), lived(10.0, STARVED, waited=10.0)], STARVED) == 20 / 110
    assert _mean([lived(0.0, STARVED)], STARVED) == 0.0


def test_numbers_that_a_summary_could_not_hold_are_dashes_in_the_terminal(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.summary["workers"][0] |= {"lifetime_s": None, "busy_s": None}
    run.summary["workers"][1] |= {"busy_s": None}
    print_run(Console(width=200), run.summary, "a run")
    [first] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("target/0")]
    assert first.count("–") == len(STATES)


def test_a_doubtful_profile_is_told_on_the_terminal(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.summary["timings_doubted"] = ["target: [far] off"]
    print_run(Console(width=200), run.summary, "a run")
    assert "doubtful target: [far] off" in capsys.readouterr().out

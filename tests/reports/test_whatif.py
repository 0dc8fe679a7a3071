"""What a change would bring: asked of the command, for a run's own file or for times fitted to its trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from reports.runs import Run
from reports.verdict import Rates, cautious
from reports.whatif import MOST_BATCHES, Questions, can_ask, question_of, shortened
from tests.reports.test_runs import only, recorded_run

SECTIONS: dict[str, Any] = {
    "topology": {"targets": 2, "drafters": 2},
    "dispatch": {"policy": "round_robin"},
    "data": {"batches": 80},
    "timings": {"target": {"seconds": 2}, "drafter": {"seconds": 1}},
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return only(recorded_run(tmp_path / "run", **SECTIONS))


def gains(question: dict[str, Any]) -> dict[str, float]:
    return {answer.change: answer.gain for answer in Questions(question).answers(120)}


def test_one_target_more_brings_half_again_where_two_targets_are_the_limit(run: Run) -> None:
    question = question_of(run)
    assert question is not None
    found = gains(question)
    assert found["one target more (3)"] == pytest.approx(0.5, abs=0.05)
    assert found["one drafter more (3)"] == pytest.approx(0.0, abs=0.02)
    assert "policy shared" in found and "policy round_robin" not in found


def test_a_run_whose_file_has_no_timings_is_asked_about_by_its_trace(run: Run) -> None:
    training = {**run.summary["config"], "data": {"path": "gone.jsonl"}}
    del training["timings"]
    run.summary["config"] = training
    question = question_of(run)
    assert question is not None and len(question["data"]["batches"]) == 80
    assert gains(question)["one target more (3)"] == pytest.approx(0.5, abs=0.05)


def test_a_gain_that_only_one_of_two_rates_shows_is_none() -> None:
    assert cautious(Rates(100.0, 100.0), Rates(100.0, 108.0)) == 0.0
    assert cautious(Rates(100.0, 100.0), Rates(97.0, 108.0)) == 0.0
    assert cautious(Rates(100.0, 100.0), Rates(120.0, 110.0)) == pytest.approx(0.1)
    assert cautious(Rates(100.0, None), Rates(80.0, 90.0)) == pytest.approx(-0.2)
    assert cautious(Rates(0.0, None), Rates(80.0, 90.0)) == 0.0


def test_nothing_is_asked_where_the_run_does_not_say_enough(run: Run, tmp_path: Path) -> None:
    bare = Run(name="x", path=tmp_path, summary=run.summary | {"config": {}})
    assert question_of(bare) is None
    assert not can_ask({"data": {"batches": 5}, "timings": {"file": str(tmp_path / "gone.json")}})


def test_questions_that_take_too_long_are_given_up(run: Run) -> None:
    question = question_of(run)
    assert question is not None
    assert Questions(question).answers(0.0) == []


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"batches": 10**6}, {"batches": MOST_BATCHES}),
        ({"batches": [{"tokens": 1}] * 5000}, {"batches": [{"tokens": 1}] * MOST_BATCHES}),
        ({"tokens": 1e12, "batch_tokens": 100}, {"tokens": 100 * MOST_BATCHES, "batch_tokens": 100}),
        ({"lengths": {"lognormal": {}, "count": 10**6}}, {"lengths": {"lognormal": {}, "count": 40_000}}),
    ],
)
def test_only_as_much_data_is_simulated_as_a_quick_answer_needs(data: dict[str, Any], kept: dict[str, Any]) -> None:
    config = {"data": data | {"epochs": 3}, "topology": {"targets": 1, "devices": {}}, "faults": [1], "stop": {}}
    short = shortened(config)
    assert short == {"data": kept | {"epochs": 1}, "topology": {"targets": 1}}
    json.dumps(short)

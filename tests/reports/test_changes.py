"""What the report says of changes: what was tried, from where, and why something was not simulated."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from reports.cli import _ask
from reports.compared import runs_table
from reports.page.elements import text_of
from reports.page.firstscreen import first_screen
from reports.runs import Given, Run
from reports.whatif import Answer, Questions, question_of
from tests.reports.test_runs import only, recorded_run

POLICY = Answer("policy shared", 5.0, 0.0, free=True)
TARGET = Answer("one target more (3)", 5.0, 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return only(recorded_run(tmp_path / "run"))


def card(run: Run, answers: list[Answer] | None, why: str = "") -> str:
    return re.sub(r"<[^>]+>", " ", text_of(first_screen(run, answers, why)))


def test_the_gains_note_names_the_base_and_stands_only_where_there_is_one(run: Run) -> None:
    assert "Gain" not in runs_table([run]).note
    compared = [replace(run, gain=0.1, gain_over="round_robin"), run]
    assert "Gain: against round_robin, the policy of the compared file." in runs_table(compared).note


def test_where_nothing_helps_the_card_says_what_was_tried(run: Run) -> None:
    run.summary["alternatives"] = []
    assert "None of 2 other policies helps" in card(run, [POLICY, POLICY])
    assert "Nothing that was tried helps: 1 other policy, one target more (3)" in card(run, [POLICY, TARGET])


def test_a_comparison_of_policies_is_not_called_a_simulation_of_this_file(run: Run) -> None:
    run.summary["alternatives"] = [{"policy": "shared", "tokens_per_s": 5.0, "gain": 0.1}]
    assert "from the run&#x27;s own comparison of policies" in card(run, None)


def test_with_workers_lost_the_card_says_that_simulations_assume_all_alive(run: Run) -> None:
    run.summary["alternatives"] = []
    assert "they assume" not in card(run, [TARGET])
    failed = replace(run, summary=run.summary | {"failures": ["drafter/0: hang"]})
    assert "they assume that nothing fails" in card(failed, [TARGET])
    run.summary["workers"][0]["lost"] = True
    assert "they assume that all workers live" in card(run, [TARGET])


def test_the_reason_why_nothing_was_simulated_is_the_real_one(run: Run) -> None:
    run.summary["alternatives"] = []
    for given, seconds, reason in (
        ([run], 0.0, "--what-if 0"),
        ([run, replace(run, name="b")], 10.0, "several runs"),
        ([replace(run, recorded=None, summary=run.summary | {"config": {"topology": {}}})], 10.0, "no trace to fit"),
        ([replace(run, summary=run.summary | {"config": {}})], 10.0, "does not say the run's topology"),
    ):
        unasked: dict[str, str] = {}
        assert _ask(Given(runs=given), seconds, unasked) == {}
        assert all(reason in unasked[each.name] for each in given)
        assert reason.replace("'", "&#x27;") in card(run, None, unasked[given[0].name])


def test_simulations_that_took_too_long_or_failed_are_named(run: Run) -> None:
    question = question_of(run)
    assert question is not None
    asked = Questions(question)
    assert asked.answers(0.0) == [] and asked.why is not None
    assert "one target more (3)" in asked.why and "the other policies: took too long" in asked.why
    asked = Questions(question | {"dispatch": {"policy": "nowhere:Policy"}}, policies=False)
    assert asked.answers(60.0) == [] and asked.why is not None
    assert "nowhere" in asked.why and asked.why.startswith("the run as it is, one target more (3)")

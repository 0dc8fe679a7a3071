"""What the first screen says of a run's end: lost work, deadlocks, runs cut short, ledgers that do not close."""

import re
from pathlib import Path
from typing import Any

import pytest

from reports.outcome import contradictions, ended, ledger_verdict, verdict_text
from reports.page.elements import text_of
from reports.page.firstscreen import first_screen
from reports.runs import Run
from reports.tables import ledger_table
from tests.reports.test_runs import only, recorded_run


def screen(run: Run) -> str:
    return re.sub(r"<[^>]+>", " ", text_of(first_screen(run, None)))


def green(run: Run) -> bool:
    return "value good" in text_of(first_screen(run, None))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return only(recorded_run(tmp_path / "run"))


def test_a_whole_run_is_green_and_says_that_all_data_was_trained(run: Run) -> None:
    assert green(run) and "Nothing was lost" in screen(run) and "all data trained" in screen(run)
    assert contradictions(run) == []


def test_a_run_with_lost_batches_says_how_many_and_not_that_all_was_trained(run: Run) -> None:
    run.summary["batches"] |= {"trained": 57, "lost": 3}
    run = Run(name="x", path=run.path, summary=run.summary)
    said = screen(run)
    assert "all data trained" not in said and "Nothing was lost" not in said and not green(run)
    assert "57 of 60 batches trained, 3 lost" in ended(run.summary) and "3 batches lost" in said
    assert "The run is incomplete: the data came to an end: 57 of 60 batches trained, 3 lost." in said


def test_a_run_that_says_it_ended_whole_with_batches_left_contradicts_itself(run: Run) -> None:
    run.summary["batches"] |= {"trained": 58, "queued": 2}
    run = Run(name="x", path=run.path, summary=run.summary)
    assert "2 missing" in ended(run.summary) and "2 batches are neither trained nor lost" in screen(run)
    assert not green(run) and ledger_verdict(run)[1] == "bad"


@pytest.mark.parametrize("unit", ["batches", "samples", "tokens"])
@pytest.mark.parametrize("place", ["planned", "produced", "trained", "queued", "lost"])
def test_a_ledger_that_does_not_close_is_said_and_never_green(unit: str, place: str, run: Run) -> None:
    run.summary[unit][place] += 1
    run = Run(name="x", path=run.path, summary=run.summary)
    assert not green(run) and "Nothing was lost" not in screen(run)
    said = "neither trained nor lost" if place == "planned" else "the ledger does not close"
    assert any(said in line and unit in line for line in contradictions(run))
    assert "and what contradicts itself" in screen(run)


def test_the_ledger_table_shows_the_summaries_own_not_yet_produced(run: Run) -> None:
    run.summary["batches"] |= {"produced": 50}
    rows = {row[0]: row[1] for row in ledger_table("k", run.summary).rows}
    assert rows["not yet produced"] == 10 and rows["trained"] == 60


def test_counts_of_the_trace_that_differ_from_the_summarys_are_said(run: Run) -> None:
    run.summary["batches"] |= {"planned": 61, "produced": 61, "trained": 61}
    run.summary["tokens"]["trained"] -= 1
    found = contradictions(run)
    assert "the trace counts 60 trained batches, the summary says 61" in found
    assert any("the trace counts" in line and "trained tokens" in line for line in found) and not green(run)


def test_a_deadlocks_verdict_says_who_waits_for_what(tmp_path: Path) -> None:
    faults: list[dict[str, Any]] = [{"worker": "drafter/0", "at_batch": 3, "kind": "hang"}]
    run = only(recorded_run(tmp_path / "hung", faults=faults, training={"sync": "step"}))
    text = verdict_text(run.summary)
    assert text.startswith("deadlock: nothing could happen any more; ") and " waits for " in text
    assert "too short" not in text and not green(run) and "Nothing was lost" not in screen(run)
    assert re.search(r"Stuck: .* not yet produced", screen(run))
    assert "it did not get there" in screen(run) and "would remain" not in screen(run)


def test_many_waiting_workers_are_counted_and_not_all_named(run: Run) -> None:
    waiting = [{"worker": f"drafter/{k}", "what": "a batch", "since_s": 1.0} for k in range(9)]
    run.summary.update(stop_reason="deadlock", waiting=waiting)
    assert "drafter/3 waits" in verdict_text(run.summary) and "5 more wait" in verdict_text(run.summary)
    run.summary["waiting"] = []
    assert "does not say who waits" in verdict_text(run.summary)


def test_an_interrupted_run_says_neutrally_what_is_left(run: Run) -> None:
    run.summary["stop_reason"] = "interrupted"
    run.summary["batches"] |= {"produced": 43, "trained": 40, "queued": 2, "in_flight": 1}
    run = Run(name="x", path=run.path, summary=run.summary)
    assert ledger_verdict(run) == ("Ended early: 2 queued, 1 in flight, 17 not yet produced", "") and not green(run)


def test_a_run_stopped_as_asked_lost_nothing(tmp_path: Path) -> None:
    run = only(recorded_run(tmp_path / "run", stop={"at_s": 10.0}))
    assert ledger_verdict(run) == ("Nothing was lost", "good") and "stopped at its time" in screen(run)

"""Which side moved: the record's slow drafters are named as slow, and waiting is never called a cause."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dflash_sim.comparison import predict
from reports.difference import changes_of, difference_json, difference_text, moved_table
from reports.moved import moved, moved_text, pace_of_summary
from reports.runs import Run, load_given
from reports.summary import Facts, summarize, to_json
from reports.summaryfile import checked_summary
from tests.helpers import pipeline_of
from tests.reports.test_verdict import HUNG_S, hung_in_step

BEFORE: dict[str, Any] = {
    "topology": {"targets": 5, "drafters": 2},
    "dispatch": {"policy": "shared", "depth": 20},
    "data": {"batches": 300, "batch_tokens": 49152},
    "timings": {"target": {"tokens_per_second": 4040}, "drafter": {"tokens_per_second": 10100}},
}


# Three drafters, of which one is fed by one target of five under fixed assignment.
THREE: dict[str, Any] = {
    "topology": {"targets": 5, "drafters": 3},
    "timings": {"target": {"tokens_per_second": 4040}, "drafter": {"tokens_per_second": 6750}},
}


def summary_of(**sections: Any) -> dict[str, Any]:
    return predict(pipeline_of(**{**BEFORE, **sections}))[1]


def test_the_record_s_slow_run_reads_as_slow_drafters_and_not_as_a_full_queue() -> None:
    slow = {"target": {"tokens_per_second": 4040}, "drafter": {"tokens_per_second": 4200}}
    before, after = summary_of(), summary_of(topology={"targets": 5, "drafters": 3}, timings=slow)
    assert before["throughput"]["steady_tokens_per_s"] == pytest.approx(20_200, rel=0.01)
    assert after["throughput"]["steady_tokens_per_s"] == pytest.approx(12_600, rel=0.01)
    text = moved_text(pace_of_summary(before), pace_of_summary(after))
    assert text.startswith("drafters: step time 2.4× (99 → 238 µs/slot); drafters 2 → 3; ")
    assert text.endswith("throughput 0.62×")
    assert "queue" not in text and "targets" not in text


def test_a_run_against_itself_has_no_side_that_moved() -> None:
    pace = pace_of_summary(summary_of())
    assert moved_text(pace, pace) == "no side moved by more than 3%; throughput 1.00×"
    assert not [each for each in moved(pace, pace) if each.changed]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"timings": {"target": {"tokens_per_second": 2020}, "drafter": {"tokens_per_second": 10100}}}, "targets: "),
        ({"data": {"batches": 300, "batch_tokens": 65536}}, "data: "),
        ({"timings": BEFORE["timings"] | {"transfer": {"seconds": 2.0}}}, "transfer: exposed copying 0 → 2 s/batch"),
    ],
)
def test_each_side_is_named_when_it_is_the_one_that_moved(change: dict[str, Any], said: str) -> None:
    text = moved_text(pace_of_summary(summary_of()), pace_of_summary(summary_of(**change)))
    assert text.startswith(said)


def test_a_run_that_trained_nothing_has_no_paces_and_still_compares() -> None:
    nothing = summary_of(stop={"at_s": 0.5})
    text = moved_text(pace_of_summary(nothing), pace_of_summary(summary_of()))
    assert "drafters: step time unknown → " in text and text.startswith("no side is known to have moved by more than")
    assert pace_of_summary(nothing).drafter_s_per_slot is None


def test_what_one_run_never_measured_has_not_moved() -> None:
    whole, nothing = (
        Run(name=name, path=Path(name), summary=each)
        for name, each in (("whole", summary_of()), ("nothing", summary_of(stop={"at_s": 0.5})))
    )
    marks = {(row[0], row[1]): row[-1] for row in moved_table(whole, nothing).rows}
    assert marks["targets", "step time"] == marks["drafters", "step time"] == "not known of both"
    assert [key for key, mark in marks.items() if mark == "moved"] == [("run", "throughput")]
    assert [each["side"] for each in difference_json(whole, nothing)["moved"] if each["changed"]] == ["run"]
    assert "; nothing trained no batch: " in difference_text(whole, nothing)
    assert "trained no batch" not in difference_text(whole, whole)


def test_a_drafter_that_hung_is_told_as_lost_and_slows_no_side() -> None:
    metrics = hung_in_step(told_first=True, applied=True)
    each = np.full(metrics.planned, 10)
    plan = SimpleNamespace(count=metrics.planned, tokens=each, slots=each, samples=each // 10)
    summary = summarize(metrics, plan, Facts(kind="training", policy="shared", seed=0, config={}))
    drafters = [worker for worker in summary["workers"] if worker["role"] == "drafter"]
    assert [worker["in_vain_s"]["busy"] for worker in drafters] == pytest.approx([HUNG_S, HUNG_S])
    summary["lanes"] = []  # nothing was admitted to them
    read = checked_summary(json.loads(to_json(summary)), Path("summary.json"))
    for pace in (pace_of_summary(summary), pace_of_summary(read)):
        assert pace.drafter_s_per_slot == pytest.approx(0.1)
        assert pace.sync_s_per_batch == pace.transfer_s_per_batch == 0.0 and pace.lost == 1
    clean = pace_of_summary(summary | {"workers": [worker | {"lost": False} for worker in summary["workers"]]})
    assert moved_text(clean, pace_of_summary(summary)).startswith("lost workers 0 → 1; throughput")


KEPT = Path(__file__).parents[2] / "docs" / "validation"


def run_of(name: str, **sections: Any) -> Run:
    return Run(name=name, path=Path(name), summary=checked_summary(summary_of(**sections), Path(name)))


def test_a_diff_of_two_policies_names_dispatch_with_both_and_with_who_waits() -> None:
    before, after = load_given([KEPT / "one-card-5-3-shared", KEPT / "one-card-5-3-round_robin"]).runs
    said = "dispatch: policy shared → round_robin, drafters starved 1.2 → 8.2 %, targets blocked 22.3 → 28.4 %; "
    assert difference_text(before, after) == said + "throughput 0.94×"
    rows = {(row[0], row[1]): row[-1] for row in moved_table(before, after).rows}
    assert rows["dispatch", "drafters starved"] == rows["dispatch", "targets blocked"] == "moved"
    sides = {each["side"]: each["changed"] for each in difference_json(before, after)["moved"]}
    assert sides["dispatch"] and difference_text(after, before).startswith("dispatch: policy round_robin → shared")


@pytest.mark.parametrize(
    ("change", "side"),
    [
        ({}, None),
        ({"dispatch": {"policy": "round_robin", "depth": 20}}, "dispatch"),
        ({"timings": THREE["timings"] | {"drafter": {"tokens_per_second": 5000}}}, None),
        ({"topology": {"targets": 6, "drafters": 3}}, None),
        ({"timings": THREE["timings"] | {"loader": {"seconds": 4.0}}}, "feed"),
        ({"stop": {"at_s": 0.5}}, None),
    ],
)
def test_dispatch_is_named_only_where_no_own_time_and_no_feed_explains_the_rate(
    change: dict[str, Any], side: str | None
) -> None:
    before, after = run_of("a", **THREE), run_of("b", **{**THREE, **change})
    found = {each.side for each in changes_of(before, after)} & {"dispatch", "feed"}
    assert found == ({side} if side else set()), difference_text(before, after)

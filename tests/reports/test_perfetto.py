"""The Perfetto export: valid, in order, and the same states as the summary's."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from reports.metrics import STATES
from reports.perfetto import export_perfetto
from reports.tracefile import read_trace
from tests.recording import CASES, Case

Document = list[dict[str, Any]]


def exported(case: Case, folder: Path) -> tuple[Any, Document]:
    metrics, _ = case.record(folder)
    export_perfetto(read_trace(folder), folder / "trace.json")
    document = json.loads((folder / "trace.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == ["trace.json", "trace.parquet"]
    return metrics, document["traceEvents"]


def names(events: Document, what: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == f"{what}_name"}


def spans(events: Document) -> dict[str, Document]:
    """The slices of each worker, by name."""
    threads = names(events, "thread")
    found: dict[str, Document] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[threads[event["pid"], event["tid"]]].append(event)
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_slices_of_a_worker_add_up_to_its_states(case: Case, tmp_path: Path) -> None:
    metrics, events = exported(case, tmp_path)
    found = spans(events)
    for meter in metrics.targets + metrics.drafters:
        sums = dict.fromkeys(STATES, 0.0)
        for span in found[meter.name]:
            sums[span["cat"]] += span["dur"] / 1e6
        assert list(sums.values()) == pytest.approx(meter.seconds, abs=1e-6)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_slices_of_a_worker_follow_each_other_without_gap_or_overlap(case: Case, tmp_path: Path) -> None:
    _, events = exported(case, tmp_path)
    for name, track in spans(events).items():
        if name != "loader":
            assert track[0]["ts"] == 0.0
            for before, after in zip(track, track[1:], strict=False):
                assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-3)


@pytest.mark.parametrize("name", ["shared, none", "accumulate", "prefetch", "timed extras"])
def test_every_batch_is_computed_once_by_a_target_and_once_by_a_drafter(name: str, tmp_path: Path) -> None:
    _, events = exported(CASES[name], tmp_path)
    for role in ("target", "drafter"):
        busy = [
            span["args"]["batch"]
            for worker, track in spans(events).items()
            for span in track
            if worker.startswith(role) and span["cat"] == "busy" and "batch" in span["args"]
        ]
        assert sorted(busy) == list(range(CASES[name].batches))


def test_processes_and_threads_are_named_in_order(tmp_path: Path) -> None:
    _, events = exported(CASES["timed extras"], tmp_path)
    assert list(names(events, "process").values()) == ["loader", "targets", "drafters", "lanes", "training"]
    threads = ["loader", "target/0", "target/1", "target/2", "drafter/0", "drafter/1"]
    assert list(names(events, "thread").values()) == threads
    orders = [event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"]
    assert orders == sorted(orders)


def test_the_loader_has_a_track_only_if_loading_takes_time(tmp_path: Path) -> None:
    _, events = exported(CASES["shared, none"], tmp_path)
    assert "loader" not in names(events, "process").values()


def test_optimizer_steps_and_copies_that_take_time_are_shown(tmp_path: Path) -> None:
    metrics, events = exported(CASES["timed extras"], tmp_path)
    tracks = spans(events)
    steps = [span for span in tracks["drafter/0"] if "step" in span["args"]]
    assert len(steps) == len(metrics.times)
    assert [span["dur"] for span in steps] == pytest.approx([0.4e6] * len(steps), abs=0.01)
    assert any(span["name"].startswith("transfer batch ") for span in tracks["drafter/0"])


@pytest.mark.parametrize("name", ["bucketed, none", "target crash", "drafter crash"])
def test_the_counters_have_the_depths_of_the_lanes(name: str, tmp_path: Path) -> None:
    metrics, events = exported(CASES[name], tmp_path)
    for lane in metrics.lanes:
        points = [(e["ts"] / 1e6, e["args"]["batches"]) for e in events if e["ph"] == "C" and e["name"] == lane.name]
        ends = [time_s for time_s, _ in points[1:]] + [metrics.now]
        area = sum(depth * (end - start) for (start, depth), end in zip(points, ends, strict=True))
        assert area == pytest.approx(lane.area, abs=1e-4)


def test_the_rate_adds_up_to_the_trained_tokens(tmp_path: Path) -> None:
    metrics, events = exported(CASES["shared, step"], tmp_path)
    rates = [event["args"]["tokens/s"] for event in events if event["name"] == "tokens/s"]
    assert sum(rates) * metrics.now / len(rates) == pytest.approx(sum(metrics.trained_tokens))

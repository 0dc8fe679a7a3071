"""Memory over time from a trace's columns: its peaks are those of the meter that watched the run."""

from pathlib import Path
from typing import Any

import pytest

from dflash_sim.comparison import predict
from reports.levels import memory_levels
from reports.recorded import read_recorded
from tests.helpers import pipeline_of

SIZES = {"hidden_bytes_per_token": 10, "host_limit": 10**6, "device_limit": 10**5}


def peaks(folder: Path, **sections: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """The peaks of a run's levels by memory, and its summary."""
    _, summary = predict(pipeline_of(**sections), trace_in=folder)
    return {level.name: level.most for level in memory_levels(read_recorded(folder))}, summary


def run_of(policy: str, memory: dict[str, Any], **dispatch: Any) -> dict[str, Any]:
    return {
        "topology": {"targets": 3, "drafters": 2},
        "dispatch": {"policy": policy, "depth": 2, **dispatch},
        "data": {"lengths": [100 * (1 + k % 7) for k in range(60)], "batch": {"samples": 2}, "buckets": [300, 500]},
        "timings": {"target": {"seconds": 1, "cv": 0.3}, "drafter": {"seconds": 0.9}, "transfer": {"seconds": 0.2}},
        "memory": SIZES | memory,
    }


PLACED = [(policy, None) for policy in ("shared", "round_robin", "rotating", "bucketed")]
PLACED += [("shared", "taker"), ("shared", "producer")]


@pytest.mark.parametrize(("policy", "placement"), PLACED)
@pytest.mark.parametrize("memory", [{}, {"pinned": True}, {"staging": "device"}], ids=["host", "pinned", "device"])
def test_peaks_over_time_are_those_of_the_meter(
    policy: str, memory: dict[str, Any], placement: str | None, tmp_path: Path
) -> None:
    more = {} if placement is None else {"placement": placement}
    found, summary = peaks(tmp_path, **run_of(policy, memory, **more))
    said = summary["memory"]
    assert found.get("host", 0) == said["host_pinned_peak_bytes"]
    assert [found.get(f"drafter/{d}", 0) for d in range(2)] == said["drafter_peak_bytes"]
    assert [found.get(f"target/{t}", 0) for t in range(3)] == said["target_peak_bytes"]


@pytest.mark.parametrize("sync", ["none", "step"])
@pytest.mark.parametrize("worker", ["target/0", "drafter/1"])
def test_peaks_over_time_hold_when_a_worker_is_lost(sync: str, worker: str, tmp_path: Path) -> None:
    sections = run_of("shared", {}) | {"training": {"sync": sync, "accumulate": 2}}
    sections["faults"] = [{"worker": worker, "at_batch": 4, "kind": "crash"}]
    found, summary = peaks(tmp_path, **sections)
    assert found["host"] == summary["memory"]["host_peak_bytes"]
    assert [found.get(f"drafter/{d}", 0) for d in range(2)] == summary["memory"]["drafter_peak_bytes"]


def test_without_a_size_of_hidden_states_there_is_no_memory_to_draw(tmp_path: Path) -> None:
    sections = run_of("shared", {})
    del sections["memory"]
    assert peaks(tmp_path, **sections)[0] == {}

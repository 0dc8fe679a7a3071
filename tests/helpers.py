"""What several tests need: small pipelines from keywords, and the checks that every summary must pass."""

import math
from collections.abc import Mapping
from typing import Any

from dflash_sim.comparison import predict
from policies.loading import from_mapping
from policies.pipeline import Pipeline

DEFAULTS: dict[str, Any] = {
    "timings": {"target": {"seconds": 1}, "drafter": {"seconds": 1}},
    "training": {"sync": "none"},
}


def pipeline_of(**sections: Any) -> Pipeline:
    """A pipeline of these sections; both timings are 1 s and `sync` is none where nothing is said."""
    merged = {**DEFAULTS, **sections}
    merged["timings"] = {**DEFAULTS["timings"], **sections.get("timings", {})}
    merged["training"] = {**DEFAULTS["training"], **sections.get("training", {})}
    return from_mapping(merged, for_simulation=True)


def summary_of_file(**sections: Any) -> dict[str, Any]:
    """The checked summary of a simulated pipeline."""
    _, summary = predict(pipeline_of(**sections))
    check_identities(summary)
    return summary


def at(summary: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; workers go by name: `workers.target/0.busy_s`."""
    value: Any = summary
    for part in key.split("."):
        if isinstance(value, list):
            value = next(item for item in value if item["name"] == part) if "/" in part else value[int(part)]
        else:
            value = value[part]
    return value


def check_identities(summary: Mapping[str, Any]) -> None:
    """The identities of the contract, which hold in every summary."""
    for unit in ("batches", "tokens", "samples"):
        amounts = summary[unit]
        settled = amounts["trained"] + amounts["queued"] + amounts["in_flight"] + amounts["lost"]
        assert amounts["trained"] <= amounts["produced"] <= amounts["planned"]
        assert settled == amounts["produced"] and amounts["produced"] <= amounts["planned"]
    for worker in summary["workers"]:
        spent = sum(worker[f"{state}_s"] for state in ("busy", "blocked", "starved", "sync", "transfer"))
        assert math.isclose(spent, worker["lifetime_s"], rel_tol=1e-9, abs_tol=1e-9), worker
        assert all(worker[f"{state}_s"] >= 0 for state in ("busy", "blocked", "starved", "sync", "transfer"))
        assert worker["lifetime_s"] <= summary["makespan_s"] + 1e-9
    if not any(worker["lost"] for worker in summary["workers"]):
        assert sum(summary["balance"]["batches"]) == summary["batches"]["trained"]

"""summary.json: what one run was and did, by the names of the contract, from the accumulator alone."""

import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.batches import lag1_length_correlation
from policies.ledger import HELD, LOST, PLACES, STAGED, TAKEN, TRAINED
from reports.metrics import BUSY, STATES, SYNC, TRANSFER, LaneMeter, Metrics, WorkerMeter
from reports.statistics import Eta, SteadyRate, remaining_time, steady_rate
from reports.verdict import Alternative, judge

INCOMPLETE: Final = frozenset({"deadlock", "worker_lost", "watchdog"})
"""Stop reasons of a run that did not do what it was asked to."""
_PACKAGES: Final = ("dflash-pipeline", "numpy", "scipy", "simpy", "pydantic", "pyarrow")


class Planned(Protocol):
    """What a summary takes from the batch plan; arrays of N integers, one per batch."""

    @property
    def count(self) -> int: ...
    @property
    def tokens(self) -> NDArray[np.int64]: ...
    @property
    def slots(self) -> NDArray[np.int64]: ...
    @property
    def samples(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the event stream does not say."""

    kind: str
    """"simulation", "rehearsal" or "training"."""
    policy: str
    seed: int
    config: Mapping[str, Any]
    """The resolved configuration."""
    anchors: int | None = None
    """Anchors per sample, for positions per second."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    waiting: Sequence[tuple[str, str]] = ()
    """(worker, what it waits for) when the run is incomplete."""
    failures: Sequence[str] = ()
    """What happened to workers that failed, in words."""
    alternatives: Sequence[Alternative] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More keys for the summary."""


def summarize(metrics: Metrics, plan: Planned, facts: Facts) -> dict[str, Any]:
    """The summary of a finished accumulator (`Metrics.finish` was called), strictly JSON-able."""
    rate = steady_rate(metrics.times, metrics.trained_tokens, end=metrics.fed_at)
    steady = rate if isinstance(rate, SteadyRate) else None
    reason = metrics.ended or "deadlock"
    verdict = judge(metrics, steady, facts.alternatives)
    summary = {
        "kind": facts.kind,
        "policy": facts.policy,
        "seed": facts.seed,
        "stop_reason": reason,
        "makespan_s": metrics.now,
        **_eta(metrics, plan, reason),
        "optimizer_steps": metrics.windows,
        **_amounts(metrics, plan),
        "throughput": _throughput(metrics, plan, steady, facts.anchors),
        "workers": [_worker(meter) for meter in (*metrics.targets, *metrics.drafters)],
        "lanes": [_lane(lane, metrics.now) for lane in metrics.lanes],
        "max_outstanding": metrics.max_outstanding,
        "balance": {
            "batches": [by[0] for by in metrics.trained_by],
            "tokens": [by[1] for by in metrics.trained_by],
        },
        "mixing": _mixing(metrics),
        "memory": dict(facts.memory),
        "verdict": {"bottleneck": verdict.bottleneck, "text": verdict.text},
        "alternatives": [asdict(alternative) for alternative in facts.alternatives],
        "failures": list(facts.failures),
        **facts.extra,
        "config": dict(facts.config),
        "versions": versions(),
    }
    if is_incomplete(summary):
        since = {meter.name: meter.stuck_since for meter in (*metrics.targets, *metrics.drafters)}
        summary["waiting"] = [
            {"worker": worker, "for": what, "since_s": since[worker]} for worker, what in facts.waiting
        ]
    return finite(summary)  # type: ignore[no-any-return]


def is_incomplete(summary: Mapping[str, Any]) -> bool:
    """Whether the run did not do what it was asked to (exit status 3)."""
    return summary["stop_reason"] in INCOMPLETE or summary["batches"]["lost"] > 0


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of what computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def finite(value: Any) -> Any:
    """`value` with every number that JSON does not know turned to None."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case np.generic():
            return finite(value.item())
    return value


def to_json(summary: Mapping[str, Any]) -> str:
    """The summary as text; the same summary gives the same bytes."""
    return json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _eta(metrics: Metrics, plan: Planned, reason: str) -> dict[str, Any]:
    """Predicted total and remaining seconds for all of the data, warm-up left out."""
    if reason == "data_exhausted":
        total = metrics.now if plan.count else None
        return {"eta_s": total, "eta_remaining_s": 0.0 if plan.count else None, "eta_ci95": None}
    left = int(plan.tokens[_at(metrics, *range(TRAINED))].sum())
    estimate = remaining_time(metrics.times, metrics.trained_tokens, left, firsts=metrics.firsts)
    if not isinstance(estimate, Eta):
        return {"eta_s": None, "eta_remaining_s": None, "eta_ci95": None}
    passed = metrics.now - metrics.times[-1]
    remaining = max(estimate.seconds - passed, 0.0)
    interval = None
    if estimate.low is not None and estimate.high is not None:
        interval = [metrics.now + max(bound - passed, 0.0) for bound in (estimate.low, estimate.high)]
    return {"eta_s": metrics.now + remaining, "eta_remaining_s": remaining, "eta_ci95": interval}


def _at(metrics: Metrics, *places: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which batches are at one of these places."""
    return np.isin(np.frombuffer(metrics.place, dtype=np.uint8), places)


def _amounts(metrics: Metrics, plan: Planned) -> dict[str, Any]:
    """The keys `batches`, `tokens` and `samples`."""
    masks = {
        "planned": np.ones(plan.count, dtype=np.bool_),
        "produced": _at(metrics, *range(HELD, len(PLACES))),
        "trained": _at(metrics, TRAINED),
        "queued": _at(metrics, STAGED),
        "in_flight": _at(metrics, HELD, TAKEN, TAKEN + 1),
        "lost": _at(metrics, LOST),
    }
    tokens = {name: int(plan.tokens[mask].sum()) for name, mask in masks.items()}
    slots = int(plan.slots.sum())
    padding = 1 - tokens["planned"] / slots if slots else None
    return {
        "batches": {name: int(mask.sum()) for name, mask in masks.items()},
        "tokens": {**tokens, "slots": slots, "padding_share": padding},
        "samples": {name: int(plan.samples[mask].sum()) for name, mask in masks.items()},
    }


def _throughput(metrics: Metrics, plan: Planned, steady: SteadyRate | None, anchors: int | None) -> dict[str, Any]:
    trained = _at(metrics, TRAINED)

    def per_second(amount: float) -> float | None:
        return amount / metrics.now if metrics.now > 0 else None

    positions = None if anchors is None else per_second(float(plan.samples[trained].sum()) * anchors)
    interval = steady.interval if steady else None
    return {
        "tokens_per_s": per_second(float(plan.tokens[trained].sum())),
        "slots_per_s": per_second(float(plan.slots[trained].sum())),
        "positions_per_s": positions,
        "steady_tokens_per_s": steady.rate if steady else None,
        "steady_from_s": steady.start_s if steady else None,
        "steady_to_s": steady.end_s if steady else None,
        "steady_ci95": [interval.low, interval.high] if interval else None,
        "ci95": None,
    }


def _worker(meter: WorkerMeter) -> dict[str, Any]:
    lifetime = meter.end or 0.0
    times = {f"{name}_s": seconds for name, seconds in zip(STATES, meter.seconds, strict=True)}
    return {
        "name": meter.name,
        "role": meter.role,
        **times,
        "lifetime_s": lifetime,
        "batches": meter.batches,
        "tokens": meter.tokens,
        "utilization": meter.seconds[BUSY] / lifetime if lifetime > 0 else None,
        "lost": meter.lost,
        **_in_vain(meter),
    }


def _in_vain(meter: WorkerMeter) -> dict[str, Any]:
    """Seconds by state that gave nothing, where there are some: of the states above, but no part of a pace."""
    found = {STATES[state]: seconds for state in (BUSY, SYNC, TRANSFER) if (seconds := meter.in_vain(state)) > 0}
    return {"in_vain_s": found} if found else {}


def _lane(lane: LaneMeter, makespan: float) -> dict[str, Any]:
    mean = lane.area / makespan if makespan > 0 else None
    return {"name": lane.name, "capacity": lane.capacity, "mean": mean, "max": lane.most}


def _mixing(metrics: Metrics) -> dict[str, Any]:
    windows = metrics.windows
    return {
        "windows": windows,
        "mixed_windows": metrics.mixed_windows,
        "mean_buckets": metrics.bucket_sum / windows if windows else None,
        "lag1_length_correlation": lag1_length_correlation(metrics.window_lengths),
    }


def lane_text(lanes: Iterable[Mapping[str, Any]], key: str = "mean") -> str:
    """Per-lane depths as `[5/10, 3/10]`."""
    parts = (f"{lane[key] or 0:.3g}/{lane['capacity']}" for lane in lanes)
    return f"[{', '.join(parts)}]"



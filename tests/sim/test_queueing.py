"""The simulator against exact results: queueing theory, fluid limits and the max-plus recursion.

Random systems are replicated; the exact value must lie inside the 99.9 % interval of the replications.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_sim.comparison import replicate
from dflash_sim.prediction import plan_of, summary_of
from reports.statistics import t_interval
from tests.helpers import at, check_identities, pipeline_of, summary_of_file

EXACT = json.loads((Path(__file__).parents[1] / "data" / "queueing.json").read_text())
UNBOUNDED = 10**6
EXP = {"distribution": "exponential"}


def _file(
    targets: int, drafters: int, target: dict[str, Any], drafter: dict[str, Any], policy: str, capacity: int
) -> dict[str, Any]:
    return {
        "topology": {"targets": targets, "drafters": drafters},
        "timings": {"target": target, "drafter": drafter},
        "dispatch": {"policy": policy, "capacity": capacity},
    }


def _tandem(target: dict[str, Any], drafter: dict[str, Any], capacity: int) -> dict[str, Any]:
    return _file(1, 1, target, drafter, "shared", capacity)


def _exponential(seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, **EXP}


def _erlang(k: int) -> dict[str, Any]:
    return {"seconds": 1.0, "distribution": {"erlang": k}}


def _shared(targets: int, t: float, drafters: int, d: float, capacity: int) -> dict[str, Any]:
    return _file(targets, drafters, _exponential(t), _exponential(d), "shared", capacity)


def _rotating(targets: int, t: float, drafters: int, d: float, capacity: int) -> dict[str, Any]:
    return _file(targets, drafters, _exponential(t), _exponential(d), "rotating", capacity)


RANDOM = {
    "M/M/1 lam=.8 mu=1": _tandem(_exponential(1.25), _exponential(1), UNBOUNDED),
    "M/M/3 lam=1 mu=1/2.4": _shared(1, 1.0, 3, 2.4, UNBOUNDED),
    "M/D/1 lam=.8 D=1": _tandem(_exponential(1.25), {"seconds": 1}, UNBOUNDED),
    "M/D/3 lam=1 D=2.4": _file(1, 3, _exponential(1), {"seconds": 2.4}, "shared", UNBOUNDED),
    "M/M/1/K lam=0.5 mu=1 K=3": _tandem(_exponential(2), _exponential(1), 1),
    "M/M/1/K lam=0.9 mu=1 K=5": _tandem(_exponential(1 / 0.9), _exponential(1), 3),
    "M/M/1/K lam=1.0 mu=1 K=10": _tandem(_exponential(1), _exponential(1), 8),
    **{f"tandem exp/exp mu=1 B={b}": _tandem(_exponential(1), _exponential(1), b) for b in (0, 1, 2, 8)},
    "tandem exp mu_t=1 mu_d=1.25 B=2": _tandem(_exponential(1), _exponential(0.8), 2),
    **{f"shared exp N5(4.0) M3(2.4) B={b}": _shared(5, 4.0, 3, 2.4, b) for b in (0, 1, 2, 8, 32)},
    "shared exp N4(4.0) M3(2.4) B=8": _shared(4, 4.0, 3, 2.4, 8),
    "static-assigned exp 5->(2,2,1) B=4 each": _file(
        5, 3, _exponential(4.0), _exponential(2.4), "round_robin", 4
    ),
    "rotating RR exp N1 M2 B1 (t=.5,d=1)": _rotating(1, 0.5, 2, 1.0, 1),
    "rotating RR exp N2 M2 B2 (t=1,d=1)": _rotating(2, 1.0, 2, 1.0, 2),
    "shared exp N2 M2 B4 (t=1,d=1) [same slots]": _shared(2, 1.0, 2, 1.0, 4),
    "rotating RR exp N5(4.0) M3(2.4) B=2 each": _rotating(5, 4.0, 3, 2.4, 2),
    "tandem Erlang-1/Erlang-1 mean 1 B=2": _tandem(_erlang(1), _erlang(1), 2),
    "tandem Erlang-4/Erlang-4 mean 1 B=2": _tandem(_erlang(4), _erlang(4), 2),
    "tandem Erlang-4/exp mean 1 B=4": _tandem(_erlang(4), _exponential(1), 4),
    "tandem Erlang-100 (CV .1) mean 1 B=1": _tandem(_erlang(100), _erlang(100), 1),
}


def _share(summary: dict[str, Any], role: str, state: str) -> float:
    workers = [worker for worker in summary["workers"] if worker["role"] == role]
    return sum(worker[f"{state}_s"] for worker in workers) / sum(worker["lifetime_s"] for worker in workers)


def _waiting(summary: dict[str, Any]) -> float:
    return sum(lane["mean"] for lane in summary["lanes"])


def _rate(summary: dict[str, Any]) -> float:
    return summary["batches"]["trained"] / summary["makespan_s"]


def _first(value: Any) -> float:
    return value[0] if isinstance(value, list) else value


MEASURES = {
    "X": _rate,
    "starve": lambda s: _share(s, "drafter", "starved"),
    "P0": lambda s: _share(s, "drafter", "starved"),
    "blocked": lambda s: _share(s, "target", "blocked"),
    "PK": lambda s: _share(s, "target", "blocked"),
    "rho": lambda s: _share(s, "drafter", "busy"),
    "Lq": _waiting,
    "L": lambda s: _waiting(s) + _share(s, "target", "blocked") + _share(s, "drafter", "busy"),
    "Wq": lambda s: _waiting(s) / _rate(s),
    "mean_wait_in_queue_and_hand": lambda s: (_waiting(s) + _held(s)) / _rate(s),
}


def _held(summary: dict[str, Any]) -> float:
    return sum(worker["blocked_s"] for worker in summary["workers"]) / summary["makespan_s"]


def _summaries(file: dict[str, Any], batches: int, replications: int) -> list[dict[str, Any]]:
    pipeline = pipeline_of(**file, data={"batches": batches})
    summaries = [summary_of(run) for run in replicate(pipeline, plan_of(pipeline), replications)]
    for summary in summaries:
        check_identities(summary)
    return summaries


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_system_agrees_with_its_exact_steady_state(name: str) -> None:
    unbounded = RANDOM[name]["dispatch"]["capacity"] == UNBOUNDED
    summaries = _summaries(RANDOM[name], batches=12_000 if unbounded else 4_000, replications=10)
    exact = EXACT[name]
    compared = [key for key in MEASURES if key in exact]
    for key in compared:
        interval = t_interval([MEASURES[key](summary) for summary in summaries], confidence=0.999)
        assert interval is not None and _first(exact[key]) in interval, (key, exact[key], interval)
    if "lane1" in exact:
        compared += _check_assigned_lanes(exact, summaries)
    assert compared


def _check_assigned_lanes(exact: dict[str, Any], summaries: list[dict[str, Any]]) -> list[str]:
    """Lane 0 is fed by two targets, lane 2 by one."""
    for name, number in (("lane2", 0), ("lane1", 2)):
        measured = {
            "X": [s["balance"]["batches"][number] / s["makespan_s"] for s in summaries],
            "Lq": [s["lanes"][number]["mean"] for s in summaries],
            "starve": [at(s, f"workers.drafter/{number}.starved_s") / s["makespan_s"] for s in summaries],
        }
        for key, values in measured.items():
            interval = t_interval(values, confidence=0.999)
            assert interval is not None and exact[name][key] in interval, (name, key, exact[name][key], interval)
    return ["lane1", "lane2"]


N = 1000
WAVES = [{"target_seconds": 4 + 0.3 * (7 * k % 5), "seconds": 3.8 + 0.25 * (3 * k % 7)} for k in range(N)]
BURSTS = [{"target_seconds": 2.0 if k // 10 % 2 == 0 else 6.0, "seconds": 4.0} for k in range(N)]
MAX_PLUS = [("max-plus n=1000 s=4+.3*(7k%5) c=3.8+.25*(3k%7)", WAVES, b) for b in (0, 1, 4)]
MAX_PLUS += [("max-plus burst n=1000 s=2/6 by tens, c=4", BURSTS, b) for b in (0, 2, 8)]


@pytest.mark.parametrize(("name", "batches", "capacity"), MAX_PLUS)
def test_given_times_give_the_exact_schedule(name: str, batches: list[dict[str, float]], capacity: int) -> None:
    summary = summary_of_file(data={"batches": batches}, dispatch={"capacity": capacity})
    exact = EXACT[f"{name} B={capacity}"]
    assert summary["makespan_s"] == pytest.approx(exact["makespan"], rel=1e-6)
    assert at(summary, "workers.drafter/0.starved_s") == pytest.approx(exact["starve"], rel=1e-6, abs=1e-6)
    assert at(summary, "workers.target/0.blocked_s") == pytest.approx(exact["blocked"], rel=1e-6, abs=1e-6)


def test_fixed_times_give_the_exact_makespan_on_either_side_of_the_balance() -> None:
    drafters = summary_of_file(**_file(4, 2, {"seconds": 4}, {"seconds": 3}, "shared", 2), data={"batches": N})
    exact = EXACT["D/D drafter-limited N4(4.0) M2(3.0) B>=2 n=1000"]
    assert drafters["makespan_s"] == pytest.approx(exact["makespan"], rel=1e-6)
    starved = sum(worker["starved_s"] for worker in drafters["workers"] if worker["role"] == "drafter")
    assert starved == pytest.approx(exact["starve_total"], rel=1e-6)
    targets = summary_of_file(**_file(2, 3, {"seconds": 4}, {"seconds": 2.4}, "shared", 0), data={"batches": N})
    exact = EXACT["D/D target-limited N2(4.0) M3(2.4) B>=0 n=1000"]
    assert targets["makespan_s"] == pytest.approx(exact["makespan"], rel=1e-6)
    busy = sum(worker["busy_s"] for worker in targets["workers"] if worker["role"] == "drafter")
    assert busy == pytest.approx(exact["busy_drafter_s"], rel=1e-6)


FLUID = [
    ("fluid 5x4.0 / 3x2.4", "shared", "shared", 4.0, 2.4),
    ("fluid 5x4.0 / 3x2.4", "static_221", "round_robin", 4.0, 2.4),
    ("fluid 5x4.0 / 3x2.4", "rotating", "rotating", 4.0, 2.4),
    ("fluid t=[4,4,5,8] d=[2,3]", "shared", "shared", [4.0, 4.0, 5.0, 8.0], [2.0, 3.0]),
    ("fluid t=[4,4,5,8] d=[2,3]", "static_0101", "round_robin", [4.0, 4.0, 5.0, 8.0], [2.0, 3.0]),
    ("fluid t=[4,4,5,8] d=[2,3]", "rotating", "rotating", [4.0, 4.0, 5.0, 8.0], [2.0, 3.0]),
]


@pytest.mark.parametrize(("name", "key", "policy", "target", "drafter"), FLUID)
def test_fixed_times_with_deep_lanes_reach_the_fluid_limit(
    name: str, key: str, policy: str, target: Any, drafter: Any
) -> None:
    targets, drafters = (5, 3) if isinstance(target, float) else (4, 2)
    file = _file(targets, drafters, {"seconds": target}, {"seconds": drafter}, policy, 20)
    summary = summary_of_file(**file, data={"batches": 4000})
    assert summary["throughput"]["steady_tokens_per_s"] == pytest.approx(EXACT[name][key], rel=0.003)


def test_every_exact_case_is_used() -> None:
    used = {*RANDOM, *(f"{name} B={b}" for name, _, b in MAX_PLUS), *(case[0] for case in FLUID)}
    assert {name for name in EXACT if name != "_about" and not name.startswith("D/D")} == used

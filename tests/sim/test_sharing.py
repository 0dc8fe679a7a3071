"""Workers that slow each other down: composition, closed forms, conservation, and the plain path where nobody does."""

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from dflash_sim.comparison import predict
from dflash_sim.doubts import doubts_of
from dflash_sim.interference import Company, Interference
from dflash_sim.prediction import simulate, summary_of
from dflash_sim.sharing import Sharing, unmeasured_pairs
from dflash_sim.sharing import composed as composed_of
from dflash_sim.timings_file import TimingsError, build_profile, read_timings, write_timings
from policies.loading import from_mapping
from policies.pipeline import Pipeline
from tests.helpers import check_identities


def pair(a: str, b: str, factor_a: float, factor_b: float, shared: str = "host") -> dict[str, Any]:
    return {"a": a, "b": b, "shared": shared, "factor_a": factor_a, "factor_b": factor_b}


def composed(measured: dict[str, Any], **workers: Any) -> Interference:
    return composed_of(build_profile({"interference": measured}).interference, **workers)


def everyone(workers: int, factor: float, cores: float = 0.0, host: float = 1.0) -> Interference:
    factors = [[1.0 if i == j else factor for j in range(workers)] for i in range(workers)]
    return Interference(factors=factors, cores=[cores] * workers, host_cores=host)


def ends(interference: Interference, work: list[tuple[int, float, float]]) -> dict[int, float]:
    """When each (worker, start, seconds) is done."""
    env = simpy.Environment()
    sharing, found = Sharing(env, interference), {}

    def start(worker: int, at: float, seconds: float) -> Any:
        yield env.timeout(at)
        sharing.begin((worker,), seconds, worker, lambda it: found.setdefault(it._value, env.now))

    for each in work:
        env.process(start(*each))
    env.run()
    return found


@pytest.mark.parametrize(
    ("devices", "missing"),
    [
        ({"targets": "cpu", "drafters": "cpu"}, ["drafter and drafter on the host"]),
        ({"targets": "cuda:0", "drafters": ["cuda:0", "cuda:0"]},
         ["target and drafter on one GPU", "drafter and drafter on one GPU"]),
        ({"targets": "cuda:0", "drafters": ["cuda:1", "cuda:2"]}, ["drafter and drafter on the host"]),
    ],
)  # fmt: skip
def test_pairs_that_the_topology_has_and_the_profile_lacks_are_named(
    devices: dict[str, Any], missing: list[str], tmp_path: Path
) -> None:
    role = {"samples": [{"batch_size": 1, "length": 100, "seconds": [1.0]}]}
    both = {"target": role, "drafter": role}
    topology = {"targets": 1, "drafters": 2, "devices": devices}
    path = tmp_path / "timings.json"
    sections = {"topology": topology, "data": {"batches": 3}, "timings": {"file": str(path)}}
    pipeline = from_mapping(sections | {"training": {"sync": "none"}}, for_simulation=True)
    pairs = [pair("target", "drafter", 1.5, 1.2)]
    known = build_profile(both | {"interference": {"pairs": pairs}})
    assert unmeasured_pairs(pipeline, known) == missing
    assert unmeasured_pairs(pipeline, build_profile(both)) == []
    write_timings(known, path)
    doubt = predict(pipeline)[1]["timings_doubted"][-1]
    assert doubt.startswith(", ".join(missing)) and "no such pair" in doubt


def test_two_workers_that_slow_each_other_by_two_share_like_one_processor() -> None:
    # Alone until 2, then half the speed each: worker 1 has 3 to do and worker 0 has 2 left, which takes until 6.
    assert ends(everyone(2, 2.0), [(0, 0.0, 4.0), (1, 2.0, 3.0)]) == pytest.approx({0: 6.0, 1: 7.0})


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_pairs_of_two_compose_to_strict_processor_sharing_of_any_number(workers: int) -> None:
    found = ends(everyone(workers, 2.0), [(each, 0.0, 3.0) for each in range(workers)])
    assert found == pytest.approx(dict.fromkeys(range(workers), 3.0 * workers))


def test_work_is_conserved_whatever_comes_when_under_strict_sharing() -> None:
    dice = random.Random(4)
    for _ in range(30):
        work = [(each, 0.0, dice.uniform(0.1, 3.0)) for each in range(6)]
        found = ends(everyone(6, 2.0), work)
        assert max(found.values()) == pytest.approx(sum(seconds for _, _, seconds in work))
        assert sorted(found, key=lambda each: found[each]) == sorted(found, key=lambda each: work[each][2])


def test_without_interference_every_service_takes_its_own_time() -> None:
    work = [(0, 0.0, 4.0), (1, 1.0, 2.5), (2, 1.5, 0.0)]
    assert ends(everyone(3, 1.0), work) == pytest.approx({0: 4.0, 1: 3.5, 2: 1.5})
    assert not everyone(3, 1.0).matters and everyone(3, 1.1).matters


def test_cores_are_shared_only_beyond_their_number() -> None:
    two, three = everyone(2, 1.0, cores=1.0, host=2.0), everyone(3, 1.0, cores=1.0, host=2.0)
    assert not two.matters and three.matters
    assert ends(three, [(each, 0.0, 2.0) for each in range(3)]) == pytest.approx({0: 3.0, 1: 3.0, 2: 3.0})


def test_a_dropped_worker_slows_nobody_and_leaves_no_event_behind() -> None:
    env, done = simpy.Environment(), []
    sharing = Sharing(env, everyone(2, 2.0))
    for worker in (0, 1):
        sharing.begin((worker,), 4.0, worker, lambda it: done.append((env.now, it._value)))
    env.run(until=2.0)
    sharing.drop(1)
    env.run()
    assert done == [(5.0, 0)] and env.now == 5.0


def test_factors_go_by_the_device_that_two_workers_share() -> None:
    measured = {
        "cores": 4,
        "pairs": [
            pair("target", "drafter", 1.5, 1.2, "cuda:0"),
            pair("target", "drafter", 1.1, 1.0),
            pair("drafter", "drafter", 0.9, 1.3),
        ],
    }
    devices, roles = ["cuda:3", "cuda:2", "cuda:3", "cpu"], ["target", "drafter", "drafter", "drafter"]
    found = composed(measured, devices=devices, roles=roles)
    assert found.factors[0] == [1.0, 1.1, 1.5, 1.1]
    assert found.factors[2] == pytest.approx([1.2, 1.1, 1.0, 1.1]) and found.cores == [0, 0, 0, 1]
    assert found.factor(0, [0, 2, 3]) == pytest.approx(1.6)


def test_a_target_that_spreads_over_gpus_shares_each_of_them(tmp_path: Path) -> None:
    """On cuda:0 and cuda:1, with a drafter on the second: as slow as with the drafter on the first."""
    shared = {"pairs": [pair("target", "drafter", 2.0, 2.0, "cuda:1")]}
    found = []
    for drafter in ("cuda:0", "cuda:1", "cuda:2"):
        topology = {"target_gpus": 2, "devices": {"targets": ["cuda:0"], "drafters": [drafter]}}
        found.append(predict(measured_pipeline(tmp_path, shared, topology=topology))[1]["makespan_s"])
    assert found == pytest.approx([400.0, 400.0, 201.0])


def test_a_worker_on_several_gpus_is_as_slow_as_on_the_one_that_lacks_most_power() -> None:
    places = [("cuda:0", "cuda:1"), "cuda:1", "cuda:1", "cuda:0"]
    found = composed(on_parts(300, 575), devices=places, roles=["target", "target", "drafter", "drafter"])
    assert found.factor(0, range(4)) == pytest.approx((3 * 300 / 580) ** (1 / 3))
    assert found.factor(3, range(4)) == pytest.approx((2 * 300 / 580) ** (1 / 3))


def test_what_the_load_of_cores_explains_is_not_counted_twice() -> None:
    found = composed(
        {"cores": 1, "pairs": [pair("target", "drafter", 2.2, 2.0)]}, devices=["cpu"] * 2, roles=["target", "drafter"]
    )
    assert found.factor(0, [1]) == pytest.approx(2.2) and found.factor(1, [0]) == pytest.approx(2.0)


HUGE = 10**400
WHOLE = {**pair("target", "drafter", 1.5, 1.2), "copy_b": 1.1, "step_b": 1.1, "factor_a_error": 0.1}


@pytest.mark.parametrize(
    "cores", ["many", 0, -1, True, 1e-308, 1e308, HUGE, [], float("nan")], ids=lambda it: str(it)[:9]
)
def test_cores_that_no_host_has_are_refused_by_their_key(cores: Any) -> None:
    with pytest.raises(TimingsError) as refused:
        build_profile({"interference": {"cores": cores}})
    [fault] = refused.value.faults
    assert fault.startswith("interference.cores: ") and len(fault) < 200 and "measure again" in fault


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, value) for key in ("a", "b") for value in ("loader", "", 1, None, "x" * 500)],
        *[("shared", value) for value in ("cuda:x", "gpu", "", None, 0, "cuda:" + "1" * 500)],
        *[
            (key, value)
            for key in ("factor_a", "factor_b", "copy_b", "step_b")
            for value in (0, -1, 1e308, 1e-308, HUGE, "2", True, float("inf"), float("nan"))
        ],
        *[("factor_a_error", value) for value in (-1, 1e308, HUGE, "0", None, float("nan"))],
        ("cpoy_a", 1.0),
    ],
    ids=lambda it: str(it)[:9],
)  # fmt: skip
def test_a_pair_that_cannot_be_used_is_refused_by_its_key(key: str, value: Any) -> None:
    build_profile({"interference": {"pairs": [WHOLE]}})
    with pytest.raises(TimingsError) as refused:
        build_profile({"interference": {"pairs": [WHOLE | {key: value}]}})
    [fault] = refused.value.faults
    assert fault.startswith(f"interference.pairs.0.{key}: ") and len(fault) < 250


@pytest.mark.parametrize("key", ["a", "b", "shared", "factor_a", "factor_b"])
def test_a_pair_without_what_it_needs_is_refused_by_the_missing_key(key: str) -> None:
    with pytest.raises(TimingsError, match=rf"interference\.pairs\.0\.{key}: missing"):
        build_profile({"interference": {"pairs": [{k: v for k, v in WHOLE.items() if k != key}]}})


def test_a_pair_given_twice_is_refused_in_either_order() -> None:
    for again in (WHOLE, pair("drafter", "target", 9, 9)):
        with pytest.raises(TimingsError, match="drafter and target that share host are given 2 times: keep one"):
            build_profile({"interference": {"pairs": [WHOLE, again]}})
    build_profile({"interference": {"pairs": [WHOLE, WHOLE | {"shared": "cuda:0"}, WHOLE | {"shared": "cuda:1"}]}})


@pytest.mark.parametrize("threads", [0, -2, True, "two", 2.0, HUGE], ids=lambda it: str(it)[:9])
def test_threads_that_cannot_be_are_refused_by_their_key(threads: Any, tmp_path: Path) -> None:
    apart = measured_pipeline(tmp_path, {"pairs": [WHOLE]}, settings={"threads": threads})
    assert predict(apart)[1]["batches"]["trained"] == 200  # on GPUs nobody asks
    on_cpu = {"targets": ["cpu"], "drafters": ["cpu"]}
    pipeline = measured_pipeline(
        tmp_path, {"pairs": [WHOLE]}, settings={"threads": threads}, topology={"devices": on_cpu}
    )
    with pytest.raises(TimingsError, match="settings.threads: .*must be a whole number from 1 to 65536"):
        predict(pipeline)


def test_every_profile_that_is_kept_is_read_with_its_pairs() -> None:
    files = sorted((Path(__file__).parents[2] / "docs").glob("*/*/timings.json"))
    assert len(files) >= 8 and all(read_timings(file).interference.pairs for file in files)


def measured_pipeline(folder: Path, interference: dict[str, Any], settings: Any = None, **changes: Any) -> Pipeline:
    role = {"samples": [{"batch_size": 1, "length": 100, "seconds": [1.0]}]}
    path = folder / "timings.json"
    measured = {"target": role, "drafter": role, "interference": interference, "settings": settings or {}}
    write_timings(build_profile(measured), path)
    base = {
        "topology": {"targets": 1, "drafters": 1, "devices": {"targets": ["cuda:0"], "drafters": ["cuda:0"]}},
        "data": {"batches": 200, "batch_tokens": 100},
        "timings": {"file": str(path)},
        "training": {"sync": "none"},
    }
    return from_mapping(base | changes, for_simulation=True)


def test_a_colocated_target_and_drafter_run_at_half_the_speed_of_two_devices(tmp_path: Path) -> None:
    shared = {"pairs": [pair("target", "drafter", 2.0, 2.0, "cuda:0")]}
    together = measured_pipeline(tmp_path, shared)
    apart = measured_pipeline(
        tmp_path, shared, topology={"devices": {"targets": ["cuda:0"], "drafters": ["cuda:1"]}}
    )
    makespans = [summary["makespan_s"] for _, summary in map(predict, (together, apart))]
    assert makespans[1] == pytest.approx(201.0) and makespans[0] == pytest.approx(400.0)


@pytest.mark.parametrize("sync", ["none", "step", "pooled"])
def test_identities_hold_where_workers_share_and_fail(tmp_path: Path, sync: str) -> None:
    pairs = [pair("target", "drafter", 1.4, 1.7), pair("drafter", "drafter", 1.2, 1.2), pair("target", "target", 2, 2)]
    pipeline = measured_pipeline(
        tmp_path,
        {"pairs": pairs},
        topology={"targets": 2, "drafters": 3},
        training={"sync": sync},
        faults=[{"worker": "drafter/1", "at_batch": 3, "kind": "crash"}],
        dispatch={"prefetch": 1},
    )
    first, second = (simulate(pipeline) for _ in range(2))
    check_identities(summary_of(first))
    assert summary_of(first) == summary_of(second)
    batches = summary_of(first)["batches"]
    assert batches["trained"] + batches["lost"] == 200 and (batches["lost"] > 0) == (sync == "none")


def test_a_drafter_that_hangs_leaves_a_deadlock_at_its_true_time(tmp_path: Path) -> None:
    pipeline = measured_pipeline(
        tmp_path,
        {"pairs": [pair("target", "drafter", 2.0, 2.0)]},
        topology={"targets": 1, "drafters": 1},
        faults=[{"worker": "drafter/0", "at_batch": 1, "kind": "hang"}],
        dispatch={"depth": 1},
    )
    summary = summary_of(simulate(pipeline))
    assert summary["stop_reason"] == "deadlock" and summary["makespan_s"] == pytest.approx(4.0)


def test_copies_and_steps_have_factors_of_their_own_and_copies_slow_nobody() -> None:
    measured = {"pairs": [{**pair("target", "drafter", 2.0, 1.5), "copy_b": 10.0, "step_b": 3.0}]}
    found = composed(measured, devices=["cpu", "cpu"], roles=["target", "drafter"])
    assert [found.factor(1, [0], kind) for kind in ("factor", "copy", "step")] == [1.5, 10.0, 3.0]
    env, done = simpy.Environment(), {}
    sharing = Sharing(env, found)
    sharing.begin((0,), 4.0, "target", lambda it: done.setdefault(it._value, env.now))
    sharing.begin((1,), 0.5, "copy", lambda it: done.setdefault(it._value, env.now), "copy")
    env.run()
    # While the target computes, until 4, the copy gets on at a tenth of its speed; 0.1 is left then.
    assert done == pytest.approx({"target": 4.0, "copy": 4.1})


def test_a_factor_within_its_own_error_counts_as_none() -> None:
    for error, expected in ((0.03, 1.0), (0.005, 1.03)):
        noisy = {**pair("target", "target", 1.03, 1.03), "factor_a_error": error, "factor_b_error": error}
        found = composed({"pairs": [noisy]}, devices=[None] * 8, roles=["target"] * 8)
        assert found.factors[0][1] == expected and found.matters == (expected > 1)


# Costs that are kept -------------------------------------------------------------------------------------------------


def by_hand(found: Interference, worker: int, busy: set[int], kind: str) -> float:
    """The formula, worked out anew."""
    matrix = {"factor": found.factors, "copy": found.copying, "step": found.stepping}[kind]
    assert matrix is not None and found.relief is not None and found.power is not None
    others = busy - {worker}
    together = 1 + sum(matrix[worker][other] - 1 for other in others)
    if kind == "factor":
        near = [found.relief[worker][other] for other in others if other in found.relief[worker]]
        together -= sum(near) - max(near, default=0.0)
    gpus, watts = found.power.gpus, found.power.watts
    asked = [sum(watts[each] for each in others | {worker} if gpu in gpus[each]) for gpu in gpus[worker]]
    load = max([1.0, *((each / found.power.spare) ** (1 / 3) for each in asked)]) if kind != "copy" else 1.0
    used = sum(found.cores[each] for each in others | {worker}) if found.cores[worker] else 0.0
    return together * load * max(1.0, used / found.host_cores)


def test_costs_that_are_kept_are_those_of_the_formula_after_any_number_of_changes() -> None:
    dice = random.Random(7)
    measured = with_trio(1.03, 1.04)
    for each in measured["pairs"]:
        each |= {"watts_a": 220.0, "watts_b": 230.3, "watts_both": 330.0, "factor_a": 1 + dice.random() / 10}
        each |= {"copy_a": 1.1, "copy_b": 1.3, "step_a": 1.05, "step_b": 1.07}
    measured["pairs"] += [pair("target", "drafter", 1.2, 1.1), pair("drafter", "drafter", 1.15, 1.12)]
    measured |= {"power": {"limit_watts": 500.0, "idle_watts": 120.0}, "cores": 2}
    places = [("cuda:0", "cuda:1"), *["cuda:0"] * 4, *["cuda:1"] * 4, *["cpu"] * 3]
    found = composed(measured, devices=places, roles=["target", "drafter"] * 6)
    company, busy = Company(found), set[int]()
    for change in range(5_000):
        worker = dice.randrange(12)
        busy ^= {worker}
        (company.enter if worker in busy else company.leave)(worker)
        who, kind = dice.randrange(12), dice.choice(["factor", "copy", "step"])
        if change % 10 == 0:
            assert company.factor(who, kind) == pytest.approx(by_hand(found, who, busy, kind), rel=1e-12)


class Row(list[float]):
    """Factors that count how often they are looked up."""

    looked_up = 0

    def __getitem__(self, at: Any) -> Any:
        Row.looked_up += 1
        return super().__getitem__(at)


def test_a_service_costs_one_timer_and_no_walk_over_all_pairs() -> None:
    env, ended, workers = simpy.Environment(), [], 16
    factors = [Row(1.0 if i == j else 1.1 for j in range(workers)) for i in range(workers)]
    sharing = Sharing(env, Interference(factors=factors, cores=[0.0] * workers, host_cores=1.0))

    def again(service: Any) -> None:
        ended.append(env.now)
        sharing.begin((service._value,), 1.0 + len(ended) / 7, service._value, again)

    for worker in range(workers):
        sharing.begin((worker,), 1.0 + worker / 5, worker, again)
    before, Row.looked_up = next(env._eid), 0
    while len(ended) < 100:
        env.step()
    assert next(env._eid) - before - 1 == 100 and Row.looked_up == 0


@pytest.mark.parametrize("one", ["cuda:0", "cuda", "cpu"])
def test_one_device_for_all_is_that_of_each(tmp_path: Path, one: str) -> None:
    pairs = [pair("target", "target", 1.5, 1.5, "cuda:0"), pair("target", "target", 1.2, 1.2)]
    measured = {"cores": 4.0, "pairs": pairs}
    topology = {"targets": 2, "drafters": 1}
    found = []
    for devices in ({"targets": one, "drafters": one}, {"targets": [one] * 2, "drafters": [one]}):
        pipeline = measured_pipeline(tmp_path, measured, topology={**topology, "devices": devices})
        found.append(summary_of(simulate(pipeline))["makespan_s"])
    assert found[0] == found[1]


# Power ---------------------------------------------------------------------------------------------------------------


def on_parts(watts: float, both: float, limit: float = 700.0) -> dict[str, Any]:
    """Pairs of roles on parts of a GPU that draws 120 W alone; they slow each other down by nothing else."""
    drawn = {"watts_a": 120 + watts, "watts_b": 120 + watts, "watts_both": 120 + both}
    pairs = [
        pair(a, b, 1.0, 1.0, "cuda:0") | drawn
        for a, b in (("target", "target"), ("target", "drafter"), ("drafter", "drafter"))
    ]
    return {"pairs": pairs, "power": {"limit_watts": limit, "idle_watts": 120.0}}


EIGHT = {"devices": ["cuda:0"] * 8, "roles": ["target"] * 5 + ["drafter"] * 3}


def test_workers_that_together_ask_for_more_than_a_gpu_may_draw_are_slowed_by_the_cube_root() -> None:
    found = composed(on_parts(105, 210), **EIGHT)
    assert found.matters and found.power is not None
    assert found.factor(0, range(8)) == pytest.approx((8 * 105 / 580) ** (1 / 3))
    assert found.factor(0, range(5)) == found.factor(7, [7]) == 1.0, "five ask for 525 of 580 W"
    assert found.factor(6, range(8), "step") > 1.0 == found.factor(6, range(8), "copy")


def test_gpus_are_told_apart_and_a_gpu_with_room_slows_nobody() -> None:
    halves = {"devices": ["cuda:0"] * 4 + ["cuda:1"] * 4, "roles": EIGHT["roles"]}
    assert not composed(on_parts(105, 210), **halves).matters
    assert not composed(on_parts(60, 120), **EIGHT).matters


def test_workers_that_take_turns_on_a_gpu_draw_no_more_than_one() -> None:
    assert composed(on_parts(500, 510), **EIGHT).power is None
    assert composed(on_parts(200, 210), **EIGHT).power is None


def test_what_a_pair_already_lost_to_the_limit_is_not_counted_twice() -> None:
    measured = on_parts(300, 575)
    for each in measured["pairs"]:
        each |= {"factor_a": (600 / 580) ** (1 / 3), "factor_b": (600 / 580) ** (1 / 3)}
    found = composed(measured, devices=["cuda:0"] * 2, roles=["target", "drafter"])
    assert found.factor(0, [1]) == pytest.approx((600 / 580) ** (1 / 3))


def test_a_copy_beside_workers_that_lack_power_takes_as_long_as_it_was_measured() -> None:
    measured = on_parts(320, 590)
    for each in measured["pairs"]:
        each |= {"copy_a": 1.2, "copy_b": 1.2}
    found = composed(measured, devices=["cuda:0"] * 2, roles=["target", "drafter"])
    assert found.factor(1, [0], "copy") == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("power", "drawn", "said"),
    [
        ({"limit_watts": 100.0, "idle_watts": 120.0}, {}, "idle_watts 120 should be below limit_watts 100"),
        ({"limit_watts": 700.0}, {}, "interference.power.idle_watts: missing"),
        ({"limit_watts": float("inf"), "idle_watts": 1.0}, {}, "interference.power.limit_watts"),
        (None, {"watts_a": 200.0}, "watts_a, watts_b and watts_both go together"),
        (None, {"watts_a": -1.0, "watts_b": 1.0, "watts_both": 1.0}, "interference.pairs.0.watts_a"),
    ],
)
def test_watts_that_cannot_be_are_refused(power: Any, drawn: dict[str, Any], said: str) -> None:
    with pytest.raises(TimingsError) as refused:
        build_profile({"interference": {"pairs": [WHOLE | drawn], "power": power}})
    assert said in "; ".join(refused.value.faults)


def test_watts_survive_being_written_and_read(tmp_path: Path) -> None:
    profile = build_profile({"interference": on_parts(105, 210)})
    write_timings(profile, tmp_path / "timings.json")
    assert read_timings(tmp_path / "timings.json") == profile


# Trios ---------------------------------------------------------------------------------------------------------------


def with_trio(first: float, third: float, error: float = 0.001, **other: Any) -> dict[str, Any]:
    """Pairs of roles on a GPU with one factor, and what a target takes among three."""
    pairs = [
        pair(a, b, first, first, "cuda:0") | {"factor_a_error": 0.001, "factor_b_error": 0.001}
        for a, b in (("target", "target"), ("target", "drafter"), ("drafter", "drafter"))
    ]
    trio = {"workers": ["target", "drafter", "target"], "shared": "cuda:0"}
    trio |= {"factors": [third, 2 * first - 1, third], "errors": [error] * 3}
    return {"pairs": pairs, "trios": [trio | other]}


def test_further_neighbours_cost_what_the_second_one_did() -> None:
    found = composed(with_trio(1.03, 1.04), **EIGHT)
    assert found.factor(0, []) == found.factor(0, [0]) == 1.0
    assert found.factor(0, [0, 1]) == pytest.approx(1.03) and found.factor(0, [1, 5]) == pytest.approx(1.04)
    assert found.factor(0, range(8)) == pytest.approx(1.03 + 6 * 0.01)
    assert found.factor(7, range(8)) == pytest.approx(1 + 7 * 0.03), "drafters' pairs add up"


def test_further_neighbours_may_also_cost_more_and_never_make_anyone_faster() -> None:
    assert composed(with_trio(1.01, 1.05), **EIGHT).factor(0, range(8)) == pytest.approx(1.01 + 6 * 0.04)
    assert composed(with_trio(1.03, 1.01), **EIGHT).factor(0, range(8)) == pytest.approx(1.03)


def test_what_three_tell_within_their_errors_is_nothing() -> None:
    assert composed(with_trio(1.03, 1.04, error=0.02), **EIGHT).relief is None
    assert composed(with_trio(1.03, 1.04, error=0.001), **EIGHT).relief is not None


def test_neighbours_are_those_of_the_same_gpu() -> None:
    halves = {"devices": ["cuda:0"] * 4 + ["cuda:1"] * 4, "roles": EIGHT["roles"]}
    found = composed(with_trio(1.03, 1.04), **halves)
    assert found.factor(0, range(8)) == pytest.approx(1.03 + 2 * 0.01)
    assert composed(with_trio(1.03, 1.04), devices=[None] * 8, roles=EIGHT["roles"]).relief is None


def test_steps_and_copies_add_up_pair_by_pair() -> None:
    measured = with_trio(1.03, 1.04)
    for each in measured["pairs"]:
        each |= {"step_a": 1.05, "step_b": 1.05, "copy_a": 1.1, "copy_b": 1.1}
    found = composed(measured, **EIGHT)
    assert found.factor(0, range(8), "step") == pytest.approx(1 + 7 * 0.05)
    assert found.factor(0, range(8), "copy") == pytest.approx(1 + 7 * 0.1)


def test_power_that_three_already_lack_is_no_relief() -> None:
    measured = on_parts(250, 500)  # three ask for 750 of 580 W
    slowed = (750 / 580) ** (1 / 3)
    measured["trios"] = [{"workers": ["target", "drafter", "target"], "shared": "cuda:0", "factors": [slowed] * 3}]
    assert composed(measured, **EIGHT).relief is None


def test_a_neighbour_whose_cost_is_in_doubt_makes_nobody_faster() -> None:
    measured = with_trio(1.03, 1.04)
    measured["pairs"][1] |= {"factor_a": 1.015, "factor_a_error": 0.01}  # what a drafter costs a target
    measured["trios"] = [{"workers": ["target"] * 3, "shared": "cuda:0", "factors": [1.04] * 3, "errors": [0.001] * 3}]
    found = composed(measured, devices=["cuda:0"] * 6, roles=["target"] * 3 + ["drafter"] * 3)
    factors = [found.factor(0, range(busy)) for busy in (2, 3, 4, 6)]
    assert factors == pytest.approx([1.03, 1.04, 1.04, 1.04])


THREES = [["target", "drafter", "target"], ["drafter", "drafter", "target"], ["target"] * 3]


@given(st.data())
def test_three_come_out_as_they_were_measured_with_and_without_power(data: st.DataObject) -> None:
    """Within two standard errors, unless a third neighbour would make a worker faster: then it costs nothing."""
    cost, error = st.floats(0.0, 0.2), st.floats(0.0, 0.02)
    watts = data.draw(st.sampled_from([0.0, 150.0, 250.0, 320.0]))
    measured = on_parts(watts, min(2 * watts, 590.0))
    for each, side in product(measured["pairs"], "ab"):
        each |= {f"factor_{side}": 1 + data.draw(cost), f"factor_{side}_error": data.draw(error)}
    roles, errors = data.draw(st.sampled_from(THREES)), [data.draw(error)] * 3
    three = {role: 1 + data.draw(st.floats(0.0, 0.5)) for role in roles}
    trio = {"workers": roles, "shared": "cuda:0", "factors": [three[role] for role in roles], "errors": errors}
    found = composed(measured | {"trios": [trio]}, devices=["cuda:0"] * 3, roles=roles)
    load = max(1.0, 3 * watts / 580) ** (1 / 3)
    doubts = [each[f"factor_{side}_error"] for each, side in product(measured["pairs"], "ab")]
    for worker, role in enumerate(roles):
        known = max(three[role], load * max(found.factors[worker]))
        assert found.factor(worker, range(3)) == pytest.approx(known, abs=2 * load * sum([errors[0], *doubts]) + 1e-9)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shared": "host"}, "interference.trios.0.shared: 'host': should be a GPU's name"),
        ({"workers": ["target", "drafter"]}, "interference.trios.0.workers"),
        ({"factors": [1.0, 1.0, float("nan")]}, "interference.trios.0.factors"),
        ({"errors": [0.0, 0.0, -1.0]}, "interference.trios.0.errors"),
        ({"wokers": []}, "did you mean workers?"),
    ],
)
def test_trios_that_cannot_be_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(TimingsError) as refused:
        build_profile({"interference": with_trio(1.03, 1.04, **wrong)})
    assert said in "; ".join(refused.value.faults)


def on_gpu(interference: dict[str, Any], folder: Path, targets: int = 3) -> Pipeline:
    """A pipeline with all its workers on `cuda:1`."""
    devices = {"targets": "cuda:1", "drafters": "cuda:1"}
    topology = {"targets": targets, "drafters": 1, "devices": devices}
    return measured_pipeline(folder, interference, topology=topology)


def test_trios_without_pairs_slow_whom_they_slowed_and_are_told_to_lack_pairs(tmp_path: Path) -> None:
    trios = [{"workers": ["target"] * 3, "shared": "cuda:1", "factors": [1.5] * 3}]
    assert composed({"trios": trios}, devices=["cuda:1"] * 3, roles=["target"] * 3).matters
    run, summary = predict(on_gpu({"pairs": [], "trios": trios}, tmp_path))
    [doubt] = summary["timings_doubted"]
    assert doubt.startswith("target and target on one GPU, target and drafter on one GPU: ") and "no such pair" in doubt
    alone = predict(on_gpu({}, tmp_path))[1]
    assert summary["makespan_s"] > alone["makespan_s"] and "timings_doubted" not in alone


@pytest.mark.parametrize("again", [["target", "target", "drafter"], ["drafter", "target", "target"]])
def test_a_trio_given_twice_is_refused_in_any_order(again: list[str]) -> None:
    measured = with_trio(1.03, 1.04)
    measured["trios"].append(measured["trios"][0] | {"workers": again, "factors": [1.0] * 3})
    with pytest.raises(TimingsError) as refused:
        build_profile({"interference": measured})
    [fault] = refused.value.faults
    assert fault.startswith("interference.trios: ") and "that share cuda:0 are given 2 times: keep one" in fault
    measured["trios"][1]["shared"] = "cuda:1"
    assert len(build_profile({"interference": measured}).interference.trios) == 2


@pytest.mark.parametrize(("third", "odd"), [(1.04, False), (3.0, False), (8.1, True), (100.0, True), (0.9, True)])
def test_a_trio_that_its_pairs_cannot_explain_is_told_and_no_more(third: float, odd: bool, tmp_path: Path) -> None:
    pipeline = on_gpu({}, tmp_path)
    first = 2.0 if third != 1.04 else 1.03
    doubts = doubts_of(pipeline, build_profile({"interference": with_trio(first, third)}))
    assert [text for text in doubts if "at once on cuda:0" in text] == doubts and len(doubts) == odd
    assert not odd or f"a target takes {third:.3g}×, beside one of the others 2× and 2×" in doubts[0]


def test_no_trio_that_was_ever_kept_is_told_as_odd() -> None:
    kept = [read_timings(path) for path in Path("docs/validation").glob("*/timings.json")]
    assert sum(bool(each.interference.trios) for each in kept) >= 6
    pipeline = from_mapping({"topology": {"targets": 5, "drafters": 3}})
    assert not [text for each in kept for text in doubts_of(pipeline, each) if "at once on" in text]


def test_a_pair_measured_on_the_very_device_counts_before_the_mean_of_others() -> None:
    pairs = [pair("target", "drafter", factor, factor, f"cuda:{gpu}") for gpu, factor in enumerate((2.0, 4.0))]
    roles = ["target", "drafter"]
    for device, factor in (("cuda:0", 2.0), ("cuda:1", 4.0), ("cuda:2", 3.0)):
        assert composed({"pairs": pairs}, devices=[device] * 2, roles=roles).factor(0, [1]) == pytest.approx(factor)
    spread = composed({"pairs": pairs}, devices=[("cuda:1", "cuda:2"), "cuda:1"], roles=roles)
    assert spread.factor(0, [1]) == pytest.approx(4.0)
    bare = [pair("target", "drafter", 2.0, 2.0, "cuda"), pairs[1]]
    named = composed({"pairs": bare}, devices=["cuda:0"] * 2, roles=roles)
    assert named.factor(0, [1]) == pytest.approx(2.0), "cuda is cuda:0"


def test_three_measured_on_the_very_device_count_before_the_mean_of_others() -> None:
    here, there = with_trio(1.03, 1.04), with_trio(1.1, 1.12)
    for key in ("pairs", "trios"):
        here[key] += [each | {"shared": "cuda:1"} for each in there[key]]
    for device, first, third in (("cuda:0", 1.03, 1.04), ("cuda:1", 1.1, 1.12)):
        found = composed(here, devices=[device] * 8, roles=EIGHT["roles"])
        assert found.factor(0, [1]) == pytest.approx(first) and found.factor(0, [1, 5]) == pytest.approx(third)


def test_trios_survive_being_written_and_read(tmp_path: Path) -> None:
    profile = build_profile({"interference": with_trio(1.03, 1.04)})
    write_timings(profile, tmp_path / "timings.json")
    assert read_timings(tmp_path / "timings.json") == profile

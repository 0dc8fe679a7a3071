"""Small pipelines with known answers, made from faults that people reported for systems of this kind."""

import json
import math

import pytest

from dflash_sim.comparison import _alternatives, alternatives, compare, predict
from dflash_sim.prediction import plan_of
from dflash_sim.simulator import charged
from reports.summary import is_incomplete, to_json
from reports.verdict import Rates
from tests.helpers import at, pipeline_of, summary_of_file

LISTED = [{"target_seconds": 2.0 if k // 10 % 2 == 0 else 6.0} for k in range(1000)]
RECORD = {
    "topology": {"targets": 5, "drafters": 3},
    "dispatch": {"policy": "round_robin", "depth": 8},
    "data": {"batch_tokens": 65536, "batches": 3000},
    "timings": {"target": {"tokens_per_second": 3880}, "drafter": {"tokens_per_second": 6750}},
}
SLOW_DRAFTER = {
    "topology": {"targets": 1, "drafters": 2},
    "data": {"batches": 40},
    "timings": {"target": {"seconds": 1}, "drafter": {"seconds": [0.9, 3.7]}},
}
EXACT = {
    "slow_drafter_rotating": (
        {**SLOW_DRAFTER, "dispatch": {"policy": "rotating", "capacity": 2}},
        {"makespan_s": 76.0, "balance.batches": [20, 20], "workers.target/0.blocked_s": 24.9},
    ),
    "slow_drafter_shared": (
        {**SLOW_DRAFTER, "dispatch": {"policy": "shared", "capacity": 2}},
        {"makespan_s": 41.7, "balance.batches": [30, 10], "workers.target/0.blocked_s": 0},
    ),
    "drafter_bound": (
        {"dispatch": {"capacity": 4}, "data": {"batches": 100}, "timings": {"drafter": {"seconds": 2}}},
        {
            "makespan_s": 201.0,
            "workers.target/0.busy_s": 100,
            "workers.target/0.blocked_s": 91,
            "workers.drafter/0.starved_s": 1,
            "verdict.bottleneck": "drafters",
            "max_outstanding": 5,
        },
    ),
    "target_bound": (
        {"dispatch": {"capacity": 4}, "data": {"batches": 100}, "timings": {"target": {"seconds": 2}}},
        {
            "makespan_s": 201.0,
            "workers.target/0.blocked_s": 0,
            "workers.drafter/0.starved_s": 101,
            "verdict.bottleneck": "targets",
        },
    ),
    "four_targets_two_drafters": (
        {
            "topology": {"targets": 4, "drafters": 2},
            "dispatch": {"capacity": 4},
            "data": {"batches": 1000},
            "timings": {"target": {"seconds": 4}, "drafter": {"seconds": 3}},
        },
        {"makespan_s": 1504.0, "balance.batches": [500, 500]},
    ),
    "bursts_depth_2": (
        {"dispatch": {"capacity": 2}, "data": {"batches": LISTED}, "timings": {"drafter": {"seconds": 4}}},
        {"makespan_s": 4602.0, "workers.drafter/0.starved_s": 602},
    ),
    "compile_first_step": (
        {
            "dispatch": {"capacity": 2},
            "data": {"batches": 100},
            "timings": {"target": {"seconds": 0.1}, "drafter": {"seconds": 1, "first_seconds": 60}},
        },
        {"makespan_s": 159.1},
    ),
    "partial_batch": (
        {"data": {"lengths": [100] * 64, "batch": {"samples": 6}}},
        {"batches.trained": 11, "samples.trained": 64, "stop_reason": "data_exhausted"},
    ),
    "one_short_batch": (
        {"data": {"lengths": [100] * 5, "batch": {"samples": 128}}},
        {"batches.trained": 1, "samples.trained": 5},
    ),
    "partial_window": (
        {"data": {"batches": 10}, "training": {"accumulate": 4}},
        {"optimizer_steps": 3, "batches.trained": 10},
    ),
    "more_steps_than_data": (
        {"data": {"batches": 10}, "stop": {"max_steps": 25}},
        {"stop_reason": "data_exhausted", "batches.trained": 10},
    ),
    "padding_is_not_work": (
        {"data": {"lengths": [100, 100, 100, 4000], "batch": {"samples": 4}}},
        {"tokens.trained": 4300, "tokens.slots": 16000, "tokens.padding_share": 0.73125},
    ),
    "never_fed": (
        {
            "topology": {"targets": 1, "drafters": 2},
            "dispatch": {"policy": "round_robin", "depth": 2},
            "training": {"sync": "step"},
            "data": {"batches": 9},
        },
        {"batches.trained": 9, "balance.batches": [9, 0], "stop_reason": "data_exhausted", "makespan_s": 10.0},
    ),
    "part_windows": (
        {
            "topology": {"targets": 5, "drafters": 3},
            "dispatch": {"policy": "round_robin", "depth": 8},
            "training": {"sync": "step", "accumulate": 4},
            "data": {"batches": 23},
        },
        {"batches.trained": 23, "batches.lost": 0},
    ),
    "nothing_to_do": (
        {"topology": {"targets": 1, "drafters": 2}, "data": {"batches": 0}},
        {"batches.trained": 0, "throughput.tokens_per_s": None, "stop_reason": "data_exhausted", "makespan_s": 0.0},
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_small_pipeline_gives_its_known_answer(name: str) -> None:
    file, expected = EXACT[name]
    summary = summary_of_file(**file)
    assert not is_incomplete(summary)
    for key, value in expected.items():
        assert at(summary, key) == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key
    assert json.loads(to_json(summary)) == summary


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 17_380),
        ({"dispatch": {"policy": "shared", "depth": 8}}, 19_400),
        ({"feed": {"policy": "rotating"}}, 16_860),
        ({"topology": {"targets": 6, "drafters": 2}, "dispatch": {"policy": "shared"}}, 13_500),
        ({"topology": {"targets": 6, "drafters": 1}, "dispatch": {"policy": "shared"}}, 6_750),
    ],
)
def test_the_field_record_comes_out_of_its_two_rates(changes: dict, rate: float) -> None:
    summary = summary_of_file(**{**RECORD, **changes})
    assert summary["throughput"]["steady_tokens_per_s"] == pytest.approx(rate, rel=0.005)


def test_the_verdict_on_the_field_record_names_the_starved_drafter_and_what_shared_would_bring() -> None:
    verdict = summary_of_file(**RECORD)["verdict"]
    assert verdict["bottleneck"] == "dispatch"
    assert "drafter/2 is idle 43% of the time while targets 0, 1, 3 and 4 are blocked" in verdict["text"]
    assert "`shared` would give +11.6%" in verdict["text"]


def test_a_policy_that_ends_no_sooner_gains_nothing_whatever_its_steady_rate() -> None:
    others = {"rotating": Rates(41_450, 45_700), "shared": Rates(43_500, 45_000), "bucketed": Rates(44_000, None)}
    found = _alternatives(Rates(41_470, 40_000), others)
    assert [each.policy for each in found] == ["shared", "rotating"]
    assert found[0].gain == pytest.approx(43_500 / 41_470 - 1) and found[1].gain == 0.0


def test_with_one_target_and_one_drafter_no_policy_is_tried_or_named() -> None:
    """Times vary and there is little depth between: each waits for the other now and then."""
    sections = {"data": {"batches": 2000}, "dispatch": {"policy": "shared", "depth": 1}}
    uneven = {"target": {"seconds": 1, "cv": 1.0}, "drafter": {"seconds": 1, "cv": 1.0}}
    pipeline = pipeline_of(**sections, timings=uneven)
    assert alternatives(pipeline, plan_of(pipeline), None) == []
    verdict = summary_of_file(**sections, timings=uneven)["verdict"]
    assert verdict["bottleneck"] == "dispatch"
    assert verdict["text"].endswith("with one target and one drafter no policy gives more")


@pytest.mark.parametrize("sync", ["none", "step"])
@pytest.mark.parametrize("policy", ["round_robin", "rotating", "shared", "bucketed"])
def test_uneven_shares_of_23_batches_are_all_trained_under_every_policy(policy: str, sync: str) -> None:
    summary = summary_of_file(
        topology={"targets": 3, "drafters": 2},
        data={"batches": 23},
        dispatch={"policy": policy},
        training={"sync": sync},
    )
    assert summary["batches"]["trained"] == 23


def test_lengths_given_in_rising_order_are_flagged_and_buckets_with_mixing_come_out_lower() -> None:
    lengths = list(range(100, 4100, 10))
    topology = {"targets": 3, "drafters": 3}
    given = summary_of_file(data={"lengths": lengths, "order": "given"}, topology=topology)
    mixed = summary_of_file(
        data={"lengths": lengths, "order": "interleaved", "buckets": [1000, 2000, 3000]},
        dispatch={"policy": "bucketed"},
        topology=topology,
    )
    assert given["mixing"]["lag1_length_correlation"] > 0.99
    assert mixed["mixing"]["lag1_length_correlation"] < given["mixing"]["lag1_length_correlation"] - 0.5


def test_a_dead_only_target_ends_the_run_at_once_naming_worker_and_batch() -> None:
    summary = summary_of_file(
        data={"batches": 40}, faults=[{"worker": "target/0", "at_batch": 3, "kind": "crash"}]
    )
    assert summary["stop_reason"] == "worker_lost" and is_incomplete(summary)
    assert summary["failures"] == ["target/0: crash on taking batch 2 (3 of its own)"]
    assert summary["makespan_s"] == 2.0


def test_with_two_targets_the_run_completes_after_one_dies() -> None:
    summary = summary_of_file(
        topology={"targets": 2, "drafters": 1},
        data={"batches": 40},
        faults=[{"worker": "target/0", "at_batch": 3, "kind": "crash"}],
    )
    assert summary["batches"]["trained"] == 40 and not is_incomplete(summary)


def test_a_hanging_worker_is_a_deadlock_that_says_who_waits_for_what() -> None:
    summary = summary_of_file(
        data={"batches": 40},
        dispatch={"capacity": 1},
        faults=[{"worker": "drafter/0", "at_batch": 3, "kind": "hang"}],
    )
    assert summary["stop_reason"] == "deadlock" and is_incomplete(summary)
    assert [(each["worker"], each["for"]) for each in summary["waiting"]] == [
        ("target/0", "room in lane shared (1/1) for batch 4"),
        ("drafter/0", "its own computation of batch 2"),
    ]
    assert [each["since_s"] for each in summary["waiting"]] == [5.0, 3.0]
    assert at(summary, "workers.drafter/0.transfer_s") == 0


def test_the_eta_leaves_the_compilation_out() -> None:
    file = EXACT["compile_first_step"][0]
    ten_trained = summary_of_file(**file, stop={"at_s": 69.2})
    assert ten_trained["batches"]["trained"] == 10
    assert ten_trained["eta_remaining_s"] == pytest.approx(90, rel=0.1)
    assert summary_of_file(**file, stop={"at_s": 59.0})["eta_s"] is None


def test_events_at_exactly_the_stop_time_still_happen() -> None:
    summary = summary_of_file(data={"batches": 40}, stop={"at_s": 10.0})
    assert summary["stop_reason"] == "at_s" and not is_incomplete(summary)
    assert summary["batches"]["trained"] == 9 and summary["makespan_s"] == 10.0


def test_a_full_queue_says_that_the_drafters_are_the_limit() -> None:
    """Depth 20 on a shared queue holds 60 batches; drafters at 4.2 of their former 10.1 Ktok/s."""
    summary = summary_of_file(
        topology={"targets": 5, "drafters": 3},
        dispatch={"policy": "shared", "depth": 20},
        data={"batches": 2000, "batch_tokens": 49152},
        timings={"target": {"tokens_per_second": 4040}, "drafter": {"tokens_per_second": 4200}},
    )
    lane = summary["lanes"][0]
    assert lane["capacity"] == 60 and lane["max"] == 60
    assert summary["verdict"]["bottleneck"] == "drafters"
    assert summary["throughput"]["steady_tokens_per_s"] == pytest.approx(12_600, rel=0.005)


@pytest.mark.parametrize(("placement", "takes"), [("producer", 0.5), ("taker", 0.0), (None, 1.0)])
def test_a_batch_placed_at_production_is_copied_again_on_half_of_the_takes(
    placement: str | None, takes: float
) -> None:
    copy, slow = 0.25, {"seconds": 1.5, "cv": 0.3}
    dispatch = {"policy": "shared", **({"placement": placement} if placement else {})}
    summary = summary_of_file(
        topology={"targets": 2, "drafters": 2},
        dispatch=dispatch,
        data={"batches": 4000},
        timings={"target": {"seconds": 1, "cv": 0.3}, "drafter": slow, "transfer": {"seconds": copy}},
    )
    copied = sum(worker["transfer_s"] for worker in summary["workers"]) / copy
    assert copied / 4000 == pytest.approx(takes, abs=0.03)


def test_what_waits_on_its_targets_device_is_copied_by_every_take() -> None:
    """`staging: device` of a training: the batch stays with its target until the taker has copied it."""
    assert charged("taker", "device") is None
    assert charged("taker", "host") == "taker" and charged("producer", "device") == "producer"


def test_queues_per_drafter_cure_the_wrong_placement() -> None:
    summary = summary_of_file(
        topology={"targets": 2, "drafters": 2},
        dispatch={"policy": "round_robin", "placement": "producer"},
        data={"batches": 400},
        timings={"transfer": {"seconds": 0.25}},
    )
    assert all(worker["transfer_s"] == 0 for worker in summary["workers"])


def test_comparing_fixed_times_names_the_equally_fast_policies() -> None:
    comparison = compare(pipeline_of(**RECORD), ["round_robin", "rotating", "shared"])
    assert comparison["outcome"] == "fixed times: rotating, shared are equally fastest"
    assert comparison["ranking"][-1] == "round_robin"


def test_replications_fill_the_interval_around_the_mean() -> None:
    file = {"data": {"batches": 300}, "timings": {"target": {"seconds": 1, "cv": 0.2}}}
    _, summary = predict(pipeline_of(**file), replications=5)
    low, high = summary["throughput"]["ci95"]
    assert low < summary["throughput"]["steady_tokens_per_s"] < high
    assert summary["eta_ci95"][0] < summary["eta_s"] < summary["eta_ci95"][1]
    assert math.isclose(summary["replications"]["makespan_s"]["mean"], summary["eta_s"])

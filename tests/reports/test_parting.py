"""A run that parts from its prediction: planted slow-downs are named by their side, with the factor."""

from dataclasses import replace

import pytest

from reports.moved import Pace
from reports.parting import parted

# The record's run of 20.2 Ktok/s: two drafters (one GPU had crashed) of 10.1 each, targets with room to spare.
BEFORE = Pace(
    target_s_per_slot=1 / 4_300,
    drafter_s_per_slot=1 / 10_100,
    transfer_s_per_batch=0.01,
    sync_s_per_batch=0.0,
    slots_per_batch=49_152,
    tokens_per_sample=2_068,
    padding_share=0.0,
    targets=5,
    drafters=2,
    tokens_per_s=20_200,
)


def said(**after: float) -> str:
    found = parted(BEFORE, replace(BEFORE, **after))
    return "" if found is None else found.sentence()


def test_the_records_slow_run_reads_drafters_and_not_a_full_queue() -> None:
    after = {"tokens_per_s": 12_600, "tokens_per_sample": 2_202, "drafters": 3, "drafter_s_per_slot": 1 / 4_200}
    assert said(**after) == "drafters: step time 2.4× the profile"


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        ({"target_s_per_slot": 1 / 2_000}, "targets: step time 2.1× the profile"),
        ({"drafter_s_per_slot": 1 / 5_000}, "drafters: step time 2.0× the profile"),
        ({"transfer_s_per_batch": 3.0}, "transfers: exposed copying 300× the profile"),
        ({"tokens_per_sample": 3_100, "drafter_s_per_slot": 1.3 / 10_100}, "longer data: mean length 1.5× the profile"),
        ({}, "dispatch: no side's own time moved: workers wait for each other otherwise"),
        ({"targets": 1}, "lost workers: 1 + 2 workers instead of 5 + 2"),
    ],
)
def test_planted_slow_downs_are_named_by_the_side_that_moved(after: dict[str, float], sentence: str) -> None:
    assert said(tokens_per_s=10_000, **after) == sentence


def test_a_worker_that_hung_is_named_as_lost_whichever_side_limits_the_run() -> None:
    after = {"tokens_per_s": 5_000, "targets": 4, "held_s_per_batch": 6.0, "drafter_s_per_slot": 1.2 / 10_100}
    assert said(**after) == "lost workers: 4 + 2 workers instead of 5 + 2"


def test_a_slow_side_is_still_named_where_a_lost_worker_held_up_little() -> None:
    after = {"tokens_per_s": 8_400, "targets": 4, "held_s_per_batch": 0.1, "drafter_s_per_slot": 2.4 / 10_100}
    assert said(**after) == "drafters: step time 2.4× the profile"


def test_of_two_slow_sides_the_one_that_limits_is_named() -> None:
    after = {"tokens_per_s": 9_000, "target_s_per_slot": 2 / 4_300, "drafter_s_per_slot": 1.3 / 10_100}
    assert said(**after).startswith("targets: step time 2.0×")


def test_a_slower_side_that_is_not_slower_than_its_data_is_excused() -> None:
    assert said(tokens_per_s=12_000, tokens_per_sample=3_000, drafter_s_per_slot=1.9 / 10_100).startswith("drafters")


def test_a_faster_run_names_the_side_that_became_faster() -> None:
    assert said(tokens_per_s=30_000, drafter_s_per_slot=1 / 16_000) == "drafters: step time 0.631× the profile"


def test_a_side_with_room_to_spare_explains_nothing() -> None:
    after = {"tokens_per_s": 17_000, "target_s_per_slot": 1.05 / 6_000}
    roomy = replace(BEFORE, target_s_per_slot=1 / 6_000)
    found = parted(roomy, replace(roomy, **after))
    assert found is not None and found.side == "dispatch"


def test_more_workers_are_the_topology_and_less_padding_moves_no_rate_of_slots() -> None:
    found = parted(BEFORE, replace(BEFORE, drafters=3, tokens_per_s=24_000))
    assert found is not None and found.sentence() == "topology: 5 + 3 workers instead of 5 + 2"
    padded = replace(BEFORE, padding_share=0.5)
    assert parted(padded, replace(padded, padding_share=0.25, tokens_per_s=30_300)) is None


def test_rates_within_a_tenth_have_not_parted() -> None:
    assert said(tokens_per_s=19_000, drafter_s_per_slot=3.0) == "" == said()

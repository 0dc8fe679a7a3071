"""Replications, paired comparisons and rankings against hand-computed values and known processes."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sim.analysis import (
    CannotTell,
    Paired,
    Standing,
    Winner,
    paired,
    rank,
    replication_seeds,
    replications_needed,
)
from reports.statistics import t_interval

# ---- random numbers ----


@given(st.integers(0, 2**53 - 1), st.integers(0, 30), st.integers(0, 30))
def test_more_replications_only_extend_the_seeds(seed: int, few: int, more: int) -> None:
    assert replication_seeds(seed, few + more)[:few] == replication_seeds(seed, few)


def test_the_first_replication_is_the_plain_run() -> None:
    assert replication_seeds(7, 1) == [7]
    assert replication_seeds(7, 0) == []


def test_seeds_differ_between_replications_and_between_neighbouring_seeds() -> None:
    seeds = [seed for start in range(50) for seed in replication_seeds(start, 100)[1:]]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**53


def test_seeds_are_the_same_everywhere_and_survive_json() -> None:
    seeds = replication_seeds(0, 3)
    assert seeds == [0, 4232842298785526, 2383740928328724]
    assert json.loads(json.dumps(seeds)) == seeds


# ---- how many replications ----


def test_the_two_stage_rule_gives_the_textbook_number() -> None:
    # s = 1.5811, t = 2.7764 (5 replications): (2.7764 * 1.5811 / 1)^2 = 19.27
    assert replications_needed([1.0, 2.0, 3.0, 4.0, 5.0], 1.0) == 20


def test_a_pilot_that_is_already_enough_asks_for_no_more() -> None:
    assert replications_needed([1.0, 2.0, 3.0, 4.0, 5.0], 10.0) == 5
    assert replications_needed([3.0, 3.0], 1e-9) == 2


def test_the_asked_number_reaches_the_wanted_half_width() -> None:
    rng = np.random.default_rng(2)
    reached = 0
    for _ in range(200):
        needed = replications_needed(rng.normal(0, 1, 10), 0.3)
        reached += abs(rng.normal(0, 1, needed).mean()) <= 0.3
    assert reached / 200 > 0.9


@pytest.mark.parametrize(
    ("pilot", "half_width", "rule"), [([1.0], 1.0, "at least 2"), ([1.0, 2.0], 0.0, "above 0")]
)
def test_an_impossible_wish_is_refused(pilot: list[float], half_width: float, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        replications_needed(pilot, half_width)


# ---- comparisons ----


def test_a_pair_is_compared_by_its_differences_and_its_gains() -> None:
    found = paired([10.0, 20.0, 40.0], [11.0, 21.0, 44.0])
    assert found.difference == t_interval([1.0, 1.0, 4.0])
    assert found.gain is not None
    assert found.gain.mean == pytest.approx((0.1 + 0.05 + 0.1) / 3)


def test_one_replication_or_a_zero_base_gives_no_interval() -> None:
    assert paired([1.0], [2.0]) == Paired(None, None)
    assert paired([0.0, 1.0], [1.0, 2.0]).gain is None


def test_unequal_numbers_of_replications_do_not_pair() -> None:
    with pytest.raises(ValueError, match="got 2 and 3 replications"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])


def test_common_random_numbers_find_a_difference_that_the_means_hide() -> None:
    rng = np.random.default_rng(3)
    work = rng.normal(100, 10, 20)
    found = paired(work, work + rng.normal(1, 0.5, 20)).difference
    alone = t_interval(work)
    assert found is not None and alone is not None
    assert 0 not in found
    assert found.half_width < alone.half_width / 5


def test_paired_intervals_cover_the_difference() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        work = rng.normal(100, 10, 10)
        difference = paired(work, work + rng.normal(1, 2, 10)).difference
        covered += difference is not None and 1.0 in difference
    assert 0.92 <= covered / 400 <= 0.98


# ---- rankings ----


def test_a_clear_winner_is_named_and_the_rest_stand_behind_it() -> None:
    ranking = rank({"slow": [10.0, 11.0, 12.0], "fast": [20.0, 21.5, 22.0]})
    assert ranking.outcome == Winner("fast")
    assert [place.name for place in ranking.places] == ["fast", "slow"]
    assert [place.standing for place in ranking.places] == [Standing.LEADER, Standing.BEHIND]


def test_less_is_better_turns_the_order_round() -> None:
    results = {"slow": [20.0, 21.5, 22.0], "fast": [10.0, 11.0, 12.0]}
    assert rank(results, higher_is_better=False).outcome == Winner("fast")


def test_entries_that_overlap_cannot_be_told_apart() -> None:
    results = {"a": [10.0, 12.0, 11.0], "b": [11.0, 11.5, 11.0], "far": [1.0, 2.0, 1.5]}
    ranking = rank(results)
    assert ranking.outcome == CannotTell(("b", "a"))
    assert ranking.places[-1].standing is Standing.BEHIND


def test_identical_results_cannot_be_told_apart_and_keep_their_order() -> None:
    results = {"x": [0.3] * 5, "y": [0.1 + 0.2] * 5, "z": [0.3] * 5}
    for higher_is_better in (True, False):
        outcome = rank(results, higher_is_better=higher_is_better).outcome
        assert isinstance(outcome, CannotTell) and set(outcome.among) == {"x", "y", "z"}
    assert rank({"x": [1.0] * 3, "y": [1.0] * 3}).outcome == CannotTell(("x", "y"))


def test_deterministic_results_are_told_apart_exactly() -> None:
    assert rank({"x": [17.4] * 5, "y": [19.4] * 5}).outcome == Winner("y")


def test_one_replication_tells_nothing_apart() -> None:
    assert rank({"x": [17.4], "y": [19.4]}).outcome == CannotTell(("y", "x"))


def test_one_entry_wins_alone() -> None:
    assert rank({"x": [1.0]}).outcome == Winner("x")


def test_an_empty_ranking_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        rank({})


def test_equal_policies_are_seldom_told_apart_by_chance() -> None:
    rng = np.random.default_rng(5)
    false = 0
    for _ in range(300):
        work = rng.normal(100, 10, 10)
        results = {name: work + rng.normal(0, 1, 10) for name in "abcd"}
        places = rank(results).places
        false += any(place.standing is Standing.BEHIND for place in places)
    assert false / 300 < 0.05

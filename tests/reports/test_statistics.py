"""Output analysis against hand-computed values, known processes and invariants."""

import math
from itertools import accumulate
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from reports.statistics import (
    NO_ESTIMATE,
    TOO_SHORT,
    Array,
    Cut,
    Eta,
    Interval,
    SteadyRate,
    batch_means_interval,
    mser5,
    remaining_time,
    steady_rate,
    t_interval,
)

STEPS = st.lists(st.integers(1, 9), min_size=12, max_size=80)


def rate_of(times: Array | list[float], weight: float = 1.0, end: float | None = None) -> SteadyRate:
    found = steady_rate(times, [weight] * len(times), end=end)
    assert isinstance(found, SteadyRate)
    return found


def eta_of(times: Array | list[float], remaining: float, firsts: list[int] | None = None) -> Eta:
    found = remaining_time(times, [1.0] * len(times), remaining, firsts=firsts or [])
    assert isinstance(found, Eta)
    return found


def interleaved(*workers: tuple[float, float, int]) -> Array:
    """Completion times of workers given as (first, period, count)."""
    return np.sort(np.concatenate([first + period * np.arange(count) for first, period, count in workers]))


def mm1_waits(rng: np.random.Generator, runs: int, customers: int, load: float) -> NDArray[np.float64]:
    """Waits in an M/M/1 queue with arrival rate 1 (Lindley's recursion, as a reflected random walk)."""
    service = rng.exponential(load, (runs, customers - 1))
    walk = np.cumsum(service - rng.exponential(1.0, service.shape), axis=1)
    walk = np.concatenate([np.zeros((runs, 1)), walk], axis=1)
    return walk - np.minimum.accumulate(walk, axis=1)


def coverage(intervals: list[Interval | None], truth: float) -> float:
    return sum(interval is not None and truth in interval for interval in intervals) / len(intervals)


# ---- intervals ----


def test_the_t_interval_equals_the_textbook_value() -> None:
    interval = t_interval([1.0, 2.0, 3.0, 4.0])
    assert interval is not None
    half = 3.182446305284263 * math.sqrt(5 / 3) / 2
    assert (interval.mean, interval.count) == (2.5, 4)
    assert interval.low == pytest.approx(2.5 - half, rel=1e-12)
    assert interval.half_width == pytest.approx(half, rel=1e-12)


def test_the_confidence_widens_the_interval() -> None:
    narrow, wide = t_interval([1, 2, 3, 4], 0.9), t_interval([1, 2, 3, 4], 0.99)
    assert narrow is not None and wide is not None
    assert narrow.half_width == pytest.approx(2.353363434801825 * math.sqrt(5 / 3) / 2, rel=1e-12)
    assert wide.half_width == pytest.approx(5.840909309733350 * math.sqrt(5 / 3) / 2, rel=1e-9)


@pytest.mark.parametrize("samples", [[], [1.0]])
def test_fewer_than_two_samples_have_no_interval(samples: list[float]) -> None:
    assert t_interval(samples) is None


def test_batch_means_leave_the_remainder_out_at_the_front() -> None:
    interval = batch_means_interval([99.0, 1.0, 3.0, 2.0, 4.0], batches=2)
    assert interval == t_interval([2.0, 3.0])


def test_a_short_series_gets_fewer_batches() -> None:
    assert batch_means_interval([1.0, 3.0, 2.0, 4.0]) == t_interval([2.0, 3.0])
    assert batch_means_interval([1.0, 3.0, 2.0]) is None


def test_raw_waits_mislead_where_batch_means_and_replications_do_not() -> None:
    truth = 0.8 * 0.8 / (1 - 0.8)
    waits = mm1_waits(np.random.default_rng(1), runs=200, customers=20_000, load=0.8)[:, 2000:]
    assert coverage([t_interval(run) for run in waits], truth) < 0.35
    assert coverage([batch_means_interval(run) for run in waits], truth) > 0.89
    means = mm1_waits(np.random.default_rng(2), runs=4000, customers=2000, load=0.8)[:, 400:].mean(axis=1)
    assert coverage([t_interval(twenty) for twenty in means.reshape(-1, 20)], truth) > 0.89


# ---- the end of the warm-up ----


def marginal_error(means: list[float], cut: int) -> float:
    rest = means[cut:]
    centre = sum(rest) / len(rest)
    return sum((value - centre) ** 2 for value in rest) / len(rest) ** 2


@given(st.lists(st.integers(0, 50), min_size=2, max_size=40))
def test_the_cut_minimises_the_marginal_standard_error(values: list[int]) -> None:
    means = [float(value) for value in values]
    half = len(means) // 2
    errors = [marginal_error(means, cut) for cut in range(half + 1)]
    match mser5(means, group=1):
        case Cut(index):
            assert index < half and errors[index] == pytest.approx(min(errors), abs=1e-12)
        case _:
            assert errors[half] == pytest.approx(min(errors), abs=1e-12)


def test_a_start_far_from_the_rest_is_cut_in_whole_groups() -> None:
    assert mser5([*[100.0] * 7, 1.0, *[-1.0, 1.0] * 96]) == Cut(10)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7e8])
def test_a_constant_series_is_cut_at_nothing(value: float) -> None:
    assert mser5([value] * 5000) == Cut(0)


def test_rounding_noise_on_a_constant_series_cuts_nothing() -> None:
    times = np.array(list(accumulate([0.1] * 100_000)))
    assert mser5(np.diff(times)) == Cut(0)


def test_the_stated_noise_is_no_warm_up() -> None:
    series = [1e-3] * 50 + [0.0] * 150
    assert mser5(series) == Cut(50)
    assert mser5(series, noise=1e-3) == Cut(0)


def test_a_compile_spike_is_cut_and_nothing_else() -> None:
    assert mser5([6e5, *[1.0] * 999]) == Cut(5)


def test_the_initial_bias_of_an_autoregressive_series_is_removed() -> None:
    rng = np.random.default_rng(3)
    cuts, raw, cut_means = [], [], []
    for _ in range(100):
        noise = rng.normal(size=3000)
        series = np.array(list(accumulate(noise, lambda last, shock: 0.9 * last + shock, initial=200.0)))
        found = mser5(series)
        assert isinstance(found, Cut)
        cuts.append(found.index)
        raw.append(series.mean())
        cut_means.append(series[found.index :].mean())
    assert abs(np.mean(raw)) > 0.5
    assert abs(np.mean(cut_means)) < 0.05
    assert 20 <= np.median(cuts) <= 100


def test_a_series_that_never_settles_is_too_short() -> None:
    assert mser5(np.arange(500.0)) is TOO_SHORT


@pytest.mark.parametrize("length", [0, 1, 5, 9])
def test_fewer_than_two_groups_are_too_short(length: int) -> None:
    assert mser5([1.0] * length) is TOO_SHORT


@given(
    st.lists(st.integers(0, 50), min_size=10, max_size=60), st.integers(-40, 40), st.sampled_from([0.25, 4.0])
)
def test_the_cut_does_not_depend_on_origin_or_unit(values: list[int], shift: int, scale: float) -> None:
    series = np.array(values, dtype=float)
    # Numbers that are exact in binary; ties may still be decided by the last bit of a quotient.
    first, second = mser5(series, group=1), mser5((series + shift) * scale, group=1)
    if first != second:
        means = series.tolist()
        cuts = [found.index if isinstance(found, Cut) else len(means) // 2 for found in (first, second)]
        assert marginal_error(means, cuts[0]) == pytest.approx(marginal_error(means, cuts[1]), abs=1e-12)


# ---- the steady rate ----


def test_one_completion_every_two_seconds_is_half_a_token_a_second() -> None:
    found = rate_of([2.0 * index for index in range(1, 101)])
    assert (found.rate, found.start_s, found.end_s) == (0.5, 2.0, 200.0)
    assert found.interval is not None and found.interval.low == found.interval.high == 0.5


@pytest.mark.parametrize("count", range(10))
def test_fewer_than_ten_instants_are_too_short(count: int) -> None:
    assert steady_rate([2.0 * index for index in range(count)], [1.0] * count) is TOO_SHORT


def test_ten_completions_are_enough() -> None:
    assert rate_of([2.0 * index for index in range(10)]).rate == 0.5


def test_a_long_first_step_does_not_lower_the_rate() -> None:
    assert rate_of(interleaved((60.1, 1.0, 200))).rate == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("drafters", [2, 3, 5, 8])
def test_drafters_out_of_phase_give_the_exact_rate(drafters: int) -> None:
    period = 9.7
    starts = [3 + 0.37 * period * drafter / drafters for drafter in range(drafters)]
    for count in (3000 // drafters, 40):
        for odd_out in range(2):
            times = interleaved(*((start, period, count) for start in starts))
            found = rate_of(times[: times.size - odd_out], 65536.0)
            assert found.rate == pytest.approx(drafters * 65536 / period, rel=1e-9)
            assert found.interval is not None and found.interval.half_width < 1e-9 * found.rate


def test_drafters_that_finish_together_give_the_exact_rate() -> None:
    together = np.repeat(2.7 * np.arange(1, 1001), 3)
    assert rate_of(together).rate == pytest.approx(3 / 2.7, rel=1e-12)
    ragged = np.sort(together + np.tile([0.0, 1e-12, -1e-12], 1000))
    assert rate_of(ragged).rate == pytest.approx(3 / 2.7, rel=1e-12)


def test_an_uneven_pipeline_comes_out_within_a_twentieth_of_a_percent() -> None:
    fast, slow = 65536 / 6750, 65536 / 3880
    times = interleaved((fast, fast, 1164), (fast + 2, fast, 1164), (slow, slow, 669))
    assert rate_of(times, 65536.0).rate == pytest.approx(2 * 6750 + 3880, rel=5e-4)


def test_bursts_count_in_whole_periods() -> None:
    times = list(accumulate(([2.0] * 10 + [6.0] * 10) * 50))
    assert rate_of(times).rate == pytest.approx(0.25, rel=1e-12)


def test_a_slow_start_is_left_out() -> None:
    times = list(accumulate([5.0] * 40 + [1.0] * 960))
    found = rate_of(times)
    assert found.start_s >= 196.0
    assert found.rate == pytest.approx(1.0, rel=1e-12)


def test_what_completes_after_the_feed_ran_dry_is_left_out() -> None:
    times = list(accumulate([1.0] * 100 + [10.0] * 30))
    found = rate_of(times, end=100.0)
    assert (found.rate, found.end_s) == (1.0, 100.0)
    assert rate_of(times).rate < 1.0


def test_a_run_that_changes_in_the_middle_is_too_short() -> None:
    times = list(accumulate([1.0] * 200 + [2.0] * 200))
    assert steady_rate(times, [1.0] * 400) is TOO_SHORT


def test_completions_without_tokens_change_nothing() -> None:
    times = [1.0 * index for index in range(1, 41)]
    assert steady_rate(times, [1.0, 0.0] * 20) == steady_rate(times[::2], [1.0] * 20)


def test_the_interval_covers_the_rate_of_noisy_drafters() -> None:
    rng = np.random.default_rng(5)
    intervals = []
    for _ in range(200):
        times = np.cumsum(rng.exponential(1.0, (3, 400)), axis=1)
        common = times[times <= times[:, -1].min()]
        found = steady_rate(np.sort(common), np.ones(common.size))
        assert isinstance(found, SteadyRate)
        intervals.append(found.interval)
    assert 0.90 <= coverage(intervals, 3.0) <= 0.99


@given(STEPS, st.sampled_from([0.25, 2.0, 64.0]))
def test_the_rate_follows_the_units_of_time_and_weight(steps: list[int], scale: float) -> None:
    times, weights = np.cumsum(steps), np.array(steps[::-1])
    match (
        steady_rate(times, weights),
        steady_rate(times * scale, weights),
        steady_rate(times, weights * scale),
    ):
        case SteadyRate() as plain, SteadyRate() as slower, SteadyRate() as heavier:
            assert slower.rate == pytest.approx(plain.rate / scale)
            assert heavier.rate == pytest.approx(plain.rate * scale)
        case found:
            assert found == (TOO_SHORT, TOO_SHORT, TOO_SHORT)


@given(STEPS)
def test_the_rate_is_that_of_its_window(steps: list[int]) -> None:
    times, weights = np.cumsum(steps).astype(float), np.array(steps[::-1])
    found = steady_rate(times, weights)
    if isinstance(found, SteadyRate):
        inside = weights[(times > found.start_s) & (times <= found.end_s)].sum()
        assert found.rate == pytest.approx(inside / (found.end_s - found.start_s))
        assert found.interval is not None and found.rate in found.interval


# ---- the time that remains ----


def test_a_compile_step_does_not_enter_the_remaining_time() -> None:
    for firsts in ([], [0]):
        eta = eta_of([60.1 + index for index in range(10)], 90, firsts)
        assert eta.seconds == pytest.approx(90, rel=1e-9)
        assert eta.low is not None and eta.high is not None
        assert eta.low <= eta.seconds <= eta.high


def test_before_anything_completes_there_is_no_estimate() -> None:
    assert remaining_time([], [], 100) is NO_ESTIMATE
    assert remaining_time([1.0], [0.0], 100) is NO_ESTIMATE


def test_one_instant_gives_the_plain_mean_and_no_interval() -> None:
    assert eta_of([60.0], 90) == Eta(5400.0, None, None)
    assert eta_of([60.0, 60.0, 60.0], 90, [0, 1, 2]) == Eta(1800.0, None, None)


def test_first_completions_alone_say_nothing_of_the_pace() -> None:
    assert eta_of([60.0, 60.25, 60.5], 90, [0, 1, 2]) == Eta(1815.0, None, None)


def test_the_second_completion_already_forgets_the_first_step() -> None:
    assert eta_of([60.0, 61.0], 98, [0]) == Eta(98.0, None, None)


def test_every_drafters_own_first_step_is_left_out() -> None:
    times = interleaved((60.1, 1.0, 4), (60.2, 1.0, 4), (60.3, 1.0, 4))
    assert eta_of(times, 90, [0, 1, 2]).seconds == pytest.approx(30, rel=1e-9)
    late = np.sort(np.append(np.arange(61.0, 91.0), np.arange(91.5, 131.0)))
    firsts = [0, int(np.searchsorted(late, 91.5))]
    assert eta_of(late, 100, firsts).seconds == pytest.approx(100, rel=0.02)


def test_a_drafter_that_joins_late_does_not_throw_the_evidence_away() -> None:
    times = [1.0 * index for index in range(1, 101)]
    assert eta_of(times, 50, [0, 99]).seconds == pytest.approx(50, rel=1e-9)
    assert eta_of(times, 50, [0, 95]).seconds == pytest.approx(50, rel=1e-9)


@pytest.mark.parametrize("after", [60, 200, 500, 1500])
def test_the_estimate_follows_a_change_of_pace(after: int) -> None:
    rng = np.random.default_rng(7)
    gaps = np.concatenate([rng.normal(1.0, 0.1, 1000), rng.normal(2.4, 0.24, after)])
    eta = eta_of(np.cumsum(gaps), 1000)
    assert eta.seconds == pytest.approx(2400, rel=0.05)


def test_one_stall_is_no_change_of_pace() -> None:
    rng = np.random.default_rng(13)
    for place in (250, 480, 499):
        gaps = rng.normal(1.0, 0.1, 500)
        gaps[place] = 60.0
        assert eta_of(np.cumsum(gaps), 1000).seconds == pytest.approx(1118, rel=0.02)


def test_a_steady_pace_is_seldom_taken_for_a_change() -> None:
    rng = np.random.default_rng(17)
    far = 0
    for _ in range(300):
        eta = eta_of(np.cumsum(rng.normal(1.0, 0.1, 400)), 1000)
        far += abs(eta.seconds - 1000) > 4 * 0.1 * 1000 / math.sqrt(400)
    assert far <= 6


def test_the_interval_covers_the_time_that_was_really_needed() -> None:
    rng = np.random.default_rng(11)
    covered, errors = 0, []
    for _ in range(200):
        gaps = rng.lognormal(0.0, 0.5, 300)
        gaps[0] += 60
        times = np.cumsum(gaps)
        eta = eta_of(times[:100], 200, [0])
        actual = times[-1] - times[99]
        assert eta.low is not None and eta.high is not None
        covered += eta.low <= actual <= eta.high
        errors.append(eta.seconds / actual - 1)
    assert covered / 200 > 0.88
    assert abs(np.mean(errors)) < 0.03


def test_nothing_left_takes_no_time() -> None:
    assert eta_of([1.0 * index for index in range(1, 30)], 0) == Eta(0.0, 0.0, 0.0)


@given(STEPS, st.integers(0, 1000))
def test_the_remaining_time_is_in_order_and_finite(steps: list[int], remaining: int) -> None:
    for count in range(1, len(steps) + 1):
        times, weights = np.cumsum(steps[:count]), np.array(steps[:count][::-1])
        eta = remaining_time(times, weights, remaining)
        assert isinstance(eta, Eta) and math.isfinite(eta.seconds)
        if eta.low is not None and eta.high is not None:
            assert 0 <= eta.low <= eta.seconds <= eta.high < math.inf


# ---- speed ----


def test_a_long_run_is_analysed_in_less_than_half_a_second() -> None:
    gaps = np.random.default_rng(0).exponential(size=756_000)
    times, weights = np.cumsum(gaps), np.ones(gaps.size)
    for work in (
        lambda: mser5(gaps),
        lambda: steady_rate(times, weights),
        lambda: remaining_time(times, weights, 1e5),
    ):
        start = perf_counter()
        work()
        assert perf_counter() - start < 0.5

"""Service times: exact constants, distributions, common random numbers, first times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dflash_sim.draws import Purpose, stream
from dflash_sim.service import ServiceTimes, service_times


@dataclass
class Plan:
    count: int
    slots: np.ndarray
    samples: np.ndarray
    length: np.ndarray
    target_factor: np.ndarray
    drafter_factor: np.ndarray


def plan(count: int = 100, slots: int = 65536) -> Plan:
    def full(value: int) -> np.ndarray:
        return np.full(count, value, dtype=np.int64)

    return Plan(count, full(slots), full(32), full(slots // 32), np.ones(count), np.ones(count))


@dataclass
class Role:
    seconds: Any = None
    tokens_per_second: Any = None
    cv: float | None = None
    distribution: Any = None
    first_seconds: Any = None


@dataclass
class Extra:
    seconds: float | None = None
    bytes_per_second: float | None = None
    cv: float | None = None
    distribution: Any = None


@dataclass
class Timings:
    target: Role | None = field(default_factory=lambda: Role(seconds=1.0))
    drafter: Role | None = field(default_factory=lambda: Role(seconds=1.0))
    loader: Extra | None = None
    transfer: Extra | None = None
    step: Extra | None = None


def draw(timings: Timings, batches: Plan | None = None, **more: Any) -> ServiceTimes:
    return service_times(timings=timings, plan=batches or plan(), targets=2, drafters=3, **more)


def test_a_constant_is_returned_exactly() -> None:
    times = draw(Timings(drafter=Role(seconds=0.9)))
    assert {times.drafter(worker, batch) for worker in range(3) for batch in range(100)} == {0.9}


def test_tokens_per_second_is_one_division_of_the_padded_slots() -> None:
    times = draw(Timings(target=Role(tokens_per_second=3880), drafter=Role(tokens_per_second=[6750, 7.1, 3])))
    assert times.target(1, 7) == 65536 / 3880
    assert [times.drafter(worker, 7) for worker in range(3)] == [65536 / 6750, 65536 / 7.1, 65536 / 3]


def test_a_list_gives_each_worker_its_own_time() -> None:
    times = draw(Timings(drafter=Role(seconds=[0.9, 3.7, 1])))
    assert [times.drafter(worker, 5) for worker in range(3)] == [0.9, 3.7, 1.0]


def test_a_batch_factor_multiplies_its_own_role_only() -> None:
    batches = plan()
    batches.drafter_factor[4] = 8.0
    batches.target_factor[5] = 2.0
    times = draw(Timings(), batches)
    assert [times.drafter(0, batch) for batch in (3, 4, 5)] == [1.0, 8.0, 1.0]
    assert [times.target(0, batch) for batch in (3, 4, 5)] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("role", "cv"),
    [
        (Role(seconds=2.0, cv=0.1), 0.1),
        (Role(seconds=2.0, cv=0.8), 0.8),
        (Role(seconds=2.0, distribution="exponential"), 1.0),
        (Role(seconds=2.0, distribution={"erlang": 4}), 0.5),
        (Role(tokens_per_second=32768, cv=0.3), 0.3),
    ],
)
def test_each_distribution_has_the_mean_and_cv_asked_for(role: Role, cv: float) -> None:
    drawn = draw(Timings(target=role), plan(200_000)).target_times.times(0)
    assert drawn.min() > 0
    assert drawn.mean() == pytest.approx(2.0, rel=0.01)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.02)


def test_erlang_may_be_an_attribute_as_well_as_a_key() -> None:
    class Erlang:
        erlang = 4

    as_object = draw(Timings(target=Role(seconds=1.0, distribution=Erlang())))
    as_mapping = draw(Timings(target=Role(seconds=1.0, distribution={"erlang": 4})))
    assert as_object.target(0, 9) == as_mapping.target(0, 9)


@pytest.mark.parametrize(
    "noise", [{"cv": 0.4}, {"distribution": "exponential"}, {"distribution": {"erlang": 3}}]
)
def test_the_noise_of_a_batch_does_not_depend_on_how_many_follow(noise: dict[str, Any]) -> None:
    timings = Timings(target=Role(seconds=1.0, **noise))
    few, many = (draw(timings, plan(count)).target_times.times(0) for count in (50, 5000))
    assert (few == many[:50]).all()


def test_a_batch_costs_the_same_in_any_order_on_any_equal_worker() -> None:
    timings = Timings(target=Role(seconds=1.0, cv=0.5), drafter=Role(seconds=1.0, cv=0.5))
    one, other = draw(timings, seed=3), draw(timings, seed=3)
    forwards = [one.drafter(batch % 3, batch) for batch in range(100)]
    backwards = [other.drafter(0, batch) for batch in reversed(range(100))]
    assert forwards == backwards[::-1]


def test_unequal_workers_share_the_noise_of_the_batch() -> None:
    times = draw(Timings(drafter=Role(seconds=[1.0, 2.0, 4.0], cv=0.5)))
    assert (times.drafter_times.times(1) == 2 * times.drafter_times.times(0)).all()
    assert times.drafter(2, 11) == 4 * times.drafter(0, 11) == times.drafter_times.times(2)[11]


def test_one_role_keeps_its_noise_when_the_other_changes() -> None:
    noisy = Role(seconds=1.0, cv=0.5)
    before = draw(Timings(target=noisy)).target_times.times(0)
    other = Role(seconds=9.0, distribution="exponential")
    after = draw(Timings(target=noisy, drafter=other)).target_times.times(0)
    assert (before == after).all()


def test_roles_and_seeds_and_replications_draw_apart() -> None:
    noisy = Timings(target=Role(seconds=1.0, cv=0.5), drafter=Role(seconds=1.0, cv=0.5))
    base, second = draw(noisy, seed=0), draw(noisy, seed=1)
    replication = draw(noisy, seed=(0, 1))
    drawn = [base.target(0, 0), base.drafter(0, 0), second.target(0, 0), replication.target(0, 0)]
    assert len(set(drawn)) == 4
    assert draw(noisy, seed=(0, 0)).target(0, 0) == base.target(0, 0)


def test_streams_of_different_purposes_differ() -> None:
    assert len({stream(0, purpose).random() for purpose in Purpose}) == len(Purpose)


def test_first_seconds_replaces_each_workers_first_time_once() -> None:
    times = draw(Timings(drafter=Role(seconds=1.0, first_seconds=60)))
    assert [times.drafter(batch % 2, batch) for batch in range(4)] == [60, 60, 1, 1]
    assert times.drafter(2, 99) == 60


def test_first_seconds_may_differ_by_worker_and_ignores_factor_and_noise() -> None:
    batches = plan()
    batches.drafter_factor[:] = 8.0
    times = draw(Timings(drafter=Role(seconds=1.0, cv=0.5, first_seconds=[60, 61, 62])), batches)
    assert [times.drafter(worker, 0) for worker in range(3)] == [60, 61, 62]


def test_a_second_run_has_first_times_of_its_own() -> None:
    timings = Timings(drafter=Role(seconds=1.0, first_seconds=60))
    assert [draw(timings).drafter(0, 0) for _ in range(2)] == [60, 60]


def test_the_drawn_times_can_be_read_without_using_up_first_times() -> None:
    times = draw(Timings(drafter=Role(seconds=1.0, first_seconds=60)))
    assert times.drafter_times.times(0).tolist() == [1.0] * 100
    assert times.drafter_times.first == (60.0, 60.0, 60.0)
    assert times.drafter(0, 0) == 60


def test_loader_transfer_and_step_take_no_time_unless_given() -> None:
    times = draw(Timings())
    assert (times.loader(0), times.transfer(5), times.step(10**6)) == (0.0, 0.0, 0.0)


def test_loader_transfer_and_step_constants_are_exact() -> None:
    times = draw(Timings(loader=Extra(0.01), transfer=Extra(0.1), step=Extra(0.2)))
    assert (times.loader(0), times.transfer(5), times.step(10**6)) == (0.01, 0.1, 0.2)


def test_the_loader_may_be_random_too() -> None:
    times = draw(Timings(loader=Extra(2.0, distribution="exponential")), plan(20_000))
    drawn = np.array([times.loader(batch) for batch in range(20_000)])
    assert drawn.mean() == pytest.approx(2.0, rel=0.03)
    assert drawn.std() == pytest.approx(2.0, rel=0.03)


def test_constant_is_a_distribution_without_noise() -> None:
    assert draw(Timings(target=Role(seconds=0.9, distribution="constant"))).target(0, 3) == 0.9


def test_bytes_per_second_divides_the_bytes_of_the_batch() -> None:
    times = draw(Timings(transfer=Extra(bytes_per_second=55e9)), batch_bytes=np.full(100, 2.5e9))
    assert times.transfer(3) == 2.5e9 / 55e9


def test_bytes_per_second_without_sizes_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="timings.transfer.bytes_per_second.*memory.hidden_bytes_per_token"):
        draw(Timings(transfer=Extra(bytes_per_second=55e9)))


def test_a_role_without_any_time_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="timings.drafter.*timings.file"):
        draw(Timings(drafter=None))


def test_a_plan_without_batches_is_no_special_case() -> None:
    times = draw(Timings(target=Role(seconds=1.0, cv=0.1)), plan(0))
    assert times.target_times.times(0).size == 0

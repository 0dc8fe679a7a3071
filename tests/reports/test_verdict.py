"""The verdict's figures: true while a run goes on, and not bent by a worker that hung and was lost."""

from types import SimpleNamespace

import pytest

from policies.effects import Assign, Deliver, Drop, End, Join, Step
from reports.metrics import BLOCKED, BUSY, STATES, SYNC, Metrics
from reports.statistics import SteadyRate
from reports.verdict import judge, solo_rates

HUNG_S = 100.0
STEPS = 10


def metrics_of(batches: int, drafters: int = 1) -> Metrics:
    work = SimpleNamespace(tokens=[10] * batches, bucket=[0] * batches, length=[10] * batches)
    return Metrics(targets=1, drafters=drafters, lanes=[("a", 2)], work=work)


def steady(rate: float, start_s: float, end_s: float) -> SteadyRate:
    return SteadyRate(rate, None, start_s, end_s)


def trained(metrics: Metrics, now: float, batch: int, drafter: int) -> None:
    """It takes a batch at `now`, which arrives at once, and computes for a second."""
    metrics.observe([(now, "put", (), [Deliver(drafter, batch, 0, 0, 0, True)])])
    metrics.observe([(now, "received", (drafter, batch), [])])
    metrics.observe([(now + 1.0, "computed", (drafter, batch), [])])


def blocked_run() -> Metrics:
    """One target, blocked from 1 s to the end; one drafter that computes a batch a second from 1 s on."""
    metrics = metrics_of(20)
    metrics.observe([(0.0, "target_ready", (0,), [Assign(0, 0, 0)]), (1.0, "offer", (0, 0), [])])
    for batch in range(9):
        trained(metrics, 1.0 + batch, batch, 0)
    return metrics


def test_the_verdict_of_a_run_that_goes_on_says_how_long_targets_are_blocked_by_now() -> None:
    metrics = blocked_run()
    assert metrics.life(metrics.targets[0], 10.0).share(BLOCKED) == pytest.approx(0.9)
    metrics.targets[0].batches, metrics.targets[0].tokens = 9, 90  # as if it had computed them ahead
    said = judge(metrics, steady(10.0, 0.0, 10.0), now=10.0)
    assert said.bottleneck == "drafters" and "are blocked 90% of the time" in said.text
    metrics.finish(10.0)
    assert judge(metrics, steady(10.0, 0.0, 10.0)) == said


def test_where_drafters_never_wait_the_text_says_that_no_policy_helps() -> None:
    """As of a training that was stopped on the way: nobody idles, and the policy is not to blame."""
    metrics = metrics_of(40)
    metrics.observe([(0.0, "target_ready", (0,), [Assign(0, 0, 0)]), (0.01, "offer", (0, 0), [])])
    for batch in range(20):
        trained(metrics, 0.01 + batch, batch, 0)
    metrics.targets[0].batches, metrics.targets[0].tokens = 30, 300
    metrics.finish(20.01)
    said = judge(metrics, steady(9.0, 5.0, 20.0))
    assert said.bottleneck == "dispatch" and "no policy helps" in said.text
    assert "wait 0% of the time only" in said.text and "9 tok/s in the steady time" in said.text


def test_drafters_that_wait_for_what_is_missing_leave_the_policy_to_blame() -> None:
    metrics = blocked_run()  # starved for the first second of ten
    metrics.targets[0].batches, metrics.targets[0].tokens = 9, 90
    metrics.finish(10.0)
    said = judge(metrics, steady(9.0, 0.0, 10.0))
    assert said.bottleneck == "dispatch" and "drafter/0 is idle 10% of the time" in said.text


def test_the_times_of_a_life_add_up_at_any_moment_and_those_of_a_retired_target_end() -> None:
    metrics = blocked_run()
    for now in (10.0, 12.5, 99.0):
        for meter in (*metrics.targets, *metrics.drafters):
            life = metrics.life(meter, now)
            assert sum(life.seconds) == pytest.approx(life.length) and life.length == now
    metrics.to_assign = 0
    metrics.targets[0].turn(11.0, STATES.index("starved"))
    assert metrics.life(metrics.targets[0], 99.0).length == 11.0


def test_a_drafter_that_is_faster_once_the_targets_are_done_is_rated_while_they_worked() -> None:
    """Five batches of two seconds beside a target, which is given its last batch at 10 s; then five of one second."""
    metrics, now = metrics_of(10), 0.0
    for batch in range(10):
        assigned = [Assign(0, batch, 0)] if batch < 9 else []
        metrics.observe([(0.0, "target_ready", (0,), assigned)])
    for batch in range(10):
        if now == 10.0:
            metrics.observe([(now, "target_ready", (0,), [Assign(0, 9, 0)])])
        metrics.observe([(now, "put", (), [Deliver(0, batch, 0, 0, 0, True)])])
        metrics.observe([(now, "received", (0, batch), [])])
        now += 2.0 if batch < 5 else 1.0
        metrics.observe([(now, "computed", (0, batch), [])])
    metrics.finish(now)
    assert solo_rates(metrics, steady(5.0, 2.0, 10.0)).drafters == pytest.approx(5.0)


def hung_in_step(*, told_first: bool, applied: bool) -> Metrics:
    """Two drafters, a batch and a second each, then a step; in the third step drafter 1 hangs and is given up.

    `told_first`: the loss is told before what became of the step. `applied`: whether drafter 0 had applied it.
    """
    metrics, now = metrics_of(4 * STEPS, drafters=2), 0.0
    for step in range(STEPS):
        alone = step > 2
        members = (0,) if alone else (0, 1)
        batches = tuple(2 * step + drafter for drafter in members)
        for drafter in members:
            metrics.observe([(now, "put", (), [Deliver(drafter, batches[drafter], 0, 0, step, True)])])
            metrics.observe([(now, "received", (drafter, batches[drafter]), [])])
        now += 1.0
        for drafter in members:
            metrics.observe([(now, "computed", (drafter, batches[drafter]), [Join(drafter, step)])])
        metrics.observe([(now, "join", (), [Step(step, members, batches)])])
        if step == 2:
            now += HUNG_S
            lost = (now, "drafter_lost", (1,), [])
            end = (now, "commit", (step, batches), []) if applied else (now, "abandon", (step,), [Drop(step, (0,))])
            metrics.observe([lost, end] if told_first else [end, lost])
        else:
            metrics.observe([(now, "commit", (step, batches), [])])
    metrics.observe([(now, "stop", ("at_s",), [End("at_s")])])
    return metrics


@pytest.mark.parametrize(("told_first", "applied"), [(True, True), (True, False), (False, True)])
def test_a_drafter_that_hung_in_a_step_does_not_slow_the_rates_of_the_others(told_first: bool, applied: bool) -> None:
    metrics = hung_in_step(told_first=told_first, applied=applied)
    survivor = metrics.drafters[0]
    assert survivor.seconds[BUSY] == pytest.approx(STEPS + HUNG_S)  # the account keeps what it waited
    assert survivor.awaited_busy == pytest.approx(HUNG_S)
    after = steady(10.0, HUNG_S + 4.0, HUNG_S + STEPS)
    assert solo_rates(metrics, after).drafters == pytest.approx(10.0)


def test_a_lost_worker_counts_for_the_part_of_the_steady_time_that_it_worked() -> None:
    metrics = hung_in_step(told_first=True, applied=True)
    assert solo_rates(metrics, steady(20.0, 1.0, 3.0)).drafters == pytest.approx(20.0)
    assert solo_rates(metrics, steady(15.0, 2.0, 4.0)).drafters == pytest.approx(15.0)


def test_time_that_went_to_waiting_for_a_lost_drafter_is_what_the_verdict_names() -> None:
    metrics = hung_in_step(told_first=True, applied=True)
    said = judge(metrics, steady(0.2, 1.0, HUNG_S + STEPS))
    assert said.bottleneck == "sync"
    assert "drafter/0 waited 91% of the time for drafters that were lost" in said.text and "watchdog_s" in said.text


def test_waiting_at_a_step_for_two_that_are_lost_at_once_counts_once() -> None:
    metrics = metrics_of(3, drafters=3)
    for drafter in range(3):
        metrics.observe([(0.0, "put", (), [Deliver(drafter, drafter, 0, 0, 0, True)])])
        metrics.observe([(0.0, "received", (drafter, drafter), [])])
    metrics.observe([(1.0, "computed", (0, 0), [Join(0, 0)])])
    metrics.observe([(9.0, "drafter_lost", (1,), []), (9.0, "drafter_lost", (2,), [])])
    assert metrics.drafters[0].awaited_sync == pytest.approx(8.0)
    assert metrics.life(metrics.drafters[0], 9.0).seconds[SYNC] == pytest.approx(8.0)

"""Runs beside their predictions: the end is foreseen early, and a planted slow-down is named while it happens."""

from pathlib import Path
from typing import Any

import pytest

from dflash_sim.foresight import SURE, Counted, Course, Foresight, Timeline, end_of
from dflash_sim.prediction import Run, prepare, simulate
from policies.effects import Assign, Deliver, Join
from policies.pipeline import Pipeline
from reports.tracefile import feed, read_trace
from tests.helpers import pipeline_of
from tests.reports.test_verdict import HUNG_S, STEPS, hung_in_step, metrics_of

GROWING = [{"tokens": 1_000 + 10 * k, "length": 1_000 + 10 * k, "seconds": 1 + k / 100} for k in range(200)]


def work(target: Any = 0.4, drafter: Any = 1.0, **sections: Any) -> Pipeline:
    timings = {"target": {"seconds": target}, "drafter": {"seconds": drafter, "first_seconds": 30}}
    return pipeline_of(**{"data": {"batches": GROWING}, "timings": timings} | sections)


def foreseen(pipeline: Pipeline) -> tuple[Run, Course]:
    courses: list[Course] = []

    def watching(run: Run) -> Course:
        courses.append(Course(run))
        return courses[-1]

    return simulate(pipeline, watching=watching), courses[0]


def beside(tmp_path: Path, predicted: Pipeline, real: Pipeline) -> Foresight:
    """The real run (simulated too), replayed as a live one beside the prediction."""
    simulate(real, trace_in=tmp_path)
    live = prepare(predicted, timed=False)
    foresight = Foresight(*foreseen(predicted), live)

    class Watch:
        def observe(self, exchanges: list[Any]) -> None:
            for each in exchanges:
                live.metrics.observe([each])
                foresight.look(each[0])

    live.metrics.finish(feed(read_trace(tmp_path), Watch()))
    return foresight


def test_a_run_that_goes_as_predicted_gives_no_warning_though_its_data_grow(tmp_path: Path) -> None:
    foresight = beside(tmp_path, work(), work())
    assert foresight.warnings == [] and foresight.over_all() is None


@pytest.mark.parametrize(
    ("real", "sentence"),
    [
        (work(drafter=2.4), "drafters: step time 2.4× the profile"),
        (work(target=3.0), "targets: step time 7."),
        (work(timings={"target": {"seconds": 0.4}, "drafter": {"seconds": 1, "first_seconds": 30},
                       "transfer": {"seconds": 1}}), "transfers: exposed copying"),
    ],
)
def test_a_planted_slow_down_is_named_while_the_run_goes_on(tmp_path: Path, real: Pipeline, sentence: str) -> None:
    foresight = beside(tmp_path, work(), real)
    assert len(foresight.warnings) == 1 and sentence in foresight.warnings[0]


def test_a_few_batches_that_vary_are_not_said_to_have_parted(tmp_path: Path) -> None:
    """Drafters that began together commit together, so that the rate over the first few batches is far off."""
    many: dict[str, Any] = {"topology": {"targets": 5, "drafters": 3}}
    times = {"target": {"seconds": 1.0, "cv": 0.1}, "drafter": {"seconds": 0.8, "cv": 0.1}}
    for seed in range(8):
        real = work(timings=times, seed=1 + seed, **many)
        assert beside(tmp_path / str(seed), work(timings=times, **many), real).warnings == []


@pytest.mark.parametrize(("commit_s", "looks"), [(80, 40_000), (1, 20_000)])
def test_a_run_of_days_is_compared_over_as_many_commits_as_it_takes(
    commit_s: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where these take longer than the window; what is kept for that does not grow."""
    even = [{"tokens": 1_000, "seconds": 1} for _ in range(looks // commit_s)]
    pipeline = work(topology={"targets": 1, "drafters": 8}, data={"batches": even})
    live = prepare(pipeline, timed=False)
    foresight = Foresight(*foreseen(pipeline), live)
    over: list[int] = []

    def ratio(_: Timeline, done: Timeline, since: int) -> None:
        over.append(len(done.times) - since)

    monkeypatch.setattr("dflash_sim.foresight.pace_ratio", ratio)
    for now in range(1, looks):
        if now % commit_s == 0:
            live.metrics.times.append(float(now))
            live.metrics.trained_tokens.append(1_000)
        foresight.look(float(now))
    assert min(over) >= SURE * 8 and over[-1] <= max(3_600 / commit_s, SURE * 8) + 2
    assert len(foresight._seen) <= max(3_600, SURE * 8) + 2


@pytest.mark.slow
def test_a_run_of_hours_that_slows_down_at_its_end_says_so(tmp_path: Path) -> None:
    """Over the run so far it is still within a tenth."""
    even = [{"tokens": 1_000, "seconds": 1} for _ in range(20_000)]
    odd = [{"tokens": 1_000, "seconds": 1 + (batch > 19_000)} for batch in range(20_000)]
    foresight = beside(tmp_path, work(data={"batches": even}), work(data={"batches": odd}))
    assert len(foresight.warnings) == 1 and "drafters: step time" in foresight.warnings[0]


def test_a_side_that_comes_back_and_moves_the_other_way_is_named_again(tmp_path: Path) -> None:
    """Fast, then as predicted, then slow: the second warning is what the first must not keep back."""
    factors = [0.4] * 40 + [1.0] * 60 + [4.0] * 100
    even = [{"tokens": 1_000, "seconds": 1} for _ in factors]
    odd = [{"tokens": 1_000, "seconds": factor} for factor in factors]
    foresight = beside(tmp_path, work(data={"batches": even}), work(data={"batches": odd}))
    assert len(foresight.warnings) == 2 and all("drafters: step time" in line for line in foresight.warnings)
    first, second = (float(line.split("step time ")[1].split("×")[0]) for line in foresight.warnings)
    assert first < 1 < second


def test_what_a_hung_drafter_never_finished_and_others_waited_for_it_is_counted_apart() -> None:
    counted = Counted.of(hung_in_step(told_first=True, applied=True), 0)
    assert counted.held == pytest.approx(HUNG_S)
    # Of 10 + 3 seconds the first batch of each is left out.
    assert counted.drafter_busy == pytest.approx(STEPS + 3 - 2)
    assert counted.sync == counted.transfer == 0.0


def lost_after_an_hour(state: str) -> Counted:
    """A worker comes into this state after a second, and is lost 3,600 s later."""
    metrics, start, lost = metrics_of(4, drafters=2), 1.0, 3_601.0
    offered = [(0.0, "target_ready", (0,), [Assign(0, 0, 0)]), (start, "offer", (0, 0), [])]
    delivered = [(start, "put", (), [Deliver(0, 1, 0, 0, 0, True)])]
    received = [*delivered, (start, "received", (0, 1), [])]
    joined = [(0.5, *received[0][1:]), (0.5, *received[1][1:]), (start, "computed", (0, 1), [Join(0, 0)])]
    metrics.observe({"blocked": offered, "transfer": delivered, "busy": received, "sync": joined, "starved": []}[state])
    metrics.observe([(lost, "target_lost" if state == "blocked" else "drafter_lost", (0,), [])])
    return Counted.of(metrics, 0)


@pytest.mark.parametrize("state", ["blocked", "starved", "busy", "transfer", "sync"])
def test_of_a_lost_worker_what_it_was_at_counts_and_not_how_long_it_was_blocked_or_starved(state: str) -> None:
    assert lost_after_an_hour(state).held == (0.0 if state in ("blocked", "starved") else 3_600.0)


def test_the_end_is_foreseen_after_a_tenth_of_a_run_that_slows_down_as_its_data_grow(tmp_path: Path) -> None:
    predicted, _ = foreseen(work())
    real = simulate(work(drafter=1.3))
    timeline = Timeline.of(predicted.metrics, predicted.metrics.now)
    whole = Timeline.of(real.metrics, real.metrics.now)
    early = Timeline(whole.times[:25], whole.tokens[:25], 0.0, whole.warm)
    assert end_of(timeline, early) == pytest.approx(whole.end, rel=0.02)
    assert end_of(timeline, Timeline(whole.times[:5], whole.tokens[:5], 0.0, whole.warm)) is None


@pytest.mark.parametrize("early", [20, 21, 22, 25])
def test_drafters_that_commit_at_once_do_not_mislead_about_the_end(early: int) -> None:
    """Predicted: a commit a second. In the run three drafters commit together, every 3.3 seconds."""
    predicted = Timeline([1.0 + k for k in range(250)], [1_000 * (1 + k) for k in range(250)], 250.0, 2)
    times = [3.3 * (1 + k // 3) for k in range(early)]
    run = Timeline(times, [1_000 * (1 + k) for k in range(early)], 0.0, 2)
    assert end_of(predicted, run) == pytest.approx(1.1 * 250, rel=0.03)

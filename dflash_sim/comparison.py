"""Several runs of the same work: replications of one pipeline, and policies side by side.

Every policy sees the same batches with the same times (common random numbers), so that differences are the policy's
and not the draw's. A measured profile is itself a sample: each replication but the first resamples it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dflash_sim.analysis import CannotTell, Ranking, paired, rank, replication_seeds
from dflash_sim.draws import Purpose, stream
from dflash_sim.prediction import Run, measured_times, plan_of, simulate, summary_of
from dflash_sim.timings import MeasuredTimes, resample_profile
from policies.batches import BatchPlan
from policies.builtin import BUILTIN
from policies.loading import replaced
from policies.pipeline import Pipeline
from reports.statistics import Interval, SteadyRate, steady_rate, t_interval, t_quantile
from reports.verdict import Alternative, Rates, cautious

Progress = Callable[[float, float], None]
Interrupted = Callable[[], bool]
_ALIKE: Final = 0.999
"""Rates of fixed times closer than this are equal for any purpose."""
QUICK: Final = 20_000
"""Batches that a quick simulation of the alternatives looks at."""


@dataclass(frozen=True)
class Figures:
    """What a replication is remembered by."""

    tokens_per_s: float
    slots_per_s: float
    positions_per_s: float
    steady_tokens_per_s: float | None
    makespan_s: float


def replicate(
    pipeline: Pipeline,
    plan: BatchPlan,
    count: int,
    progress: Progress | None = None,
    trace_in: Path | None = None,
    interrupted: Interrupted | None = None,
) -> Iterator[Run]:
    """`count` runs of the same plan with other draws; the first is the plain run, and the one that is traced."""
    measured = measured_times(pipeline)
    for number, seed in enumerate(replication_seeds(pipeline.seed, count)):
        resampled = _resampled(measured, pipeline, seed) if number else measured
        folder = None if number else trace_in
        yield simulate(
            pipeline,
            plan=plan,
            seed=seed,
            measured=resampled,
            trace_in=folder,
            progress=progress,
            interrupted=interrupted,
        )


def predict(
    pipeline: Pipeline,
    replications: int = 1,
    progress: Progress | None = None,
    trace_in: Path | None = None,
    interrupted: Interrupted | None = None,
) -> tuple[Run, dict[str, Any]]:
    """The first run and the summary; several replications fill in means and intervals of the rates."""
    plan = plan_of(pipeline)
    runs = replicate(pipeline, plan, replications, progress, trace_in, interrupted)
    first = next(runs)
    summary = summary_of(first)
    idle = summary["verdict"]["bottleneck"] in ("dispatch", "sync")
    if idle and summary["stop_reason"] != "interrupted":
        summary = summary_of(first, alternatives(pipeline, plan, first.measured))
    figures = [figures_of(summary), *(figures_of(summary_of(run)) for run in runs)]
    if len(figures) > 1:
        _fill_in(summary, figures)
    return first, summary


def alternatives(pipeline: Pipeline, plan: BatchPlan, measured: MeasuredTimes | None) -> list[Alternative]:
    """What the other policies would give for the first batches of the same work, best first."""
    quick = plan.head(QUICK)
    others = dict(_others(pipeline))
    if not others:
        return []
    base = _rates(pipeline, quick, measured)
    changed = {name: _rates(replaced(pipeline, changes), quick, measured) for name, changes in others.items()}
    return _alternatives(base, changed)


def _alternatives(base: Rates, others: Mapping[str, Rates]) -> list[Alternative]:
    """By steady rates, of those that have one; a gain must be one to the end of the work, too."""
    if not base.steady:
        return []
    found = [(name, rates, rates.steady) for name, rates in others.items()]
    return sorted(
        [Alternative(name, steady, cautious(base, rates)) for name, rates, steady in found if steady], key=_preference
    )


def _preference(other: Alternative) -> tuple[float, bool, str]:
    """Best gain first; gains that print alike go to `shared`, the simplest."""
    return -round(other.gain, 3), other.policy != "shared", other.policy


def compare(
    pipeline: Pipeline,
    policies: Sequence[str],
    replications: int = 1,
    progress: Progress | None = None,
    interrupted: Interrupted | None = None,
) -> dict[str, Any]:
    """The same work under several policies: a summary of each, its gain over the file's, and the ranking."""
    plan = plan_of(pipeline)
    firsts: dict[str, Run] = {}
    figures: dict[str, list[Figures]] = {}
    for policy in policies:
        runs = replicate(
            with_policy(pipeline, policy), plan, replications, progress, interrupted=interrupted
        )
        firsts[policy] = first = next(runs)
        figures[policy] = [figures_of(summary_of(run)) for run in (first, *runs)]
    summaries = {policy: summary_of(run, _among(policy, figures)) for policy, run in firsts.items()}
    if replications > 1:
        for policy, summary in summaries.items():
            _fill_in(summary, figures[policy])
    base = pipeline.dispatch.policy if pipeline.dispatch.policy in figures else policies[0]
    return _comparison(pipeline, base, summaries, figures)


def _among(policy: str, figures: Mapping[str, Sequence[Figures]]) -> list[Alternative]:
    """What the other policies that are compared bring, best first."""
    rates = {name: Rates(every[0].tokens_per_s, every[0].steady_tokens_per_s) for name, every in figures.items()}
    return _alternatives(rates.pop(policy), rates)


def with_policy(pipeline: Pipeline, policy: str) -> Pipeline:
    """The pipeline under another policy, checked again."""
    return replaced(pipeline, {"dispatch.policy": policy})


def figures_of(summary: Mapping[str, Any]) -> Figures:
    """The figures of one run; rates of a run that took no time count as zero."""
    rates = summary["throughput"]
    return Figures(
        tokens_per_s=rates["tokens_per_s"] or 0.0,
        slots_per_s=rates["slots_per_s"] or 0.0,
        positions_per_s=rates["positions_per_s"] or 0.0,
        steady_tokens_per_s=rates["steady_tokens_per_s"],
        makespan_s=summary["makespan_s"],
    )


def _resampled(measured: MeasuredTimes | None, pipeline: Pipeline, seed: int) -> MeasuredTimes | None:
    if measured is None:
        return None
    profile = resample_profile(measured.profile, stream(seed, Purpose.PROFILE))
    return MeasuredTimes(profile, anchors=pipeline.training.anchors)


def _others(pipeline: Pipeline) -> Iterator[tuple[str, dict[str, object]]]:
    topology = pipeline.topology
    if topology.targets == topology.drafters == 1:
        return  # whoever hands over, the same two work
    for policy in BUILTIN:
        if policy != pipeline.dispatch.policy and _allowed(pipeline, policy):
            yield policy, {"dispatch.policy": policy}
    if pipeline.training.sync == "step" and topology.drafters > 1:
        yield "sync: pooled", {"training.sync": "pooled"}


def _allowed(pipeline: Pipeline, policy: str) -> bool:
    """A bucketed policy without buckets is `shared` under another name; a capacity means other things there."""
    assert pipeline.data is not None
    return policy != "bucketed" or (bool(pipeline.data.buckets) and pipeline.dispatch.capacity is None)


def _rates(pipeline: Pipeline, plan: BatchPlan, measured: MeasuredTimes | None) -> Rates:
    metrics = simulate(pipeline, plan=plan, measured=measured).metrics
    rate = steady_rate(metrics.times, metrics.trained_tokens, end=metrics.fed_at)
    whole = sum(metrics.trained_tokens) / metrics.now if metrics.now > 0 else 0.0
    return Rates(whole, rate.rate if isinstance(rate, SteadyRate) else None)


def _fill_in(summary: dict[str, Any], figures: Sequence[Figures]) -> None:
    """Means and intervals over the replications in place of the first one's figures."""
    rates = summary["throughput"]
    for name in ("tokens_per_s", "slots_per_s", "positions_per_s"):
        if rates[name] is not None:
            rates[name] = _mean([getattr(each, name) for each in figures])
    steady = [each.steady_tokens_per_s for each in figures]
    known = [rate for rate in steady if rate is not None]
    whole = len(known) == len(steady)
    if whole:
        rates["steady_tokens_per_s"] = _mean(known)
    rates["ci95"] = _pair(t_interval(known if whole else [each.tokens_per_s for each in figures]))
    makespans = [each.makespan_s for each in figures]
    summary["replications"] = {
        "count": len(figures),
        "ci95_of": "steady_tokens_per_s" if whole else "tokens_per_s",
        "makespan_s": {"mean": _mean(makespans), "ci95": _pair(t_interval(makespans))},
    }
    if summary["stop_reason"] == "data_exhausted":
        summary["eta_s"], summary["eta_ci95"] = _mean(makespans), _next_one(makespans)


def _next_one(values: Sequence[float], confidence: float = 0.95) -> list[float]:
    """Interval for one more value of the same normal population, which one real run is."""
    interval = t_interval(values)
    assert interval is not None
    spread = interval.half_width / t_quantile(len(values), confidence) * math.sqrt(len(values) + 1)
    half = t_quantile(len(values), confidence) * spread
    return [max(interval.mean - half, 0.0), interval.mean + half]


def _comparison(
    pipeline: Pipeline, base: str, summaries: Mapping[str, dict[str, Any]], figures: Mapping[str, list[Figures]]
) -> dict[str, Any]:
    steady = all(each.steady_tokens_per_s is not None for every in figures.values() for each in every)
    name = "steady_tokens_per_s" if steady else "tokens_per_s"
    results = {policy: [getattr(each, name) or 0.0 for each in every] for policy, every in figures.items()}
    ranking = rank(results) if len(results) > 1 else None
    order = [place.name for place in ranking.places] if ranking else list(results)
    return {
        "kind": "comparison",
        "base": base,
        "measure": name,
        "seed": pipeline.seed,
        "replications": len(results[base]),
        "ranking": order,
        "outcome": _outcome(pipeline, ranking, results),
        "policies": [_entry(policy, base, summaries[policy], results) for policy in order],
    }


def _entry(
    policy: str, base: str, summary: dict[str, Any], results: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    rate, reference = _mean(results[policy]), _mean(results[base])
    gain = paired(results[base], results[policy]).gain if policy != base else None
    return {
        "policy": policy,
        "rate": rate,
        "gain": rate / reference - 1 if reference > 0 else None,
        "gain_ci95": _pair(gain),
        "summary": summary,
    }


def _outcome(pipeline: Pipeline, ranking: Ranking | None, results: Mapping[str, Sequence[float]]) -> str:
    """Who wins, in words. Fixed times need no replications; random ones cannot be told apart by one."""
    if ranking is None:
        return "one policy only"
    if not is_random(pipeline):
        best = max(values[0] for values in results.values())
        fastest = [policy for policy, values in results.items() if values[0] > best * _ALIKE]
        return f"fixed times: {', '.join(fastest)} {'is' if len(fastest) == 1 else 'are equally'} fastest"
    if len(next(iter(results.values()))) == 1:
        return "one replication of random times cannot tell policies apart: use --replications"
    match ranking.outcome:
        case CannotTell(among):
            return f"cannot tell apart: {', '.join(among)} (95 %)"
    return f"{ranking.places[0].name} is fastest (95 %)"


def is_random(pipeline: Pipeline) -> bool:
    """Whether another seed gives other times."""
    timings = pipeline.timings
    assert timings is not None
    roles = [role for role in (timings.target, timings.drafter, timings.loader) if role is not None]
    return timings.file is not None or any(role.cv or role.distribution not in (None, "constant") for role in roles)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _pair(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]

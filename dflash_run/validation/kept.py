"""What a validation keeps, and how all its figures are worked out again from it, without the machine it ran on."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dflash_run.training.forecast import FILE as PREDICTION
from dflash_run.training.forecast import Forecast, foretold
from dflash_run.validation.table import Limits, Row, rows
from dflash_sim.fitting import fit_trace
from dflash_sim.foresight import Timeline, end_of
from dflash_sim.prediction import simulate
from dflash_sim.prediction import summary_of as simulated_summary
from dflash_sim.timings import MeasuredTimes
from policies.batches import BatchPlan
from policies.faults import ABSENT, Fault
from policies.loading import from_mapping
from policies.pipeline import Pipeline
from reports.recorded import read_recorded
from reports.remade import summary_of
from reports.tracefile import Trace, metrics_of, read_trace
from reports.tracelayout import FILE as TRACE

PROFILE: Final = "timings.json"
SUMMARY: Final = "summary.json"
TABLE: Final = "table.json"
FILES: Final = (TABLE, PROFILE, PREDICTION, SUMMARY, TRACE)
"""What a case's folder must hold."""
DRIFT: Final = 0.01
"""How far a prediction made again may lie from the one that was kept."""
_DRAWS: Final = 16
"""Predictions whose mean tells workers' shares and lanes' depths."""
_EARLY: Final = 0.1
"""Share of the run after which its end is foreseen."""


@dataclass(frozen=True, kw_only=True)
class Remade:
    """A validation worked out again."""

    table: list[Row]
    drifts: list[str]
    """Predictions that are no longer what they were, or not of this profile, a line each."""


def plan_of_trace(trace: Trace) -> BatchPlan:
    """The batches of a recorded run, as far as a simulation needs them: which samples they held is not kept."""
    work, count = trace.work, trace.header.planned
    samples = np.array(work.samples, np.int64)
    return BatchPlan(
        tokens=np.array(work.tokens, np.int64),
        slots=np.array(work.slots, np.int64),
        samples=samples,
        length=np.array(work.length, np.int64),
        bucket=np.array(work.bucket, np.int32),
        target_factor=np.ones(count),
        drafter_factor=np.ones(count),
        epoch=np.zeros(count, np.int32),
        sample_ids=np.arange(samples.sum(), dtype=np.int64),
        sample_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(samples)]),
        bucket_names=tuple(trace.header.buckets),
    )


def table_of(forecast: Forecast, measured: dict[str, Any], trace: Trace, limits: Limits) -> list[Row]:
    """The table of a prediction and the run that it was made for."""
    return rows(
        [forecast.summary, *other_draws(forecast)],
        measured,
        foreseen_end=foreseen_end(forecast, trace),
        own_rate=own_rate(forecast, trace),
        solo_rate=min(solo_rates(forecast)),
        # Threads copy within one memory, for milliseconds: less than it takes to hear of it.
        copy_s=None if trace.header.kind == "rehearsal" else copy_seconds(forecast),
        limits=limits,
    )


def other_draws(forecast: Forecast) -> list[dict[str, Any]]:
    """Summaries of the same prediction with other seeds of its times."""
    run = forecast.run
    seeds = range(run.pipeline.seed + 1, run.pipeline.seed + _DRAWS)
    runs = (simulate(run.pipeline, plan=run.plan, measured=run.measured, seed=seed) for seed in seeds)
    return [simulated_summary(each) for each in runs]


def solo_rates(forecast: Forecast) -> tuple[float, float]:
    """Tokens per second of all targets, and of all drafters with their steps, if none ever waited or was slowed."""
    run = forecast.run
    topology, training = run.pipeline.topology, run.pipeline.training
    assert run.times is not None, "a simulation has times"
    tokens = float(run.plan.tokens.sum())
    targets = sum(tokens / run.times.target_times.times(worker).sum() for worker in range(topology.targets))
    each = run.plan.count / training.accumulate / (topology.drafters if training.sync != "none" else 1)
    steps = each * float(np.mean([run.times.step(number) for number in range(64)])) if run.times.steps else 0.0
    drafters = 0.0
    for worker in range(topology.drafters):
        drafters += tokens / (run.times.drafter_times.times(worker).sum() + steps)
    return float(targets), float(drafters)


def copy_seconds(forecast: Forecast) -> float | None:
    """Of all batches to drafters, one copy each; None without prefetch, since then no copy is hidden."""
    times = forecast.run.times
    assert times is not None, "a simulation has times"
    if not times.transfers or not forecast.run.pipeline.dispatch.prefetch:
        return None
    return sum(times.transfer(batch) for batch in range(forecast.run.plan.count))


def own_rate(forecast: Forecast, trace: Trace) -> float:
    """Throughput that the simulator gives with the run's own times: what is left of a difference is the model's."""
    anchors = forecast.run.pipeline.training.anchors
    measured = MeasuredTimes(fit_trace(trace), anchors=anchors)
    run = simulate(forecast.run.pipeline, plan=forecast.run.plan, measured=measured)
    rate: float = simulated_summary(run)["throughput"]["tokens_per_s"]
    return rate


def foreseen_end(forecast: Forecast, trace: Trace) -> float | None:
    """When the run would end, as foreseen when a tenth of it was trained."""
    whole = Timeline.of(metrics_of(trace), trace.end_s)
    if not whole.tokens:
        return None
    count = int(np.searchsorted(np.array(whole.tokens), _EARLY * sum(trace.work.tokens))) + 1
    early = Timeline(whole.times[:count], whole.tokens[:count], 0.0, whole.warm)
    return end_of(Timeline.of(forecast.run.metrics, forecast.run.metrics.now), early)


def kept_part(folder: Path, file: str, *keys: str) -> Any:
    """What a kept JSON file has at these keys. Raises ValueError, with the file's name, and OSError."""
    path = folder / file
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    for at, key in enumerate(keys):
        if not isinstance(found, dict) or key not in found:
            value = ABSENT if isinstance(found, dict) else found
            raise ValueError(str(Fault(f"{path}: {'.'.join(keys[: at + 1])}", value, "must be there, in a mapping")))
        found = found[key]
    return found


def kept_mapping(folder: Path, file: str, *keys: str) -> dict[str, Any]:
    """`kept_part` of what must be a mapping."""
    found = kept_part(folder, file, *keys)
    if not isinstance(found, dict):
        raise ValueError(str(Fault(": ".join([str(folder / file), *keys[-1:]]), found, "must be a mapping")))
    return found


def kept_pipeline(folder: Path) -> Pipeline:
    """What was trained, by the prediction's file."""
    config = kept_mapping(folder, PREDICTION, "summary", "config")
    return from_mapping({key: value for key, value in config.items() if key != "timings"})


def remake(folder: Path, limits: Limits) -> Remade:
    """Predict and compare again from a case's folder."""
    trace = read_trace(folder)
    kept = kept_mapping(folder, PREDICTION, "summary")
    forecast = foretold(kept_pipeline(folder), plan_of_trace(trace), folder / PROFILE)
    measured = summary_of(read_recorded(folder))
    measured["training"] = kept_mapping(folder, SUMMARY, "training")
    drifts = _other_profile(folder)
    for name, before, now in (
        ("tokens_per_s", kept["throughput"]["tokens_per_s"], forecast.summary["throughput"]["tokens_per_s"]),
        ("makespan_s", kept["makespan_s"], forecast.summary["makespan_s"]),
    ):
        if not abs(now / before - 1) <= DRIFT:  # not a number is a drift, too
            drifts.append(f"{folder.name}: {name}: predicted {now:.6g} now, {before:.6g} before the run")
    return Remade(table=table_of(forecast, measured, trace, limits), drifts=drifts)


def _other_profile(folder: Path) -> list[str]:
    """A line where the profile is not the one whose hash the prediction was written with."""
    told = kept_part(folder, PREDICTION, "profile", "sha256")
    if told == hashlib.sha256((folder / PROFILE).read_bytes()).hexdigest():
        return []
    rule = f"must be the SHA-256 of {PROFILE}, which is another file than before the run"
    return [str(Fault(f"{folder.name}: {PREDICTION}: profile.sha256", told, rule, "restore both (`git checkout`)"))]

"""What a validation keeps, and how all its figures are worked out again from it, without the machine it ran on."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dflash_run.training.forecast import FILE as PREDICTION
from dflash_run.training.forecast import RESTS_ON, Forecast, compared_rates, foretold
from dflash_run.validation.agreement import AGAIN, Difference, differences_of, drifting, lines, unknown_keys
from dflash_run.validation.table import Limits, Row, rows
from dflash_sim.fitting import fit_trace
from dflash_sim.foresight import Timeline, end_of
from dflash_sim.prediction import memory_report, prepare, simulate
from dflash_sim.prediction import summary_of as simulated_summary
from dflash_sim.timings import MeasuredTimes
from policies.batches import BatchPlan
from policies.faults import ABSENT, Fault, PipelineError
from policies.loading import from_mapping
from policies.pipeline import Pipeline
from reports.recorded import read_recorded
from reports.remade import summary_of
from reports.tracefile import Trace, feed, metrics_of, read_trace
from reports.tracelayout import FILE as TRACE

PROFILE: Final = "timings.json"
SUMMARY: Final = "summary.json"
TABLE: Final = "table.json"
FILES: Final = (TABLE, PROFILE, PREDICTION, SUMMARY, TRACE)
"""What a case's folder must hold."""
_UNTOLD: Final = frozenset({"versions", "alternatives", "failures"})
"""Parts of a summary that a trace does not give, or that say where it was made."""
_OWN: Final = frozenset({"training", "launcher", "prediction"})
"""Parts that only the run itself knew."""
_SAID: Final = {"moved": (str | None, "a sentence or null"), "warnings": (list, "a list")}
"""What a summary's `prediction` has of what was said on the way, which depends on when it was looked at."""
_DETAILS: Final = _UNTOLD | {"memory", "mixing", "max_outstanding", "timings_used", "timings_doubted", "config"}
"""Parts of a prediction's summary that are not held against it; its config is held against the run's."""
_DRAWS: Final = 16
"""Predictions whose mean tells workers' shares and lanes' depths."""
_EARLY: Final = 0.1
"""Share of the run after which its end is foreseen."""


@dataclass(frozen=True, kw_only=True)
class Remade:
    """A validation worked out again."""

    table: list[Row]
    drifts: list[str]
    """What prediction and summary say that is not what their files give, a line each."""


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


def kept_number(folder: Path, file: str, *keys: str) -> float:
    """`kept_part` of what must be a number."""
    found = kept_part(folder, file, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(str(Fault(f"{folder / file}: {'.'.join(keys)}", found, "must be a number")))
    return found


def kept_pipeline(folder: Path) -> Pipeline:
    """What was trained, by the prediction's file."""
    config = kept_mapping(folder, PREDICTION, "summary", "config")
    try:
        return from_mapping({key: value for key, value in config.items() if key != "timings"})
    except PipelineError as error:
        raise ValueError(f"{folder / PREDICTION}: summary.config: {error.faults[0]}") from None


def remake(folder: Path, limits: Limits) -> Remade:
    """Predict and compare again from a case's folder."""
    trace = read_trace(folder)
    measured = summary_of(read_recorded(folder)) | {"memory": _memory_of(trace)}
    other = _other_config(folder, measured)
    # A prediction of another pipeline fits no trace: then what the run itself was is predicted.
    pipeline = from_mapping(measured["config"]) if other else kept_pipeline(folder)
    forecast = foretold(pipeline, plan_of_trace(trace), folder / PROFILE)
    prediction = lines(f"{folder.name}: {PREDICTION}", [*other, *_prediction_drifts(folder, forecast, trace)])
    drifts = [*_other_profile(folder), *prediction, *_summary_faults(folder, measured, predicted=not prediction)]
    table = table_of(forecast, measured | {"training": _kept_training(folder)}, trace, limits)
    return Remade(table=table, drifts=drifts)


def _other_config(folder: Path, measured: Mapping[str, Any]) -> list[Difference]:
    """Where the prediction is of another pipeline than its run."""
    kept = kept_mapping(folder, PREDICTION, "summary", "config")
    return list(differences_of(_of_run(kept), _of_run(measured["config"]), at=("summary", "config")))


def _memory_of(trace: Trace) -> dict[str, Any]:
    """What staging took, by the events."""
    config = {key: value for key, value in trace.header.config.items() if key != "timings"}
    run = prepare(from_mapping(config), plan=plan_of_trace(trace), timed=False)
    if run.memory is not None:
        feed(trace, run.memory)
    return dict(memory_report(run))


def _prediction_drifts(folder: Path, forecast: Forecast, trace: Trace) -> Iterator[Difference]:
    """What the prediction says that its profile does not, or that its run was not."""
    kept, remade = kept_mapping(folder, PREDICTION, "summary"), forecast.summary
    found = differences_of(_without(kept, _DETAILS), _without(remade, _DETAILS), drifting(remade), ("summary",))
    yield from found
    whole = kept_mapping(folder, PREDICTION)
    told = {"kind": "prediction", "plan_hash": trace.header.plan_hash}
    yield from differences_of({key: whole.get(key, ABSENT) for key in told}, told)
    yield from unknown_keys(whole, (*told, "written_at", "profile", "summary"))
    yield from unknown_keys(kept_mapping(folder, PREDICTION, "profile"), ("path", "sha256"), ("profile",))


def _summary_faults(folder: Path, measured: dict[str, Any], *, predicted: bool) -> list[str]:
    """What the summary says that the trace does not; that only a part of the work was done.

    `predicted`: whether the kept prediction can be trusted, which the summary repeats.
    """
    kept, said = kept_mapping(folder, SUMMARY), kept_mapping(folder, SUMMARY, "prediction")
    remade = _without(measured, _UNTOLD)
    guess = kept_mapping(folder, PREDICTION, "summary")
    told = _repeated(kept_mapping(folder, PREDICTION, "profile"), guess, said)
    told |= compared_rates(guess, measured) if predicted else {}
    rates = compared_rates(measured, measured)
    found = [
        *differences_of({key: kept.get(key, ABSENT) for key in remade}, remade),
        *unknown_keys(kept, {*measured, *_OWN}),
        *differences_of({key: said.get(key, ABSENT) for key in told}, told, at=("prediction",)),
        *unknown_keys(said, {*told, *rates, *_SAID}, ("prediction",)),
    ]
    file = f"{folder.name}: {SUMMARY}"
    faults = lines(file, found) + [f"{file}: {fault}" for fault in _unlike_words(said)]
    return faults + [f"{folder.name}: {why}; {AGAIN}" for why in cut_short(measured)]


def _repeated(profile: Mapping[str, Any], foretold: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary's `prediction` repeats of the prediction's file; earlier runs did not repeat what it rests on."""
    rests = {key: foretold[key] for key in RESTS_ON if key in said and key in foretold}
    return {"profile": profile.get("path"), "profile_sha256": profile.get("sha256"), **rests}


def _unlike_words(said: Mapping[str, Any]) -> Iterator[Fault]:
    for key, (kind, name) in _SAID.items():
        if not isinstance(said.get(key, ABSENT), kind):
            yield Fault(f"prediction.{key}", said.get(key, ABSENT), f"must be there, and {name}", AGAIN)


def cut_short(summary: Mapping[str, Any]) -> list[str]:
    """Why a run is no whole one, which alone can be put beside its prediction; nothing for a whole one."""
    planned, trained = (summary["batches"][key] for key in ("planned", "trained"))
    lost = [worker["name"] for worker in summary["workers"] if worker["lost"]]
    whole = summary["stop_reason"] == "data_exhausted" and planned == trained
    part = f"incomplete ({summary['stop_reason']}): {trained:,} of {planned:,} batches trained"
    return [part] * (not whole) + [f"lost {', '.join(lost)}"] * bool(lost)


def _without(summary: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key not in keys}


def _of_run(config: Any) -> Any:
    """What a prediction's config has in common with its run's: not where times are from, nor how devices are named."""
    if not isinstance(config, dict) or not isinstance(config.get("topology"), dict):
        return config
    return _without(config, frozenset({"timings"})) | {"topology": _without(config["topology"], frozenset({"devices"}))}


def _kept_training(folder: Path) -> dict[str, Any]:
    """What only the run itself knew, as far as a table needs it. Raises ValueError."""
    for role in kept_mapping(folder, SUMMARY, "training", "forecast"):
        kept_number(folder, SUMMARY, "training", "forecast", role, "total")
    for worker in kept_mapping(folder, SUMMARY, "training", "peaks"):
        kept_number(folder, SUMMARY, "training", "peaks", worker, "allocated")
        kept_part(folder, SUMMARY, "training", "peaks", worker, "device")
    return kept_mapping(folder, SUMMARY, "training")


def _other_profile(folder: Path) -> list[str]:
    """A line where the profile is not the one whose hash the prediction was written with."""
    told = kept_part(folder, PREDICTION, "profile", "sha256")
    if told == hashlib.sha256((folder / PROFILE).read_bytes()).hexdigest():
        return []
    rule = f"must be the SHA-256 of {PROFILE}, which is another file than before the run"
    return [str(Fault(f"{folder.name}: {PREDICTION}: profile.sha256", told, rule, "restore both (`git checkout`)"))]

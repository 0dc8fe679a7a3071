"""One case from profile to table. What is done is kept, so that a part that was cut off goes on where it stopped."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dflash_run.profiling.measuring import Effort
from dflash_run.profiling.profile import profile
from dflash_run.training.forecast import Forecast, compared, forecast
from dflash_run.training.preparation import prepare_training
from dflash_run.training.train import Hire, train
from dflash_run.validation.cases import Case
from dflash_run.validation.kept import PROFILE, SUMMARY, TABLE, table_of
from dflash_run.validation.table import Limits, Row, as_json
from dflash_sim.fitting import save_timings
from dflash_sim.prediction import prepare, summary_of
from policies.loading import from_mapping
from reports.summary import finite, to_json, write_text
from reports.tracefile import read_trace
from reports.tracelayout import FILE as TRACE


def limits_of(case: Case) -> Limits:
    """Of a case's table."""
    return Limits(rate=case.rate_limit, share=case.share_limit, end=case.end_limit)


def validate(
    case: Case,
    out: Path,
    work: Path,
    *,
    gpus: int,
    hire: Hire | None = None,
    effort: Effort | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> list[Row]:
    """Profile, predict, train, compare; what is to be kept goes to `out`, the rest to `work`."""
    prepared = prepare_training(from_mapping(case.prepare(work)), gpus=gpus)
    if not (out / PROFILE).exists():
        save_timings(profile(prepared, effort=effort, hire=hire, progress=progress), out / PROFILE)
    foretold = forecast(prepared, out / PROFILE)
    if case.seconds is not None:
        case = replace(case, samples=enough_samples(case, foretold), seconds=None)
        prepared = prepare_training(from_mapping(case.prepare(work)), gpus=gpus)
        foretold = forecast(prepared, out / PROFILE)
    foretold.write(out)
    progress(f"training {prepared.leg.count:,} batches, {foretold.summary['makespan_s']:.0f} s predicted")
    run = prepare(prepared.pipeline, plan=prepared.leg, timed=False)
    foresight = foretold.beside(run)
    folder = work / f"run-{case.name}"
    run, told = train(
        prepared, folder, hire=hire, watch=lambda now, run, figures: _look(foresight.look(now), progress), run=run
    )
    summary = summary_of(run, kind="training", **told)
    summary["prediction"] = finite(compared(foretold, foresight, summary))
    write_text(out / SUMMARY, to_json(summary))
    (out / TRACE).write_bytes((folder / TRACE).read_bytes())
    table = table_of(foretold, summary, read_trace(out), limits_of(case))
    write_text(out / TABLE, to_json({"case": case.name, "rows": as_json(table)}))
    return table


def enough_samples(case: Case, foretold: Forecast) -> int:
    """How many keep the pipeline busy for `case.seconds` once it is warm, by what is foretold of `case.samples`."""
    assert case.seconds is not None, "a case of fixed size"
    found = foretold.summary["throughput"]
    rate = found["steady_tokens_per_s"] or found["tokens_per_s"]
    wanted = case.seconds * float(rate) * case.samples / float(foretold.run.plan.tokens.sum())
    return max(case.samples, math.ceil(wanted))


def _look(warning: str | None, progress: Callable[[str], None]) -> None:
    if warning is not None:
        progress(warning)

"""One case from profile to table. What is done is kept, so that a part that was cut off goes on where it stopped."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dflash_run.training.forecast import Forecast, compared, forecast
from dflash_run.validation.cases import Case
from dflash_run.validation.company import Company
from dflash_run.validation.kept import SUMMARY, TABLE, table_of
from dflash_run.validation.table import Limits, Row, as_json
from dflash_run.validation.whole import train_whole
from dflash_sim.prediction import Run, prepare
from dflash_sim.records import RECORDS, check_records
from dflash_sim.replay import dispatcher_of, replay
from reports.summary import finite, to_json
from reports.tracefile import read_trace
from reports.tracelayout import FILE as TRACE
from reports.writing import write_bytes, write_text


def limits_of(case: Case) -> Limits:
    """Of a case's table."""
    return Limits(rate=case.rate_limit, share=case.share_limit, end=case.end_limit)


def validate(
    case: Case,
    out: Path,
    work: Path,
    company: Company,
    progress: Callable[[str], None] = lambda what: None,
) -> list[Row]:
    """Profile, predict, train, compare; what is to be kept goes to `out`, the rest to `work`.

    Of a run that is not whole nothing is kept but profile and prediction. Raises as `train_whole` does.
    """
    prepared = company.prepare(case, work)
    profile = company.profile(prepared, case, out, progress)
    foretold = forecast(prepared, profile, company.place)
    if case.seconds is not None:
        case = replace(case, samples=enough_samples(case, foretold), seconds=None)
        prepared = company.prepare(case, work)
        foretold = forecast(prepared, profile, company.place)
    company.warm_up(prepared, case, work / f"warm-up-{case.name}", progress)
    foretold.write(out)
    progress(f"training {prepared.leg.count:,} batches, {foretold.summary['makespan_s']:.0f} s predicted")
    run = prepare(prepared.pipeline, plan=prepared.leg, timed=False)
    foresight = foretold.beside(run)
    folder = work / f"run-{case.name}"

    def watch(now: float, run: Run, figures: dict[str, float]) -> None:
        if (warning := foresight.look(now)) is not None:
            progress(warning)

    summary = train_whole(prepared, folder, hire=company.hire, watch=watch, run=run, kind=company.kind)
    summary["prediction"] = finite(compared(foretold, foresight, summary))
    for line in faults_of(folder):
        progress(line)
    table = table_of(foretold, summary, read_trace(folder), limits_of(case))
    write_text(out / SUMMARY, to_json(summary))
    write_bytes(out / TRACE, (folder / TRACE).read_bytes())
    write_text(out / TABLE, to_json({"case": case.name, "rows": as_json(table)}))  # last: it says that all is there
    return table


def faults_of(folder: Path) -> list[str]:
    """Where a fresh dispatcher answers otherwise than the run's did, and where workers' records differ from it."""
    trace = read_trace(folder)
    found = [str(each) for each in replay(trace, dispatcher_of(trace))]
    return found + [str(each) for each in check_records(trace, folder / RECORDS)]


def enough_samples(case: Case, foretold: Forecast) -> int:
    """How many keep the pipeline busy for `case.seconds` once it is warm, by what is foretold of `case.samples`."""
    assert case.seconds is not None, "a case of fixed size"
    found = foretold.summary["throughput"]
    rate = found["steady_tokens_per_s"] or found["tokens_per_s"]
    wanted = case.seconds * float(rate) * case.samples / float(foretold.run.plan.tokens.sum())
    return max(case.samples, math.ceil(wanted))

"""Every figure and table of one run that its files allow."""

from collections.abc import Callable, Iterator
from typing import Final

from reports.draw import batches, overtime, training, workers
from reports.draw.style import Plate
from reports.durations import durations, step_seconds
from reports.flow import commits, eta_history, rate_over_time
from reports.levels import lane_levels, memory_levels
from reports.page.elements import anchor
from reports.recorded import Recorded
from reports.runs import Run
from reports.shapes import batches_table, mixing_of, shapes_of
from reports.spans import worker_spans
from reports.tables import Table, lanes_table, ledger_table, versions_table, workers_table

Plates = Iterator[Plate]


def plates_of(run: Run) -> Plates:
    """The figures, in the order in which they are shown."""
    if run.summary["workers"] and run.summary["makespan_s"] > 0:
        yield workers.worker_bars(key(run, "workers"), run.name, run.summary["workers"])
    if sum(run.summary["balance"]["batches"]) > 0:
        yield workers.balance(key(run, "balance"), run.name, run.summary["balance"])
    if run.recorded is not None and run.recorded.end_s > 0:
        for figures in _OF_TRACE:
            yield from figures(run, run.recorded)
    for sampled in (_learning(run), _devices(run)):
        if sampled is not None:
            yield sampled


def tables_of(run: Run) -> list[Table]:
    """The tables."""
    summary = run.summary
    return [
        ledger_table(key(run, "ledger"), summary),
        workers_table(key(run, "workers"), summary["workers"]),
        lanes_table(key(run, "lanes"), summary["lanes"]),
        *([batches_table(key(run, "batches"), shapes_of(run.recorded))] if run.recorded is not None else []),
        versions_table(key(run, "versions"), {run.name: summary}),
    ]


def key(run: Run, what: str) -> str:
    """The name of a figure or table of this run."""
    return anchor(run.name, what)


def _timelines(run: Run, recorded: Recorded) -> Plates:
    spans = worker_spans(recorded)
    yield workers.timeline(key(run, "timeline"), run.name, spans, recorded.end_s)
    yield from workers.details(key(run, "timeline"), run.name, spans, recorded.end_s)


def _lanes(run: Run, recorded: Recorded) -> Plates:
    if levels := lane_levels(recorded):
        yield overtime.lanes(key(run, "lanes"), run.name, levels, recorded.end_s)


def _progress(run: Run, recorded: Recorded) -> Plates:
    done = commits(recorded)
    if not len(done.time_s):
        return
    rate = rate_over_time(done, recorded.end_s)
    yield overtime.throughput(key(run, "throughput"), run.name, rate, run.summary)
    complete = run.summary["stop_reason"] == "data_exhausted"
    history = eta_history(done, run.summary["tokens"]["planned"], recorded.end_s, complete)
    yield overtime.eta(key(run, "eta"), run.name, history)


def _memory(run: Run, recorded: Recorded) -> Plates:
    try:
        levels = memory_levels(recorded)
    except ValueError:
        run.missing.append("memory over time: the trace's `memory` section is of another version")
        return
    if levels:
        model = recorded.header.config.get("memory", {}).get("drafter_model_bytes") or 0
        yield overtime.memory(key(run, "memory"), run.name, levels, recorded.end_s, model)


def _times(run: Run, recorded: Recorded) -> Plates:
    found = durations(recorded)
    if any(len(each.busy_s) for each in found):
        yield batches.step_times(key(run, "times"), run.name, found, step_seconds(recorded))
        yield batches.worker_times(key(run, "times-by-worker"), run.name, found)


def _shapes(run: Run, recorded: Recorded) -> Plates:
    shapes = shapes_of(recorded)
    if not shapes.vary:
        return
    yield batches.lengths(key(run, "lengths"), run.name, shapes)
    mixing = mixing_of(commits(recorded))
    if len(mixing.length) > 1:
        yield batches.mixing(key(run, "mixing"), run.name, mixing, run.summary)


def _learning(run: Run) -> Plate | None:
    return None if run.scalars is None else training.learning(key(run, "learning"), run.name, run.scalars)


def _devices(run: Run) -> Plate | None:
    return None if run.devices is None else training.devices(key(run, "devices"), run.name, run.devices)


_OF_TRACE: Final[tuple[Callable[[Run, Recorded], Plates], ...]] = (
    _progress,
    _timelines,
    _lanes,
    _times,
    _shapes,
    _memory,
)

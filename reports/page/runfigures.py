"""Every figure and table of one run that its files allow."""

from collections.abc import Iterator
from functools import cached_property

from reports.draw import batches, overtime, training, workers
from reports.draw.style import Plate
from reports.durations import durations, step_seconds
from reports.flow import Commits, commits, eta_history, rate_over_time
from reports.levels import lane_levels, memory_levels
from reports.page.zoom import Zoom, zoom_of
from reports.recorded import Recorded
from reports.runs import Run
from reports.shapes import batches_table, mixing_of, shapes_of
from reports.spans import worker_spans
from reports.summaryfile import section
from reports.tables import Table, lanes_table, ledger_table, versions_table, workers_table

Figures = Iterator[Plate | Zoom]


def figures_of(run: Run) -> Figures:
    """The figures, in the order in which they are shown."""
    if run.summary["workers"] and run.summary["makespan_s"] > 0:
        source = "Counted from the trace." if run.remade else "From the summary."
        yield workers.worker_bars(key(run, "workers"), run.name, run.summary["workers"], source)
    if len(run.summary["balance"]["batches"]) > 1 and sum(run.summary["balance"]["batches"]) > 0:
        yield workers.balance(key(run, "balance"), run.name, run.summary["balance"])
    if run.recorded is not None and run.recorded.end_s > 0:
        yield from _Traced(run, run.recorded).figures()
    if run.scalars is not None and (plate := training.learning(key(run, "learning"), run.name, run.scalars)):
        yield plate
    if run.devices is not None and (plate := training.devices(key(run, "devices"), run.name, run.devices)):
        yield plate


def tables_of(run: Run) -> list[Table]:
    """The tables."""
    summary = run.summary
    found = [
        ledger_table(key(run, "ledger"), summary),
        workers_table(key(run, "workers"), summary["workers"]),
        lanes_table(key(run, "lanes"), summary["lanes"]),
    ]
    if run.recorded is not None:
        found.append(batches_table(key(run, "batches"), shapes_of(run.recorded)))
    return [*found, versions_table(key(run, "versions"), {run.name: summary})]


def key(run: Run, what: str) -> str:
    """The name of a figure or table of this run."""
    return f"{run.slug}-{what}"


class _Traced:
    """The figures that a trace allows."""

    def __init__(self, run: Run, recorded: Recorded) -> None:
        self.run = run
        self.recorded = recorded
        self.end_s = recorded.end_s

    @cached_property
    def commits(self) -> Commits:
        return commits(self.recorded)

    def figures(self) -> Figures:
        yield from self._progress()
        yield from self._timelines()
        yield from self._lanes()
        yield from self._times()
        yield from self._shapes()
        yield from self._memory()

    def _progress(self) -> Figures:
        run, done = self.run, self.commits
        if not len(done.time_s):
            return
        rate = rate_over_time(done)
        yield overtime.throughput(key(run, "throughput"), run.name, rate, run.summary)
        complete = run.summary["stop_reason"] == "data_exhausted"
        history = eta_history(done, run.summary["tokens"]["planned"], self.end_s, complete)
        yield overtime.eta(key(run, "eta"), run.name, history)

    def _timelines(self) -> Figures:
        run, spans = self.run, worker_spans(self.recorded)
        yield workers.timeline(key(run, "timeline"), run.name, spans, self.end_s)
        yield zoom_of(key(run, "zoom"), spans, self.end_s)
        yield from workers.details(key(run, "timeline"), run.name, spans, self.end_s)

    def _lanes(self) -> Figures:
        if levels := lane_levels(self.recorded):
            yield overtime.lanes(key(self.run, "lanes"), self.run.name, levels, self.end_s)

    def _times(self) -> Figures:
        run, found = self.run, durations(self.recorded)
        if any(len(each.busy_s) for each in found):
            yield batches.step_times(key(run, "times"), run.name, found, step_seconds(self.recorded))
            yield batches.worker_times(key(run, "times-by-worker"), run.name, found)

    def _shapes(self) -> Figures:
        run, shapes = self.run, shapes_of(self.recorded)
        if not shapes.vary:
            return
        yield batches.lengths(key(run, "lengths"), run.name, shapes)
        mixing = mixing_of(self.commits)
        if len(mixing.length) > 1:
            yield batches.mixing(key(run, "mixing"), run.name, mixing, run.summary)

    def _memory(self) -> Figures:
        run = self.run
        try:
            levels = memory_levels(self.recorded)
        except ValueError:
            run.missing.append("memory over time: the trace's `memory` section is of another version")
            return
        if levels:
            model = section(self.recorded.header.config, "memory").get("drafter_model_bytes") or 0
            yield overtime.memory(key(run, "memory"), run.name, levels, self.end_s, model)

"""Draws the pictures of the README from the field record: `python docs/pictures/record.py`.

Needs the extra `reports`; the screenshot also needs Chromium and is left out where there is none.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from dflash_sim.comparison import predict
from dflash_sim.demo import FULL_QUEUE, ROWS
from policies.loading import load, replaced
from reports.draw import changes, overtime, workers
from reports.draw.style import HALF, STATE_COLOURS, Plate, axes_of, colour, legend_below, new_figure, render, styled
from reports.levels import lane_levels
from reports.moved import moved, pace_of_summary
from reports.page.build import build
from reports.recorded import Recorded, read_recorded
from reports.runs import load_given
from reports.spans import worker_spans
from reports.summary import to_json
from reports.verdict import ktok
from reports.whatif import Questions, shortened
from reports.writing import write_text

HERE = Path(__file__).parent
RECORD = "examples/field_record.yaml"
POLICIES = {"round_robin": "one queue per drafter, i % 3", "shared": "one shared queue"}
MEASURED = {"round_robin": 17_500, "shared": 19_400}
SLOW = {**FULL_QUEUE, "timings.drafter.tokens_per_second": 4200}
FAST = {**SLOW, "timings.drafter.tokens_per_second": 10_100, "topology.drafters": 2}
"""The run of 12.6 Ktok/s and the earlier one of 20.2."""


def main() -> None:
    """Write every picture beside this file."""
    keep(who_waits())
    keep(rates())
    _, short = simulated({"data.batches": 80})
    keep(workers.timeline("record-timeline", "i % 3", worker_spans(short), short.end_s))
    (fast, _), (slow, trace) = simulated(FAST), simulated(SLOW)
    keep(overtime.lanes("record-queue", "the full queue", lane_levels(trace), trace.end_s))
    changed = moved(pace_of_summary(fast), pace_of_summary(slow))
    keep(replace(changes.factors(changed, "20.2 Ktok/s", "12.6 Ktok/s"), key="record-moved"))
    screenshot()


def simulated(changed: dict[str, Any]) -> tuple[dict[str, Any], Recorded]:
    """A run of the record's file with some keys replaced: its summary and its trace."""
    with tempfile.TemporaryDirectory() as folder:
        _, summary = predict(replaced(load(RECORD, for_simulation=True), changed), trace_in=Path(folder))
        return summary, read_recorded(folder)


def keep(plate: Plate) -> None:
    (HERE / f"{plate.key}.svg").write_text(render(plate).svg, encoding="utf-8")


@styled
def who_waits() -> Plate:
    """Shares of the run by worker, under `i % 3` and under one shared queue."""
    figure = new_figure(9.0, 3.0)
    axes = axes_of(figure, 1, 2, sharey=True)
    for axis, (policy, name) in zip(axes, POLICIES.items(), strict=True):
        summary, _ = simulated({"dispatch.policy": policy})
        for row, worker in enumerate(summary["workers"]):
            left = 0.0
            for state, tint in STATE_COLOURS.items():
                share = 100 * worker[f"{state}_s"] / worker["lifetime_s"]
                axis.barh(row, share, left=left, color=tint, height=0.8)
                left += share
        rate = ktok(summary["throughput"]["steady_tokens_per_s"])
        axis.set_title(f"{name}\nmodel {rate}, measured {ktok(MEASURED[policy])}")
        axis.set_yticks(range(8), [worker["name"] for worker in summary["workers"]])
        axis.set_ylim(7.5, -0.5)
        axis.set_xlim(0, 100)
        axis.set_xlabel("share of the run [%]")
    shown = ("busy", "blocked", "starved")
    handles = [Patch(color=STATE_COLOURS[state], label=state) for state in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return Plate(key="record", title="Who waits", alt="Bars by worker.", caption="From two rates.", figure=figure)


@styled
def rates() -> Plate:
    """What was measured beside what two rates give, set-up by set-up."""
    figure = new_figure(HALF, 2.9)
    (axis,) = axes_of(figure)
    for row, each in enumerate(ROWS):
        summary, _ = simulated(dict(each.changes))
        rate = summary["throughput"]["steady_tokens_per_s"]
        axis.barh(row + 0.2, rate / 1e3, height=0.36, color=colour(4 if each.fitted else 0))
        text = f"{rate / 1e3:.2f}{' fitted' if each.fitted else ''}"
        if each.measured is not None:
            axis.barh(row - 0.2, each.measured / 1e3, height=0.36, color="#999999")
            text += "" if each.fitted else f" ({rate / each.measured - 1:+.1%})"
        axis.annotate(text, (rate / 1e3, row + 0.2), (4, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(ROWS)), [each.name.replace("one queue per drafter, ", "") for each in ROWS])
    axis.set_ylim(len(ROWS) - 0.5, -0.5)
    axis.set_xlim(0, 27)
    axis.set_xlabel("throughput [Ktok/s]")
    for number, label in ((None, "measured"), (0, "predicted"), (4, "fitted")):
        axis.barh(0, 0, color="#999999" if number is None else colour(number), label=label)
    legend_below(figure, axis)
    return Plate(key="record-rates", title="Rates", alt="Bars by set-up.", caption="From two rates.", figure=figure)


def screenshot() -> None:
    """The first screen of the report of the record's run."""
    from tests.reports.browser import Browser, chromium

    if chromium() is None:
        print("no chromium: report.png stays as it is")
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "field_record"
        _, summary = predict(load(RECORD, for_simulation=True), trace_in=run)
        write_text(run / "summary.json", to_json(summary))
        answers = Questions(shortened(summary["config"]), policies=False).answers(120)
        page = build(load_given([run]), Path(folder) / "report", {"field_record": answers})
        browser = Browser()
        browser.open(page, width=1280, height=940)
        browser.screenshot(HERE / "report.png", whole=False)
        browser.close()


if __name__ == "__main__":
    main()

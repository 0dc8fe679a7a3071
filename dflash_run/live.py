"""The live view of a run: lanes, workers, rate, ETA and verdict, redrawn in place on stderr; else plain lines."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dflash_run.lines import Lines, steady_now, time_left
from dflash_sim.foresight import Foresight
from dflash_sim.prediction import Run
from reports.metrics import BUSY, STATES, Metrics
from reports.statistics import Eta
from reports.table import duration
from reports.verdict import judge, ktok

_EVERY_S = 0.25


@contextmanager
def live_view(title: str, foresight: Foresight | None = None) -> Iterator[Callable[..., None]]:
    """A function to call with the model time, the run and, of a training, its figures.

    With a prediction its warnings are lines of their own, whoever reads them.
    """
    console = Console(stderr=True)
    shown = 0.0
    live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    lines = Lines(say)

    def watch(now: float, run: Run, figures: Mapping[str, float] | None = None) -> None:
        with suppress(OSError):  # the terminal is gone: the run goes on, or ends in order
            show(now, run, figures)

    def show(now: float, run: Run, figures: Mapping[str, float] | None) -> None:
        nonlocal shown
        if time.monotonic() - shown < _EVERY_S:
            return
        shown = time.monotonic()
        if foresight is not None and (warning := foresight.look(now)) is not None:
            say(warning, "yellow")
        if live is None:
            lines.look(now, run, figures or {})
        else:
            live.update(view(title, now, run, figures or {}, foresight), refresh=True)

    if live is not None:
        live.start()
    try:
        yield watch
    finally:
        with suppress(OSError):
            if live is not None:
                live.stop()


def view(
    title: str, now: float, run: Run, figures: Mapping[str, float], foresight: Foresight | None = None
) -> Group:
    """What is to be seen of a run at model time `now`."""
    metrics = run.metrics
    learned = [Text(_learned(figures))] if figures else []
    foreseen = [] if foresight is None else [Text(beside(now, foresight))]
    return Group(
        Text(f"{title} · {duration(now)} · {_trained(run)}", style="bold"),
        Text.from_markup(_rate_and_eta(now, run)),
        *foreseen,
        Text(f"lanes {lanes(metrics)}"),
        *learned,
        _workers(now, metrics),
    )


def beside(now: float, foresight: Foresight) -> str:
    """The prediction, and when by it the run will end."""
    rate, end = foresight.rate, foresight.end()
    text = f"predicted {'no rate' if rate is None else ktok(rate)}, the end at {duration(foresight.timeline.end)}"
    if end is not None:
        text += f"; by now at {duration(end)}, {duration(max(end - now, 0.0))} to go"
    return text if foresight.sentence is None else f"{text}\n{foresight.sentence}"


def _learned(figures: Mapping[str, float]) -> str:
    names = {
        "loss": "loss {:.3f}",
        "expected_accepted_length": "expected accepted length {:.2f}",
        "held_out_expected_accepted_length": "held out {:.2f}",
        "lr": "learning rate {:.1e}",
    }
    return " · ".join(text.format(figures[name]) for name, text in names.items() if name in figures)


def lanes(metrics: Metrics) -> str:
    """Depth and capacity of each lane now: `[5/10, 3/10]`."""
    return f"[{', '.join(f'{lane.depth}/{lane.capacity}' for lane in metrics.lanes)}]"


def _trained(run: Run) -> str:
    done = sum(by[0] for by in run.metrics.trained_by)
    return f"{done:,} of {run.plan.count:,} batches trained"


def _rate_and_eta(now: float, run: Run) -> str:
    steady, left = steady_now(run.metrics), time_left(now, run)
    text = "no steady rate yet" if steady is None else ktok(steady.rate)
    if isinstance(left, Eta):
        text += f" · {duration(left.seconds)} to go"
        if left.low is not None and left.high is not None:
            text += f" ({duration(left.low)} … {duration(left.high)})"
    return text if steady is None else f"{text}\n{escape(judge(run.metrics, steady, now=now).text)}"


def _workers(now: float, metrics: Metrics) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("worker", "now", "busy", "batches"):
        table.add_column(column, justify="right" if column in ("busy", "batches") else "left")
    for meter in (*metrics.targets, *metrics.drafters):
        state = "lost" if meter.lost else STATES[meter.state]
        table.add_row(meter.name, state, f"{metrics.life(meter, now).share(BUSY):.0%}", f"{meter.batches:,}")
    return table

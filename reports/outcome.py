"""How a run ended and whether its ledger closes, in words; what the first screen and the command say of both."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from policies.ledger import TRAINED
from reports.counted import places_of
from reports.recorded import Recorded
from reports.runs import Run
from reports.summary import INCOMPLETE
from reports.table import counted, duration
from reports.tables import PLACES, not_produced

AS_ASKED: Final = frozenset({"data_exhausted", "max_steps", "at_s"})
"""Stop reasons of a run that ended as it was asked to."""
_UNITS: Final = ("batches", "samples", "tokens")
_WORDS: Final = {
    "max_steps": "stopped at its number of steps",
    "at_s": "stopped at its time",
    "interrupted": "interrupted",
    "deadlock": "hung: nothing could happen any more",
    "worker_lost": "ended because all workers of a role were lost",
    "watchdog": "given up by the watchdog",
}
_STUCK: Final = {
    "deadlock": "deadlock: nothing could happen any more",
    "watchdog": "stuck: the watchdog gave the run up",
    "worker_lost": "ended early: all workers of a role were lost",
}
_NAMED: Final = 4
"""Waiting workers that the verdict names."""


def ended(summary: Mapping[str, Any]) -> str:
    """How it ended, in words."""
    reason, batches = summary["stop_reason"], summary["batches"]
    if reason != "data_exhausted":
        return _WORDS.get(reason, str(reason))
    if not batches["planned"]:
        return "there was no data"
    if batches["trained"] == batches["planned"]:
        return "all data trained"
    rest = [f"{batches['lost']:,} lost"] if batches["lost"] else []
    if other := batches["planned"] - batches["trained"] - batches["lost"]:
        rest.append(f"{other:,} missing")
    trained = f"{batches['trained']:,} of {batches['planned']:,} batches trained"
    return f"the data came to an end: {', '.join([trained, *rest])}"


def verdict_text(summary: Mapping[str, Any]) -> str:
    """The verdict; of a run that got stuck, first who waits for what."""
    text = str(summary["verdict"]["text"])
    stuck = _STUCK.get(summary["stop_reason"])
    if stuck is None:
        return text
    waiting = [f"{each['worker']} waits for {each['what']}" for each in summary["waiting"]]
    more = [f"{len(waiting) - _NAMED} more wait"] if len(waiting) > _NAMED else []
    said = "; ".join([stuck, *(waiting[:_NAMED] + more or ["the run does not say who waits for what"])])
    return f"{said}. Until then: {text}" if summary["verdict"]["bottleneck"] is not None else said


def contradictions(run: Run) -> list[str]:
    """Where the run's own numbers contradict each other, a sentence each."""
    found = []
    for unit in (unit for unit in _UNITS if run.summary.get(unit)):
        found += _unclosed(run.summary, unit)
        amounts = run.summary[unit]
        left = amounts["planned"] - amounts["trained"] - amounts["lost"]
        if run.summary["stop_reason"] == "data_exhausted" and left:
            found.append(f"the run says that its data was exhausted, yet {left:,} {unit} are neither trained nor lost")
    return found + _against_trace(run)


def ledger_sentence(summary: Mapping[str, Any]) -> str:
    """The ledger's numbers."""
    batches = summary["batches"]
    parts = [f"{batches[place]:,} {place.replace('_', ' ')}" for place in PLACES]
    parts.append(f"{not_produced(batches):,} not yet produced")
    closes = "=" if not list(_unclosed(summary, "batches")) else "≠"
    return f"{batches['planned']:,} planned {closes} {' + '.join(parts)} batches"


def ledger_verdict(run: Run) -> tuple[str, str]:
    """The ledger in a phrase and its tone: good, bad, or none where the run did not come to its end."""
    summary, batches = run.summary, run.summary["batches"]
    if contradictions(run):
        return "The numbers contradict each other", "bad"
    if batches["lost"]:
        return f"{counted(batches['lost'], 'batch', 'batches')} lost", "bad"
    if summary["stop_reason"] in AS_ASKED and not summary["waiting"]:
        return "Nothing was lost", "good"
    names = {"queued": "queued", "in_flight": "in flight"}
    parts = [f"{batches[place]:,} {name}" for place, name in names.items() if batches[place]]
    if rest := not_produced(batches):
        parts.append(f"{rest:,} not yet produced")
    which = "Stuck" if summary["stop_reason"] in INCOMPLETE or summary["waiting"] else "Ended early"
    return f"{which}: {', '.join(parts) or 'nothing was left over'}", ""


def _unclosed(summary: Mapping[str, Any], unit: str) -> list[str]:
    """planned = trained + queued + in flight + lost + (planned − produced), by the summary's own numbers."""
    amounts = summary[unit]
    rest = not_produced(amounts)
    total = sum(amounts[place] for place in PLACES) + rest
    said = []
    if total != amounts["planned"]:
        said.append(
            f"the ledger does not close: trained, queued, in flight, lost and not yet produced make {total:,} {unit}, "
            f"planned were {amounts['planned']:,}"
        )
    if rest < 0:
        said.append(f"{amounts['produced']:,} {unit} were produced, though only {amounts['planned']:,} were planned")
    return said


def _against_trace(run: Run) -> list[str]:
    """The trace's own counts of what was trained, held against the summary's."""
    if run.recorded is None:
        return []
    found = []
    for unit, count in zip(("batches", "tokens"), _trained(run.recorded), strict=True):
        said = run.summary[unit]["trained"]
        if count > said or (count != said and run.recorded.complete):
            found.append(f"the trace counts {count:,} trained {unit}, the summary says {said:,}")
    return found


@lru_cache(maxsize=4)
def _trained(recorded: Recorded) -> tuple[int, int]:
    """Batches and tokens that the trace says were trained; asked for several times, and costly for a week's run."""
    trained = np.frombuffer(places_of(recorded), np.uint8) == TRAINED
    return int(trained.sum()), int(recorded.plan["tokens"][trained].sum())


def waits(summary: Mapping[str, Any]) -> list[str]:
    """Who waits for what since when, a line each."""
    return [
        f"{each['worker']} waits for {each['what']}, since t = {duration(each['since_s'])}"
        for each in summary["waiting"]
    ]

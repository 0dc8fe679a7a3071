"""The first screen of a run: the verdict in a sentence, rate and end with intervals, what to change, what is lost."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from reports.outcome import contradictions, ended, ledger_sentence, ledger_verdict, verdict_text, waits
from reports.page.elements import Markup, coded, joined, tag
from reports.runs import Run
from reports.summary import is_incomplete
from reports.summaryfile import section
from reports.table import counted, duration
from reports.verdict import ktok
from reports.whatif import Answer

_WORTH: Final = 0.005
"""A smaller gain is none."""


def first_screen(run: Run, answers: Sequence[Answer] | None, why: str = "") -> Markup:
    """What a reader must know.

    `answers`: what changes would bring, None where nobody asked; `why`: why some or all of them are not there.
    """
    summary = run.summary
    cards = tag("ul", _rate(summary), _end(summary), _change(summary, answers, why), _ledger(run), class_="cards")
    verdict = tag("p", tag("strong", "Verdict "), coded(verdict_text(summary)), class_="verdict")
    return joined([tag("p", described(summary), class_="lead"), verdict, cards, *_wrong(summary), *_missing(run)])


def described(summary: Mapping[str, Any]) -> str:
    """The run in a line."""
    roles = [worker["role"] for worker in summary["workers"]]
    counts = {role: roles.count(role) for role in ("target", "drafter")}
    sides = " + ".join(f"{count} {role}{'' if count == 1 else 's'}" for role, count in counts.items())
    training = section(summary["config"], "training")
    sync = f", sync {training['sync']}, accumulate {training.get('accumulate', 1)}" if "sync" in training else ""
    return f"{summary['kind']}: {sides}, {summary['policy']}{sync}; {ended(summary)}"


def _card(what: str, value: str, *more: str, tone: str = "") -> Markup:
    lines = [tag("span", coded(line), class_="more") for line in more if line]
    shown = tag("span", coded(value), class_=f"value {tone}".strip())
    return tag("li", tag("span", what, class_="what"), shown, *lines)


def _rate(summary: Mapping[str, Any]) -> Markup:
    rates = summary["throughput"]
    steady, whole = rates["steady_tokens_per_s"], rates["tokens_per_s"]
    interval = rates["ci95"] or rates["steady_ci95"]
    bounds = f"95 %: {ktok(interval[0])} … {ktok(interval[1])}" if interval else "no interval"
    if steady is None:
        value = ktok(whole) if whole is not None else "none"
        return _card("Throughput over the whole run", value, "too short for a steady rate")
    over = f"{ktok(whole)} over the whole run" if whole is not None else ""
    return _card("Throughput, steady", ktok(steady), bounds, over)


def _end(summary: Mapping[str, Any]) -> Markup:
    took = duration(summary["makespan_s"])
    interval = summary["eta_ci95"]
    bounds = f"95 %: {duration(interval[0])} … {duration(interval[1])}" if interval else ""
    if summary["stop_reason"] == "data_exhausted":
        return _card("Time for all data", took, bounds, counted(summary["optimizer_steps"], "optimizer step"))
    if summary["eta_s"] is None:
        return _card("Time for all data", "unknown", f"ended after {took}: {ended(summary)}")
    if is_incomplete(summary):
        rest = duration(summary["eta_remaining_s"])
        pace = f"at its pace until then, {rest} more would have been needed"
        return _card("Time for all data", "it did not get there", f"ended after {took}: {ended(summary)}", pace)
    left = f"ended after {took}; {duration(summary['eta_remaining_s'])} would remain"
    return _card("Time for all data, estimated", duration(summary["eta_s"]), bounds or "no interval", left)


def _change(summary: Mapping[str, Any], answers: Sequence[Answer] | None, why: str) -> Markup:
    """The best change that costs nothing, else the best that needs another device."""
    compared = [
        Answer(f"policy {each['policy']}", each["tokens_per_s"], each["gain"], free=True)
        for each in summary["alternatives"]
    ]
    found = [*(answers or ()), *compared]
    if not found:
        late = "no simulation of a change gave an answer"
        return _card("What to change", "see the verdict", why or ("nothing was simulated" if answers is None else late))
    helps = [answer for answer in found if answer.gain >= _WORTH]
    helps.sort(key=lambda answer: (not answer.free, -answer.gain))
    rest = sorted((answer for answer in found if answer not in helps[:1]), key=lambda answer: -answer.gain)
    others = "; ".join(f"{answer.change} {_gain(answer.gain)}" for answer in rest[:4])
    value = f"{helps[0].change}: {helps[0].gain:+.1%}" if helps else _nothing_helps(found)
    source = "from quick simulations of this run's file" if answers else "from the run's own comparison of policies"
    more = [source]
    lost = any(worker["lost"] for worker in summary["workers"])
    if not lost and (is_incomplete(summary) or summary["failures"]):
        more.append("they assume that nothing fails, as it did in this run")
    if lost:
        more.append("they assume that all workers live; in this run some were lost: the verdict may say otherwise")
    return _card("What to change", value, others, *more, why)


def _nothing_helps(found: Sequence[Answer]) -> str:
    """What was tried in vain."""
    policies = sum(answer.free for answer in found)
    tried = [counted(policies, "other policy", "other policies")] if policies else []
    tried += [answer.change for answer in found if not answer.free]
    if len(tried) == 1:
        return f"None of {tried[0]} helps" if policies > 1 else f"{tried[0]} would not help"
    return f"Nothing that was tried helps: {', '.join(tried)}"


def _gain(gain: float) -> str:
    return "±0 %" if abs(gain) < _WORTH / 5 else f"{gain:+.1%}"


def _ledger(run: Run) -> Markup:
    value, tone = ledger_verdict(run)
    return _card("Ledger", value, ledger_sentence(run.summary), tone=tone)


def _wrong(summary: Mapping[str, Any]) -> list[Markup]:
    lines = [*summary["failures"]]
    if is_incomplete(summary):
        lines = [f"The run is incomplete: {ended(summary)}.", *lines, *waits(summary)]
    lines += [f"over the limit: {text}" for text in summary["memory"]["over"]]
    return [_list("What went wrong", lines)] if lines else []


def _missing(run: Run) -> list[Markup]:
    wrong = contradictions(run)
    title = "What is missing in this report" + (", and what contradicts itself" if wrong else "")
    return [_list(title, [*wrong, *run.missing])] if wrong or run.missing else []


def _list(title: str, lines: Sequence[str]) -> Markup:
    items = joined(tag("li", coded(line)) for line in lines)
    return tag("div", tag("strong", title), tag("ul", items), class_="missing")

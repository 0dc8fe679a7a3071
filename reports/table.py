"""Summaries for people's eyes: tables of a run and of a comparison, in a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from reports.summary import is_incomplete, lane_text
from reports.verdict import ktok

_STATES = ("busy", "blocked", "starved", "sync", "transfer")


def duration(seconds: float | None) -> str:
    """Seconds as people say them: `3 h 09 min`, `6 d 14 h`, `41.7 s`."""
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours:02d} h"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: float | None) -> str:
    """Bytes as people say them, in decimal units."""
    if number is None:
        return "unknown"
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f} B"


def print_run(console: Console, summary: Mapping[str, Any], title: str) -> None:
    """One run: rates, workers, lanes, memory, verdict."""
    console.print(f"[bold]{escape(title)}[/bold]")
    console.print(_headline(summary))
    for part in (_worker_table(summary["workers"]), _lane_table(summary["lanes"])):
        console.print(part)
    for line in _notes(summary):
        console.print(line, highlight=False)


def print_comparison(console: Console, comparison: Mapping[str, Any], title: str) -> None:
    """Policies side by side, best first."""
    console.print(f"[bold]{escape(title)}[/bold]")
    table = _table("policy", "rate", "gain", "ends after", "drafters starved", "verdict")
    for entry in comparison["policies"]:
        table.add_row(*_comparison_row(entry))
    console.print(table)
    console.print(f"gain: against {escape(comparison['base'])}", highlight=False)
    for entry in comparison["policies"]:
        summary = entry["summary"]
        line = f"[bold]{escape(entry['policy'])}[/bold] lanes {escape(lane_text(summary['lanes']))}; "
        console.print(line + escape(summary["verdict"]["text"]), highlight=False)
    # Once: policies share their times.
    for line in dict.fromkeys(line for entry in comparison["policies"] for line in _doubts(entry["summary"])):
        console.print(line, highlight=False)
    console.print(escape(comparison["outcome"]), highlight=False)


def _headline(summary: Mapping[str, Any]) -> str:
    rates, batches = summary["throughput"], summary["batches"]
    steady = rates["steady_tokens_per_s"]
    rate = "too short for a steady rate" if steady is None else f"{ktok(steady)} steady{_range(rates['ci95'])}"
    whole = f", {ktok(rates['tokens_per_s'])} over the whole run" if rates["tokens_per_s"] is not None else ""
    whole_data = summary["stop_reason"] == "data_exhausted" and batches["trained"] == batches["planned"]
    end = "all data trained" if whole_data else summary["stop_reason"]
    trained = f"{batches['trained']:,} of {batches['planned']:,} batches trained, {batches['lost']:,} lost"
    return f"{rate}{whole} · {duration(summary['makespan_s'])} ({end}) · {trained} · {_eta(summary)}"


def _eta(summary: Mapping[str, Any]) -> str:
    steps = counted(summary["optimizer_steps"], "optimizer step")
    if summary["stop_reason"] == "data_exhausted" or summary["eta_s"] is None:
        return steps
    low_high = summary["eta_ci95"]
    interval = f" ({duration(low_high[0])} … {duration(low_high[1])})" if low_high else ""
    return f"{steps} · all data would take {duration(summary['eta_s'])}{interval}"


def _range(interval: Sequence[float] | None) -> str:
    return f" ({ktok(interval[0])} … {ktok(interval[1])})" if interval else ""


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number == 0)
    return table


def _worker_table(workers: Iterable[Mapping[str, Any]]) -> RenderableType:
    table = _table("worker", *_STATES, "batches", "tokens", "")
    for worker in workers:
        life = worker["lifetime_s"]
        shares = [_share(worker[f"{state}_s"], life) for state in _STATES]
        lost = f"lost after {duration(life)}" if worker["lost"] else ""
        table.add_row(worker["name"], *shares, f"{worker['batches']:,}", f"{worker['tokens']:,}", lost)
    return table


def _share(seconds: float | None, life: float | None) -> str:
    """None where the number was not finite, which JSON cannot hold."""
    return "–" if seconds is None or not life else f"{seconds / life:.1%}"


def _lane_table(lanes: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table("lane", "mean depth/capacity", "most")
    for lane in lanes:
        mean = "–" if lane["mean"] is None else f"{lane['mean']:.1f}/{lane['capacity']}"
        table.add_row(escape(lane["name"]), mean, f"{lane['max']}/{lane['capacity']}")
    return table


def _notes(summary: Mapping[str, Any]) -> list[str]:
    notes = [f"lanes {escape(lane_text(summary['lanes']))}, at most {summary['max_outstanding']} outstanding"]
    notes += _mixing(summary["mixing"]) + _memory(summary["memory"])
    notes += [f"times: {escape(text)}" for text in summary.get("timings_used", ())]
    notes += _doubts(summary)
    notes += [f"[red]failed[/red] {escape(text)}" for text in summary["failures"]]
    if is_incomplete(summary):
        notes.append(f"[red]incomplete: {summary['stop_reason']}[/red]")
        notes += [
            f"  {each['worker']} waits for {escape(each['for'])}, since t = {duration(each['since_s'])}"
            for each in summary.get("waiting", ())
        ]
    return [*notes, f"[bold]verdict[/bold] {escape(summary['verdict']['text'])}"]


def _doubts(summary: Mapping[str, Any]) -> list[str]:
    return [f"[yellow]doubtful[/yellow] {escape(text)}" for text in summary.get("timings_doubted", ())]


def _mixing(mixing: Mapping[str, Any]) -> list[str]:
    windows, correlation = mixing["windows"], mixing["lag1_length_correlation"]
    notes = []
    if mixing["mixed_windows"]:
        share = mixing["mixed_windows"] / windows
        notes.append(f"{share:.0%} of the steps mix buckets, {mixing['mean_buckets']:.2f} buckets a step")
    if correlation is not None and correlation > 0.5:
        warning = "neighbouring steps see like lengths; shuffle, or use buckets"
        notes.append(f"[yellow]length correlation of steps {correlation:.2f}[/yellow]: {warning}")
    return notes


def _memory(memory: Mapping[str, Any]) -> list[str]:
    if memory.get("host_peak_bytes") is None:
        return []
    peaks = ", ".join(size(peak) for peak in memory["drafter_peak_bytes"])
    exact, pinned = memory["host_peak_bytes"], memory["host_pinned_peak_bytes"]
    rounded = f" ({size(pinned)} as pinned)" if pinned != exact else ""
    notes = [f"memory: host {size(exact)}{rounded} at the peak, drafters {peaks}"]
    return notes + [f"[red]over the limit[/red] {escape(text)}" for text in memory.get("over", ())]


def _comparison_row(entry: Mapping[str, Any]) -> list[str]:
    summary = entry["summary"]
    drafters = [worker for worker in summary["workers"] if worker["role"] == "drafter"]
    starved = [f"{_starved(worker):.0%}" for worker in drafters]
    gain = "–" if entry["gain"] is None else f"{entry['gain']:+.1%}"
    if entry["gain_ci95"]:
        low, high = entry["gain_ci95"]
        gain += f" ({low:+.1%} … {high:+.1%})"
    bottleneck = summary["verdict"]["bottleneck"] or "–"
    ends = duration(summary["makespan_s"])
    return [entry["policy"], ktok(entry["rate"]), gain, ends, " ".join(starved), bottleneck]


def _starved(worker: Mapping[str, Any]) -> float:
    starved, life = worker["starved_s"], worker["lifetime_s"]
    return float(starved / life) if starved is not None and life else 0.0

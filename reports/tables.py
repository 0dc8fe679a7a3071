"""The tables of a report: rows of plain values with units in their headings; shown on the page and kept as CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reports.metrics import STATES

PLACES: Final = ("trained", "queued", "in_flight", "lost")
"""Where what was produced may be."""
Value = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Named columns, and rows of as many values; None where there is no value."""

    key: str
    """The name of its file."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""


def shown(value: Value) -> str:
    """A value as people read it: four figures, thousands apart."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def workers_table(key: str, workers: Sequence[Mapping[str, Any]]) -> Table:
    """What every worker did."""
    columns = ("worker", *(f"{state} [s]" for state in STATES), "lifetime [s]", "batches", "tokens")
    rows = tuple(
        (
            worker["name"],
            *(float(worker[f"{state}_s"]) for state in STATES),
            float(worker["lifetime_s"]),
            worker["batches"],
            worker["tokens"],
        )
        for worker in workers
    )
    return Table(key=key, title="Workers", columns=columns, rows=rows)


def lanes_table(key: str, lanes: Sequence[Mapping[str, Any]]) -> Table:
    """How full every lane was."""
    rows = tuple((lane["name"], lane["capacity"], lane["mean"], lane["max"]) for lane in lanes)
    columns = ("lane", "capacity [batches]", "mean depth [batches]", "most [batches]")
    return Table(key=key, title="Lanes", columns=columns, rows=rows)


def ledger_table(key: str, summary: Mapping[str, Any]) -> Table:
    """Where everything that was planned ended: the rows add up to the planned amount, if the ledger closes."""
    units = [unit for unit in ("batches", "samples", "tokens") if summary.get(unit)]
    rows: list[tuple[Value, ...]] = []
    for place in PLACES:
        rows.append((place.replace("_", " "), *(int(summary[unit][place]) for unit in units)))
    rows.append(("not yet produced", *(not_produced(summary[unit]) for unit in units)))
    rows.append(("planned", *(int(summary[unit]["planned"]) for unit in units)))
    note = "in flight: taken and not committed, or held by a blocked target"
    return Table(key=key, title="Ledger", columns=("where", *units), rows=tuple(rows), note=note)


def not_produced(amounts: Mapping[str, Any]) -> int:
    """What no target has computed, by the summary's own numbers."""
    return int(amounts["planned"] - amounts["produced"])


def versions_table(key: str, summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """Versions of what computed each run."""
    names = sorted({name for summary in summaries.values() for name in summary["versions"]})
    rows = tuple((name, *(summary["versions"].get(name) for summary in summaries.values())) for name in names)
    return Table(key=key, title="Versions", columns=("package", *summaries), rows=rows)

"""Whether policies came out in the order that was predicted, over the tables of cases that differ in nothing else."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

from dflash_run.validation.cases import Case

GAP: Final = 0.03
"""Predicted differences of rates below this may come out either way."""


_STEADY: Final = "steady throughput"
_WHOLE: Final = "throughput"


@dataclass(frozen=True)
class Ranked:
    """One case's rates in tokens per second, of the same kind as those that it is ranked with."""

    name: str
    predicted: float
    measured: float


def groups(cases: Iterable[Case]) -> list[list[Case]]:
    """Those that differ in nothing but their policy, and in the buckets that `bucketed` needs; others stand alone."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(_but_policy(case), []).append(case)
    return list(found.values())


def _but_policy(case: Case) -> str:
    rest = asdict(case) | {"name": None, "part": None, "minutes": None}
    for section, key in (("dispatch", "policy"), ("data", "buckets")):
        rest["file"].get(section, {}).pop(key, None)
    return json.dumps(rest, sort_keys=True)


def ranked(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Ranked]:
    """Of the tables, as JSON, by their cases' names: steady rates, or whole runs' where one was never steady."""
    steady = {name: _row(rows, _STEADY) for name, rows in tables.items()}
    if not all(row["predicted"] and row["measured"] for row in steady.values()):
        return [Ranked(name, **_rates(_row(rows, _WHOLE))) for name, rows in tables.items()]
    return [Ranked(name, **_rates(row)) for name, row in steady.items()]


def _rates(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: row[key] for key in ("predicted", "measured")}


def _row(rows: Sequence[Mapping[str, Any]], quantity: str) -> Mapping[str, Any]:
    return next(row for row in rows if row["quantity"] == quantity)


def out_of_order(cases: Iterable[Ranked], gap: float = GAP) -> list[str]:
    """A line for every two cases that rank otherwise than predicted, though the predicted gap exceeds `gap`."""
    lines = []
    for a, b in combinations(sorted(cases, key=lambda each: each.predicted), 2):
        if b.predicted / a.predicted - 1 > gap and b.measured <= a.measured:
            lines.append(
                f"{b.name} was predicted {b.predicted / a.predicted - 1:.1%} above {a.name}, "
                f"and came out {1 - b.measured / a.measured:.1%} below"
            )
    return lines


def text(cases: Sequence[Ranked]) -> str:
    """For people: rates, and gains over the first case."""
    first = cases[0]
    lines = [f"{'tokens/s':<42}{'predicted':>12}{'measured':>12}{'gains':>18}"]
    for each in cases:
        gains = f"{each.predicted / first.predicted - 1:+.1%} {each.measured / first.measured - 1:+.1%}"
        lines.append(f"{each.name:<42}{each.predicted:>12,.0f}{each.measured:>12,.0f}{gains:>18}")
    return "\n".join([*lines, *(out_of_order(cases) or ["ranked as predicted"])])

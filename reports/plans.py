"""A plan's candidates as rows of a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from policies.faults import shown
from reports.difference import flat
from reports.summaryfile import is_finite
from reports.tables import Table, Value

_MOST: Final = 200
_COLUMNS: Final = 24


def plan_rows(plan: Mapping[str, object]) -> tuple[Table, list[Mapping[str, Any]]]:
    """The table of the candidates, best first as the plan has them, and the candidates themselves."""
    found: Any = plan["candidates"]
    candidates: list[Mapping[str, Any]] = list(found)
    flattened = [dict(flat(candidate)) for candidate in candidates[:_MOST]]
    columns = _columns(flattened)
    rows = tuple(
        (number, *(_value(candidate.get(name)) for name in columns)) for number, candidate in enumerate(flattened, 1)
    )
    note = f"The first {_MOST} of {len(candidates):,}." if len(candidates) > _MOST else ""
    table = Table(key="plan-candidates", title="Candidates", columns=("rank", *columns), rows=rows, note=note)
    return table, candidates


def _columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """The keys in the order in which they come."""
    return list(dict.fromkeys(key for row in rows for key in row))[:_COLUMNS]


def _value(value: object) -> Value:
    if value is None or isinstance(value, str):
        return value
    if is_finite(value):
        return value  # type: ignore[return-value]
    return shown(value)

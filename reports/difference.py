"""What differs between two runs: settings, versions, lengths of the data, and how far each side moved; as tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from policies.faults import dotted, shown
from reports.metrics import STATES
from reports.moved import Moved, moved, moved_text, pace_of_summary
from reports.runs import Run
from reports.tables import Table, Value


def difference_text(before: Run, after: Run) -> str:
    """What moved, in a sentence, and which run says nothing of it."""
    said = [moved_text(pace_of_summary(before.summary), pace_of_summary(after.summary))]
    empty = [run.name for run in (before, after) if not run.summary["batches"]["trained"]]
    said += [f"{name} trained no batch: where its time went is that of work it did not finish" for name in empty]
    return "; ".join(said)


def difference_tables(before: Run, after: Run) -> list[Table]:
    """Every table of a diff; those without a row say so in their notes."""
    return [
        moved_table(before, after),
        settings_table(before, after),
        _versions(before, after),
        lengths_table(before, after),
        workers_difference(before, after),
    ]


def difference_json(before: Run, after: Run) -> dict[str, Any]:
    """What moved, for programs."""
    changes = moved(pace_of_summary(before.summary), pace_of_summary(after.summary))
    keys = ("side", "what", "unit", "before", "after", "factor", "changed")
    sides = [{key: getattr(each, key) for key in keys} for each in changes]
    return {"kind": "difference", "text": difference_text(before, after), "moved": sides}


def moved_table(before: Run, after: Run) -> Table:
    """The factor by which each side moved."""
    changes = moved(pace_of_summary(before.summary), pace_of_summary(after.summary))
    rows = tuple(
        (each.side, each.what, each.unit, each.before, each.after, each.factor, _mark(each))
        for each in changes
    )
    columns = ("side", "what", "unit", before.name, after.name, "factor", "")
    note = "A side's time is what it took while nothing made it wait; waiting follows from it and is no cause."
    return Table(key="diff-moved", title="Which side moved", columns=columns, rows=rows, note=note)


def _mark(each: Moved) -> str:
    if not each.known:
        return "not known of both"
    return "moved" if each.changed else ""


def settings_table(before: Run, after: Run) -> Table:
    """The keys of the resolved files that differ."""
    old, new = dict(flat(before.summary["config"])), dict(flat(after.summary["config"]))
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key, _NOTHING) != new.get(key, _NOTHING))
    rows = tuple((key, _value(old, key), _value(new, key)) for key in keys)
    note = "" if rows else "Every setting is the same."
    return Table(key="diff-settings", title="Settings", columns=("key", before.name, after.name), rows=rows, note=note)


def lengths_table(before: Run, after: Run) -> Table:
    """Lengths of the data: means from the summaries, quantiles over batches from the traces."""
    sides = [_lengths(run) for run in (before, after)]
    rows: list[tuple[Value, ...]] = []
    for name in sides[0]:
        old, new = (side[name] for side in sides)
        rows.append((name, old, new, new / old if old and new is not None else None))
    columns = ("what", before.name, after.name, "factor")
    return Table(key="diff-lengths", title="Data", columns=columns, rows=tuple(rows))


def workers_difference(before: Run, after: Run) -> Table:
    """Mean share of the time by role and state."""
    rows = []
    for role in ("target", "drafter"):
        for state in STATES:
            old, new = (mean_share(run.summary, role, state) for run in (before, after))
            if (old or 0.0) > 0 or (new or 0.0) > 0:
                change = None if old is None or new is None else 100 * (new - old)
                rows.append((f"{role}s", state, _percent(old), _percent(new), change))
    columns = ("role", "state", f"{before.name} [%]", f"{after.name} [%]", "change [points]")
    return Table(key="diff-workers", title="Time of the workers", columns=columns, rows=tuple(rows))


def mean_share(summary: Mapping[str, Any], role: str, state: str) -> float | None:
    """Share of the role's worker seconds in a state; None for a role that never lived."""
    mine = [worker for worker in summary["workers"] if worker["role"] == role]
    lived = sum(worker["lifetime_s"] for worker in mine)
    return sum(worker[f"{state}_s"] for worker in mine) / lived if lived > 0 else None


def flat(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, object]]:
    """Every plain value of a mapping by its dotted key; lists are values."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flat(item, (*path, str(key)))
    else:
        yield dotted(path), value


_NOTHING = object()


def _value(values: Mapping[str, object], key: str) -> str:
    return shown(values[key]) if key in values else "–"


def _versions(before: Run, after: Run) -> Table:
    old, new = before.summary["versions"], after.summary["versions"]
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    rows = tuple((name, old.get(name), new.get(name)) for name in names)
    note = "" if rows else "Every version is the same."
    columns = ("package", before.name, after.name)
    return Table(key="diff-versions", title="Versions", columns=columns, rows=rows, note=note)


def _lengths(run: Run) -> dict[str, int | float | None]:
    summary = run.summary
    samples = (summary.get("samples") or {}).get("planned")
    tokens, batches = summary["tokens"], summary["batches"]["planned"]
    found: dict[str, int | float | None] = {
        "batches": batches,
        "tokens": tokens["planned"],
        "mean length of a sample [tokens]": tokens["planned"] / samples if samples else None,
        "tokens per batch": tokens["planned"] / batches if batches else None,
        "padding share": tokens.get("padding_share"),
    }
    longest = None if run.recorded is None else run.recorded.plan["length"]
    for share in (50, 95, 100):
        known = longest is not None and len(longest) > 0
        found[f"longest sample of a batch, {share} % below [tokens]"] = (
            float(np.percentile(longest, share)) if known and longest is not None else None
        )
    return found


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share

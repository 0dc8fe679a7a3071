"""What differs between two runs: settings, versions, lengths of the data, and how far each side moved; as tables."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from policies.faults import dotted, shown
from reports.metrics import STATES
from reports.moved import SMALL, Moved, Pace, moved, moved_text, pace_of_summary
from reports.parting import DISPATCH, parted
from reports.runs import Run
from reports.tables import Table, Value

FEED: Final = "feed"
_WAITING: Final = {DISPATCH: (("drafter", "starved"), ("target", "blocked")), FEED: (("target", "starved"),)}
"""Whose waiting shows how work was dispatched, and how it was fed."""


def difference_text(before: Run, after: Run) -> str:
    """What moved, in a sentence, and which run says nothing of it."""
    side = unexplained(before, after)
    named = "" if side is None else _waiting_text(side, before, after)
    said = [moved_text(pace_of_summary(before.summary), pace_of_summary(after.summary), named)]
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
    changes = changes_of(before, after)
    keys = ("side", "what", "unit", "before", "after", "factor", "changed")
    sides = [{key: getattr(each, key) for key in keys} for each in changes]
    return {"kind": "difference", "text": difference_text(before, after), "moved": sides}


def changes_of(before: Run, after: Run) -> list[Moved]:
    """Every side's change, in a fixed order; dispatch or the feed, by who waits, only where it is what moved."""
    *sides, rate = moved(pace_of_summary(before.summary), pace_of_summary(after.summary))
    if (side := unexplained(before, after)) is not None:
        for role, state in _WAITING[side]:
            sides.append(Moved(side, f"{role}s {state}", "% of the time", *_shares(before, after, role, state)))
    return [*sides, rate]


def unexplained(before: Run, after: Run) -> str | None:
    """`dispatch`, or `feed` where targets wait otherwise, if throughput moved and no side's own time explains it."""
    old, new = _alike(before, after)
    found = parted(old, new, SMALL)
    known = all(pace.target_s_per_slot and pace.drafter_s_per_slot for pace in (old, new))
    if found is None or found.side != DISPATCH or old.lost != new.lost or not known:
        return None
    was, now = (mean_share(run.summary, "target", "starved") or 0.0 for run in (before, after))
    slower = (new.tokens_per_s or 0.0) < (old.tokens_per_s or 0.0)
    return FEED if (now - was if slower else was - now) > SMALL else DISPATCH


def _alike(before: Run, after: Run) -> list[Pace]:
    """The paces, with steady rates where both runs have one, else with those of the whole runs."""
    rates = [run.summary["throughput"] for run in (before, after)]
    key = "steady_tokens_per_s" if all(each["steady_tokens_per_s"] for each in rates) else "tokens_per_s"
    return [
        replace(pace_of_summary(run.summary), tokens_per_s=rate[key])
        for run, rate in zip((before, after), rates, strict=True)
    ]


def _waiting_text(side: str, before: Run, after: Run) -> str:
    """`dispatch: policy shared → round_robin, drafters starved 1.2 → 8.2 %, targets blocked 22.3 → 28.4 %`."""
    said = []
    if side == DISPATCH:
        old, new = before.summary["policy"], after.summary["policy"]
        said.append(f"policy {old} → {new}" if old != new else f"policy {old} in both")
    for role, state in _WAITING[side]:
        shares = ("unknown" if each is None else f"{each:.1f}" for each in _shares(before, after, role, state))
        said.append(f"{role}s {state} {' → '.join(shares)} %")
    return f"{side}: {', '.join(said)}"


def _shares(before: Run, after: Run, role: str, state: str) -> tuple[float | None, float | None]:
    """Percent of the role's time in the state, in both runs."""
    return _percent(mean_share(before.summary, role, state)), _percent(mean_share(after.summary, role, state))


def moved_table(before: Run, after: Run) -> Table:
    """The factor by which each side moved."""
    changes = changes_of(before, after)
    rows = tuple(
        (each.side, each.what, each.unit, each.before, each.after, each.factor, _mark(each))
        for each in changes
    )
    columns = ("side", "what", "unit", before.name, after.name, "factor", "")
    note = "A side's time is what it took while nothing made it wait; waiting follows from it and is no cause, unless "
    note += "no side's own time explains the throughput: then it is dispatch, or the feed."
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

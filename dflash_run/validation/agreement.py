"""What is kept beside what its files give: every difference a line, with the file, the key and both values.

The rule, for all of it: what is counted or measured must be equal, but for rounding. What is predicted may lie 1 %
apart, since the simulator learns: of itself, or of what it is a share of (a worker's seconds of the run, its batches of
all, a lane's depth of its capacity, a row in points of 1).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dflash_run.validation.table import POINTS, apart
from policies.faults import ABSENT, Fault, dotted, shown

AGAIN: Final = "restore the folder (`git checkout`), or run the case again with --part, --case and --again"
_MOST: Final = 10
"""Differences of a file that are told one by one."""
_WORDS: Final = ("verdict", "text")
"""Words, which change with the program that chooses them: it is the side a verdict names that must agree."""

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Slack:
    """How far a kept number may lie from the one that is worked out again; either is enough."""

    relative: float
    absolute: float = 0.0

    def holds(self, kept: float, remade: float) -> bool:
        """Not for what is not a number."""
        return abs(kept - remade) <= max(self.relative * abs(remade), self.absolute)


EXACT: Final = Slack(1e-6, 1e-6)
DRIFT: Final = 0.01
CHANCE: Final = Slack(0.1, 0.001)
"""A standard deviation among sixteen draws, which itself is known to a fifth."""

Rule = Callable[[Key, object], Slack]
"""By key and value as worked out again."""


@dataclass(frozen=True)
class Difference:
    """One key whose value is not the one that is worked out again; ABSENT: on this side there is none."""

    key: Key
    kept: object
    remade: object

    def told(self, file: str) -> str:
        """As a line."""
        if self.remade is ABSENT:
            rule = "must not be there: nothing that is worked out again has this key"
        else:
            missing = "is missing; " if self.kept is ABSENT else ""
            rule = f"{missing}must be {shown(self.remade)}, as worked out again"
        return str(Fault(f"{file}: {dotted(self.key)}", self.kept, rule, AGAIN))


def lines(file: str, found: Sequence[Difference]) -> list[str]:
    """A line each, and one for all that are too many."""
    told = [each.told(file) for each in found[:_MOST]]
    return told if len(found) <= _MOST else [*told, f"{file}: {len(found) - _MOST} more keys differ; {AGAIN}"]


def exactly(key: Key, value: object) -> Slack:
    """The rule for what was measured."""
    return EXACT


def differences_of(kept: object, remade: object, rule: Rule = exactly, at: Key = ()) -> Iterator[Difference]:
    """All that differs, key by key, but for a verdict's words."""
    if at[-2:] == _WORDS:
        return
    match kept, remade:
        case dict(), dict():
            for key in (*remade, *(each for each in kept if each not in remade)):
                yield from differences_of(kept.get(key, ABSENT), remade.get(key, ABSENT), rule, (*at, key))
        case list(), list() if len(kept) == len(remade):
            for number, (a, b) in enumerate(zip(kept, remade, strict=True)):
                yield from differences_of(a, b, rule, (*at, number))
        case _ if not _same(kept, remade, rule(at, remade)):
            yield Difference(at, kept, remade)


def unknown_keys(kept: Mapping[str, Any], known: Collection[str], at: Key = ()) -> Iterator[Difference]:
    """Keys that nothing writes."""
    yield from (Difference((*at, key), value, ABSENT) for key, value in kept.items() if key not in known)


def _same(kept: object, remade: object, slack: Slack) -> bool:
    if _is_number(kept) and _is_number(remade):
        return slack.holds(kept, remade)  # type: ignore[arg-type]
    return type(kept) is type(remade) and kept == remade


def _is_number(value: object) -> bool:
    """Not integers that are beyond all floats."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**1000)


def drifting(summary: Mapping[str, Any]) -> Rule:
    """The rule for a prediction whose summary, as worked out again, is this one."""

    def rule(key: Key, value: object) -> Slack:
        match key[1:]:  # within `summary`
            case ("workers", _, "batches" | "tokens" as name) | ("balance", "batches" | "tokens" as name, _):
                return Slack(DRIFT, DRIFT * summary[name]["planned"])
            case ("lanes", int(lane), "mean"):
                return Slack(DRIFT, DRIFT * summary["lanes"][lane]["capacity"])
            case (*_, "utilization"):
                return Slack(DRIFT, DRIFT)
            case (*_, str(name)) if name.endswith("_s") and not name.endswith("per_s"):
                return Slack(DRIFT, DRIFT * summary["makespan_s"])
        return Slack(DRIFT) if isinstance(value, float) else EXACT

    return rule


def table_differences(kept: Sequence[Mapping[str, Any]], remade: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Of two tables with the same rows, both as JSON; keys are a row's quantity and a column."""
    for ours, theirs in zip(kept, remade, strict=True):
        figures = [_same(ours.get(name), theirs[name], _in_table(theirs, name)) for name in ("predicted", "measured")]
        # A difference is of its own row, to the last digit: a hundredth would hide many a one.
        own, slack = theirs["difference"], Slack(DRIFT, DRIFT)
        if all(figures):
            own, slack = apart(ours.get("predicted"), ours.get("measured"), theirs["measure"]), EXACT

        def rule(key: Key, value: object, row: Mapping[str, Any] = theirs, slack: Slack = slack) -> Slack:
            return slack if key[-1] == "difference" else _in_table(row, str(key[-1]))

        yield from differences_of(dict(ours), dict(theirs) | {"difference": own}, rule, (theirs["quantity"],))


def _in_table(row: Mapping[str, Any], column: str) -> Slack:
    if column == "chance":
        return CHANCE
    if column == "predicted":
        return Slack(DRIFT, DRIFT if row["measure"] == POINTS else 0.0)
    return EXACT

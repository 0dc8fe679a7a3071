"""The event format: every input and effect of the dispatcher as flat rows of numbers, and back, without loss.

The table `KINDS` is the format: a kind's code is its place in it, and each field of a kind has a column. A row is
(kind, worker, batch, lane, step, source, extra); a column that a kind does not use holds -1. The effects of an
input follow its row; the order of the rows is the order of the events.

A kind with lists (`commit`, `step`, `drop`, `lose`) takes as many rows as its longest list, at least one: row k
holds the k-th item of each list, and `extra` counts the rows of the event that still follow. So the rows of
kind `commit` name every trained batch once, with its step.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from policies.effects import (
    Admit,
    Assign,
    Deliver,
    Drop,
    Effect,
    End,
    Flush,
    Join,
    Loaded,
    Lose,
    PutBack,
    Recall,
    Recompute,
    Release,
    Step,
)

Row = tuple[int, int, int, int, int, int, int]
"""One row, in the order of `COLUMNS`."""

COLUMNS: Final = ("kind", "worker", "batch", "lane", "step", "source", "extra")
NONE: Final = -1
"""What a column holds that the kind does not use, or whose field is unknown (`lane` and `worker` of recompute)."""

REASONS: Final = ("data_exhausted", "max_steps", "at_s", "interrupted", "deadlock", "worker_lost", "watchdog")
"""Stop reasons; `extra` of `stop` and `end` is the place in this tuple."""

_LISTS: Final = frozenset({"drafters", "batches"})
_EXTRA: Final = COLUMNS.index("extra")


class TraceError(ValueError):
    """A file that cannot be used as a trace; the message names the file, what is wrong and the remedy."""

    def __init__(self, path: str | os.PathLike[str], wrong: str, remedy: str) -> None:
        super().__init__(f"{os.fspath(path)}: {wrong}: {remedy}")
        self.path = Path(path)


@dataclass(frozen=True, slots=True)
class Input:
    """One call of the dispatcher: the method's name and its arguments, as in `Input("offer", (target, batch))`."""

    name: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        named = zip(KIND[self.name].fields, self.args, strict=True)
        return f"{self.name}({', '.join(f'{field}={value!r}' for field, value in named)})"


Event = Input | Effect


@dataclass(frozen=True, slots=True)
class Kind:
    """One line of the format: what `fields` (in order of the call or the effect) become which `columns`."""

    name: str
    fields: tuple[str, ...]
    columns: tuple[str, ...]
    effect: type | None = None
    """The class of an effect; None for an input and a mark."""
    mark: bool = False
    """Neither input nor effect: a line of the recorder's own."""

    @property
    def lists(self) -> bool:
        """Whether an event of this kind may take several rows."""
        return not _LISTS.isdisjoint(self.fields)


def _input(name: str, **columns: str) -> Kind:
    return Kind(name, tuple(columns), tuple(columns.values()))


def _effect(effect: type, name: str, **columns: str) -> Kind:
    return Kind(name, tuple(columns), tuple(columns.values()), effect)


KINDS: Final = (
    _input("load", batch="batch", count="extra"),
    _input("loader_done"),
    _input("target_ready", target="worker"),
    _input("offer", target="worker", batch="batch"),
    _input("target_lost", target="worker"),
    _input("drafter_ready", drafter="worker"),
    _input("received", drafter="worker", batch="batch"),
    _input("computed", drafter="worker", batch="batch"),
    _input("commit", step="step", batches="batch"),
    _input("abandon", step="step"),
    _input("drafter_lost", drafter="worker"),
    _input("stop", reason="extra"),
    _effect(Loaded, "loaded", batch="batch", lane="lane"),
    _effect(Assign, "assign", target="worker", batch="batch", lane="lane"),
    _effect(Admit, "admit", target="worker", batch="batch", lane="lane"),
    _effect(
        Deliver, "deliver",
        drafter="worker", batch="batch", lane="lane", source="source", step="step", closes="extra",
    ),
    _effect(Release, "release", target="worker", batch="batch"),
    _effect(Flush, "flush", drafter="worker", step="step"),
    _effect(Join, "join", drafter="worker", step="step"),
    _effect(Step, "step", step="step", drafters="worker", batches="batch"),
    _effect(Drop, "drop", step="step", drafters="worker"),
    _effect(PutBack, "put_back", batch="batch", lane="lane", drafter="worker"),
    _effect(Recompute, "recompute", batch="batch", place="extra", lane="lane", worker="worker"),
    _effect(Recall, "recall", drafter="worker", batch="batch"),
    _effect(Lose, "lose", batches="batch"),
    _effect(End, "end", reason="extra"),
    Kind("plan", ("batch",), ("batch",), mark=True),
    Kind("finish", (), (), mark=True),
    _input("refused", drafter="worker", batch="batch"),
)  # fmt: skip
"""Every kind, by code. `plan` describes a batch, before all events; `finish` is the end of the record.
New kinds are added at the end, so that older traces keep their codes."""

KIND: Final = {kind.name: kind for kind in KINDS}
CODE: Final = {kind.name: code for code, kind in enumerate(KINDS)}
INPUTS: Final = frozenset(k for k, kind in enumerate(KINDS) if kind.effect is None and not kind.mark)
"""The codes of the inputs."""


def input_rows(name: str, args: tuple[Any, ...]) -> Sequence[Row]:
    """The rows of the input `name(*args)`. Raises ValueError for a stop reason that is not in `REASONS`."""
    return INPUT_ROWS[name](*args)


def effect_rows(effect: Effect) -> Sequence[Row]:
    """The rows of an effect. Raises ValueError for a stop reason that is not in `REASONS`."""
    return EFFECT_ROWS[type(effect)](effect)


def further_rows(row: Row) -> int:
    """How many more rows belong to the event that begins with this row."""
    return row[_EXTRA] if row[0] in _LONG else 0


def event_of(rows: Sequence[Row]) -> Event:
    """The input or effect of these rows: one, or `further_rows` more. Marks have no event."""
    row = rows[0]
    event: Event = _EVENTS[row[0]](row, rows)
    return event


# The table at work: an encoder and a decoder of each kind -----------------------------------------------------------


def _reason_code(reason: str) -> int:
    if reason not in REASONS:
        raise ValueError(f"stop reason {reason!r} has no code: give one of {', '.join(REASONS)}")
    return REASONS.index(reason)


def _spread(code: int, step: int, workers: Sequence[int], batches: Sequence[int]) -> Sequence[Row]:
    count = max(len(workers), len(batches), 1)
    pairs = zip_longest(workers, batches or (NONE,), fillvalue=NONE)
    return [(code, worker, batch, NONE, step, NONE, count - k) for k, (worker, batch) in enumerate(pairs, 1)]


def _gather(rows: Sequence[Row], column: int) -> tuple[int, ...]:
    return tuple([row[column] for row in rows if row[column] != NONE])


def _row(code: int, places: Sequence[int], values: Sequence[Any]) -> Row:
    row: list[Any] = [code, *[NONE] * (len(COLUMNS) - 1)]
    for place, value in zip(places, values, strict=True):
        row[place] = value
    return tuple(row)


def _encoder(kind: Kind) -> Callable[..., Sequence[Row]]:
    """A function of the values of the kind's fields."""
    code = CODE[kind.name]
    places = [COLUMNS.index(column) for column in kind.columns]
    if kind.lists:

        def long(*values: Any) -> Sequence[Row]:
            given = dict(zip(kind.columns, values, strict=True))
            return _spread(code, given.get("step", NONE), given.get("worker", ()), given.get("batch", ()))

        return long
    if "reason" in kind.fields:
        return lambda reason: (_row(code, places, (_reason_code(reason),)),)
    return lambda *values: (_row(code, places, values),)


def _effect_encoder(kind: Kind) -> Callable[[Any], Sequence[Row]]:
    encode = _encoder(kind)
    if len(kind.fields) == 1:
        field = kind.fields[0]
        return lambda effect: encode(getattr(effect, field))
    values = attrgetter(*kind.fields)
    return lambda effect: encode(*values(effect))


def _decoder(kind: Kind) -> Callable[[Row, Sequence[Row]], Any]:
    """A function of an event's first row and of all its rows."""
    readers = [_reader(field, COLUMNS.index(column)) for field, column in zip(kind.fields, kind.columns, strict=True)]
    made = kind.effect
    if made is None:
        return lambda row, rows: Input(kind.name, tuple([read(row, rows) for read in readers]))
    return lambda row, rows: made(*[read(row, rows) for read in readers])


def _reader(field: str, place: int) -> Callable[[Row, Sequence[Row]], Any]:
    if field in _LISTS:
        return lambda row, rows: _gather(rows, place)
    if field == "reason":
        return lambda row, rows: REASONS[row[place]]
    if field == "closes":
        return lambda row, rows: bool(row[place])
    return lambda row, rows: row[place]


_LONG: Final = frozenset(code for code, kind in enumerate(KINDS) if kind.lists)
_EVENTS: Final = [_decoder(kind) for kind in KINDS]
INPUT_ROWS: Final = {kind.name: _encoder(kind) for kind in KINDS if kind.effect is None and not kind.mark}
"""The encoder of each input, called with its arguments."""
EFFECT_ROWS: Final = {kind.effect: _effect_encoder(kind) for kind in KINDS if kind.effect is not None}
"""The encoder of each class of effects, called with the effect."""

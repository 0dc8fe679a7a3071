"""The event format: one table, no loss in either direction."""

import inspect

import pytest

from policies.dispatcher import Dispatcher
from policies.effects import Admit, Assign, Deliver, Drop, Effect, End, Lose, Recompute, Step
from policies.trace import (
    COLUMNS,
    INPUTS,
    KINDS,
    NONE,
    REASONS,
    Event,
    Input,
    effect_rows,
    event_of,
    further_rows,
    input_rows,
)

VALUES = {"drafters": (2, 0, 1), "batches": (8, 5), "reason": "watchdog", "closes": True}
EFFECTS = [kind for kind in KINDS if kind.effect is not None]


def rows_of(event: Event) -> list[tuple[int, ...]]:
    rows = input_rows(event.name, event.args) if isinstance(event, Input) else effect_rows(event)
    return list(rows)


def source_of(method: object) -> str:
    """The lines of a method up to its docstring; empty for what is no function."""
    return inspect.getsource(method).partition('"""')[0] if inspect.isfunction(method) else ""


def test_every_effect_has_a_kind_with_its_fields_in_order() -> None:
    assert {kind.effect for kind in EFFECTS} == set(Effect.__args__)
    for kind in EFFECTS:
        assert kind.fields == kind.effect.__match_args__


def test_every_input_has_a_kind_with_the_arguments_of_the_dispatcher_in_order() -> None:
    names = {KINDS[code].name for code in INPUTS}
    inputs = {name for name, method in vars(Dispatcher).items() if "-> list[Effect]" in source_of(method)}
    assert names == {name for name in inputs if not name.startswith("_")}
    for code in INPUTS:
        arguments = list(inspect.signature(getattr(Dispatcher, KINDS[code].name)).parameters)[1:]
        assert list(KINDS[code].fields) == arguments


def test_codes_are_places_in_the_table_and_names_are_unique() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert [KINDS[rows_of(event_example(code))[0][0]].name for code in INPUTS] == [KINDS[c].name for c in INPUTS]


def event_example(code: int) -> Event:
    kind = KINDS[code]
    values = tuple(VALUES.get(field, 3 + place) for place, field in enumerate(kind.fields))
    return kind.effect(*values) if kind.effect else Input(kind.name, values)


@pytest.mark.parametrize("code", [code for code, kind in enumerate(KINDS) if not kind.mark])
def test_an_event_of_every_kind_comes_back_as_it_was(code: int) -> None:
    event = event_example(code)
    rows = rows_of(event)
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert len(rows) == 1 + further_rows(rows[0])
    assert event_of(rows) == event
    assert repr(event_of(rows)) == repr(event)


@pytest.mark.parametrize(
    "event",
    [
        Input("commit", (4, ())),
        Input("commit", (4, (0,))),
        Input("commit", (4, tuple(range(100)))),
        Step(9, (0, 1, 2), ()),
        Step(9, (2,), (0, 7, 3, 1)),
        Step(9, (2, 0, 1), (4,)),
        Drop(0, ()),
        Drop(3, (1, 0)),
        Lose(()),
        Lose((0, 5, 2)),
        Recompute(3, 0, -1, -1),
        Deliver(0, 0, 0, 0, 0, False),
    ],
    ids=str,
)
def test_lists_of_any_length_and_unknown_fields_come_back(event: Event) -> None:
    rows = rows_of(event)
    assert event_of(rows) == event
    if KINDS[rows[0][0]].lists:
        assert [row[-1] for row in rows] == list(range(len(rows)))[::-1]


def test_the_rows_of_a_commit_name_each_batch_once_with_its_step() -> None:
    batch, step = COLUMNS.index("batch"), COLUMNS.index("step")
    rows = input_rows("commit", (7, (30, 10, 20)))
    assert [(row[batch], row[step]) for row in rows] == [(30, 7), (10, 7), (20, 7)]


def test_a_column_that_a_kind_does_not_use_holds_minus_one() -> None:
    for event in (Admit(1, 2, 3), Assign(1, 2, 3)):
        (row,) = effect_rows(event)
        assert row[1:] == (1, 2, 3, NONE, NONE, NONE)


@pytest.mark.parametrize("reason", REASONS)
def test_every_stop_reason_has_a_code(reason: str) -> None:
    assert event_of(effect_rows(End(reason))) == End(reason)
    assert event_of(input_rows("stop", (reason,))) == Input("stop", (reason,))


def test_an_unknown_stop_reason_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="'boredom' has no code: give one of data_exhausted, max_steps"):
        effect_rows(End("boredom"))


def test_an_input_reads_like_its_call() -> None:
    assert str(Input("offer", (1, 7))) == "offer(target=1, batch=7)"
    assert str(Input("loader_done")) == "loader_done()"
    assert str(Input("stop", ("at_s",))) == "stop(reason='at_s')"

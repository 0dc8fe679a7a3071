"""Summaries altered at random: each is refused by the name of its key, or reported; none ends in a traceback."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from dflash_sim.comparison import predict
from policies.faults import PipelineError
from reports.compared import prediction_table, runs_table
from reports.difference import difference_tables, difference_text
from reports.draw import comparing
from reports.page.elements import table_of, text_of
from reports.page.firstscreen import first_screen
from reports.page.runfigures import figures_of, tables_of
from reports.runs import Run
from reports.summary import to_json
from reports.summaryfile import checked_summary
from tests.helpers import pipeline_of

VALUES = (None, -1, 0, 1e19, 1e-320, "x", "", [], {}, True, 10**30, "<b>$_{", [None], {"a": 1}, -5.5)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def altered(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The document with one or two values replaced or removed."""
    made = copy.deepcopy(document)
    for _ in range(chance.randint(1, 2)):
        *path, last = chance.choice(places(made))
        holder = made
        for key in path:
            holder = holder[key]
        if chance.random() < 0.25:
            del holder[last]
        else:
            holder[last] = chance.choice(VALUES)
    return made


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    sections = {"topology": {"targets": 2, "drafters": 2}, "data": {"batches": 60}, "stop": {"at_s": 20.0}}
    memory = {"hidden_bytes_per_token": 10, "host_limit": 5}
    made: dict[str, Any] = json.loads(to_json(predict(pipeline_of(**sections, memory=memory))[1]))
    return made


@pytest.mark.parametrize("seed", range(8))
def test_an_altered_summary_is_refused_by_key_or_reported(seed: int, summary: dict[str, Any]) -> None:
    chance, whole = random.Random(seed), Run(name="whole", path=Path("w"), summary=checked_summary(summary, Path("w")))
    refused = 0
    for _ in range(100):
        document = altered(summary, chance)
        try:
            checked = checked_summary(document, Path("summary.json"))
        except PipelineError as error:
            refused += 1
            assert error.faults and all("\n" not in str(fault) for fault in error.faults)
            continue
        run = Run(name="altered", path=Path("summary.json"), summary=checked)
        text_of(first_screen(run, None))
        for table in (*tables_of(run), *difference_tables(whole, run), runs_table([run, whole])):
            text_of(table_of(table))
        text_of(table_of(prediction_table(run, whole)))
        assert difference_text(whole, run) and difference_text(run, whole)
        if chance.random() < 0.1:  # drawing is slow
            assert all(figure.key for figure in figures_of(run))
            comparing.rates([run, whole])
            comparing.roles([run, whole])
    assert refused

"""What the account of the validations says equals the tables that lie beside it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

KEPT = Path(__file__).parents[3] / "docs" / "validation"
TEXT = (KEPT / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z0-9_-]+)`[^|]*\| ([0-9,]+) \| ([0-9,]+) \| ([+−][0-9.]+) % \|", re.MULTILINE)


def table(case: str) -> dict[str, Any]:
    return {row["quantity"]: row for row in json.loads((KEPT / case / "table.json").read_text())["rows"]}


@pytest.mark.parametrize(("case", "predicted", "measured", "difference"), ROW.findall(TEXT))
def test_rates_in_the_account_are_those_of_the_tables(
    case: str, predicted: str, measured: str, difference: str
) -> None:
    row = table(case)["steady throughput" if case.startswith("gpu") else "throughput"]
    assert [predicted, measured] == [f"{row['predicted']:,.0f}", f"{row['measured']:,.0f}"]
    assert difference == f"{100 * row['difference']:+.1f}".replace("-", "−")


def test_every_table_has_its_row_in_the_account() -> None:
    assert {case for case, *_ in ROW.findall(TEXT)} == {path.parent.name for path in KEPT.glob("*/table.json")}


def test_chances_in_the_account_are_those_of_the_tables() -> None:
    spread = r"deviation of ([0-9.]+) to\s+([0-9.]+) points of a target's time, and of ([0-9.]+) to ([0-9.]+)"
    said = re.search(spread, TEXT)
    assert said is not None

    def chances(*cases: str) -> list[float]:
        rows = [row for case in cases for row in table(f"one-card-5-3-{case}").values()]
        return [100 * row["chance"] for row in rows if row["quantity"].startswith("target/") and row.get("chance")]

    free, whole = chances("rotating", "shared", "bucketed", "slow-drafter"), chances("whole")
    found = [f"{value:.1f}" for value in (min(free), max(free), min(whole), max(whole))]
    assert list(said.groups()) == found

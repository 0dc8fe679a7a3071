"""Names of runs as ids and files: unique, never empty; a second report removes the files of the first, nothing else."""

import json
import re
from pathlib import Path

import pytest

from reports.page.build import build
from reports.page.manifest import MANIFEST
from reports.runs import load_given
from reports.slugs import Slugs
from tests.reports.test_runs import recorded_run

NAMES = ["a b", "a-b", "名前", "Ω", "s1", "x/s1", "s1 (2)", "compare", "plan", "é", "n" * 200]


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_name_gets_a_slug_of_its_own_that_is_not_the_reports() -> None:
    slugs = Slugs()
    found = [slugs.of(name) for name in ["a b", "a-b", "名前", "", "--", "s1", "s1", "s1 (2)", "compare", "n" * 300]]
    assert found == ["a-b", "a-b-2", "run", "run-2", "run-3", "s1", "s1-2", "s1-2-2", "compare-2", "n" * 60]


def test_runs_of_any_names_have_ids_and_files_of_their_own(tmp_path: Path) -> None:
    first = recorded_run(tmp_path / "first", data={"batches": 8})
    text = (first / "summary.json").read_bytes()
    for name in NAMES:
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "summary.json").write_bytes(text)
    runs = load_given([tmp_path / "in" / name for name in NAMES])
    names = [run.name for run in runs.runs]
    assert len(set(names)) == len(NAMES) and {"s1", "s1 (3)", "s1 (2)"} <= set(names)
    page = build(runs, tmp_path / "out", {})
    ids = re.findall(r'\bid="([^"]+)"', page.read_text())
    assert len(ids) == len(set(ids)) and not {"-run", ""} & set(ids)
    assert len(list((tmp_path / "out" / "tables").glob("*workers.csv"))) == len(NAMES)


def test_a_second_report_removes_the_files_of_the_first_and_nothing_else(tmp_path: Path) -> None:
    one, two = (recorded_run(tmp_path / name, data={"batches": 8}) for name in ("one", "two"))
    out = tmp_path / "out"
    build(load_given([one]), out, {})
    (out / "figures" / "mine.png").write_text("kept")
    (out / "notes.txt").write_text("kept")
    made = json.loads((out / MANIFEST).read_text())
    made["files"] += ["../one/summary.json", "notes.txt", "figures/../notes.txt"]
    (out / MANIFEST).write_text(json.dumps(made))
    build(load_given([two]), out, {})
    found = files_in(out)
    assert not [name for name in found if "/one-" in name] and "tables/two-workers.csv" in found
    assert {"figures/mine.png", "notes.txt"} <= found and (one / "summary.json").exists()
    build(load_given([one]), tmp_path / "fresh", {})
    build(load_given([one]), out, {})
    assert files_in(out) == files_in(tmp_path / "fresh") | {"figures/mine.png", "notes.txt"}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": 3}', '{"files": [3, null]}', "\x00"])
def test_a_damaged_list_of_files_removes_nothing(text: str, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "one", data={"batches": 8})
    (tmp_path / "out" / "figures").mkdir(parents=True)
    (tmp_path / "out" / MANIFEST).write_text(text)
    (tmp_path / "out" / "figures" / "old-workers.png").write_text("kept")
    build(load_given([run / "summary.json"]), tmp_path / "out", {})
    assert (tmp_path / "out" / "figures" / "old-workers.png").exists()

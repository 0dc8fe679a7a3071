"""`dflash-run profile`: what it refuses before it measures anything."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dflash_run.cli import app
from dflash_run.profiling import command
from dflash_sim.cli import app as fitting
from dflash_sim.fit_output import kept_there
from dflash_sim.timings_file import read_timings
from reports.commands import guarded
from tests.run.training.cases import training_file

KEPT = Path(__file__).parents[3] / "docs" / "validation" / "cpu-1-1-shared"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "training.json"
    path.write_text(json.dumps(training_file(tmp_path, timings={"file": str(tmp_path / "old.json")})))
    (tmp_path / "old.json").write_text("{}")
    return path


def refused(capsys: pytest.CaptureFixture[str], file: Path, out: Path, *more: str) -> list[str]:
    status = guarded(app, ["profile", str(file), "-o", str(out), *more])
    said = capsys.readouterr()
    assert status == 2 and not said.out
    return said.err.splitlines()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("training.json", "FILE"),
        ("x/../training.json", "FILE"),
        ("link.json", "FILE"),
        ("data-24-24.jsonl", "data.path"),
        ("target/config.json", "model.name_or_path"),
    ],
)
def test_timings_never_replace_what_they_are_measured_with(
    name: str, key: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "x").mkdir()
    os.link(file, file.parent / "link.json")
    out = file.parent / name
    before = out.read_bytes()
    [fault] = refused(capsys, file, out)
    assert fault.startswith("-o: got '") and f"must be another file than {key} names" in fault
    assert "give another, e.g. -o timings.json" in fault and out.read_bytes() == before


def test_what_the_files_predictions_use_may_be_measured_anew(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = refused(capsys, file, file.parent / "old.json", "--multiprocessors", "8,8")
    assert [fault.split(":")[0] for fault in faults] == ["--multiprocessors"]


@pytest.mark.parametrize("name", sorted(each.name for each in KEPT.iterdir() if each.name != "timings.json"))
def test_a_profile_never_replaces_a_file_of_a_run_or_what_is_no_timings_file(
    name: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(KEPT, run := file.parent / "run")
    (file.parent / "link.json").symlink_to(run / name)
    before = (run / name).read_bytes()
    for out in (run / name, file.parent / "link.json"):
        [fault] = refused(capsys, file, out)
        assert "must not replace " in fault and "or remove that first" in fault and (run / name).read_bytes() == before


def test_earlier_timings_are_measured_over_also_damaged_or_empty_ones(file: Path) -> None:
    for content in ("", "{}", '{"version": 1, "target": 3}', (KEPT / "timings.json").read_text()):
        (file.parent / "t.json").write_text(content)
        assert kept_there(file.parent / "t.json") is None
    for content in ("[]", '{"version": 1', "notes", '{"seed": 1}'):
        (file.parent / "t.json").write_text(content)
        assert kept_there(file.parent / "t.json") == "what is no timings file"


def test_what_is_wrong_with_the_command_line_is_told_with_what_is_wrong_with_the_file(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = refused(capsys, file, file, "--multiprocessors", "8,8", "--set", "dispatch.depth=-1")
    assert [fault.split(":")[0] for fault in faults] == ["--multiprocessors", "dispatch.depth", "-o"]


def test_a_folder_is_no_file_for_timings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [fault] = refused(capsys, file, file.parent)
    assert "must be a file; it is a folder" in fault


@pytest.mark.parametrize("as_json", [True, False])
def test_a_profile_and_a_fit_say_where_they_wrote(
    as_json: bool, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measured", lambda *given: read_timings(KEPT / "timings.json"))
    monkeypatch.chdir(file.parent)
    more = ["--json"] * as_json
    assert guarded(app, ["profile", file.name, "-o", "t.json", *more]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "timings in t.json" and Path("t.json").is_file()
    assert not as_json or json.loads(said.out)["version"] == 1
    assert guarded(fitting, ["fit", str(KEPT), "-o", "fitted.json", *more]) == 0
    said = capsys.readouterr()
    assert "timings in fitted.json" in (said.err if as_json else said.out).splitlines()

"""`make validate` on what is not there, not known, damaged or not of one piece: said in words, never passed over."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_run.validation.__main__ import main
from dflash_run.validation.cases import CASES
from dflash_run.validation.ranking import groups

KEPT = Path(__file__).parents[3] / "docs" / "validation"
NAME, OTHER = "cpu-1-1-shared", "cpu-2-1-shared"
FILES = ("table.json", "timings.json", "prediction.json", "summary.json", "trace.parquet", "overlay.svg")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    keep(tmp_path / "kept" / NAME)
    return tmp_path / "kept"


def keep(folder: Path, name: str = NAME) -> None:
    shutil.copytree(KEPT / name, folder)


def edit(path: Path, *keys: str | int, value: Any) -> None:
    content = inner = json.loads(path.read_text(encoding="utf-8"))
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content), encoding="utf-8")


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, list[str]]:
    """(status, standard output, lines of the standard error)."""
    status = main([str(each) for each in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err.splitlines()


def test_a_whole_folder_is_worked_out_again_in_silence(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said, faults = told(capsys, "--out", out)
    assert (status, faults) == (0, []) and "throughput" in said and "ranked" not in said


def test_a_folder_that_is_not_there_or_empty_is_not_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (("--out", tmp_path / "nowhere"), ("--out", tmp_path), ()):
        monkeypatch.chdir(tmp_path)
        status, said, [fault] = told(capsys, *arguments)
        assert status == 1 and not said and fault.startswith("--out: got ") and "give another --out" in fault


def test_a_case_that_nobody_knows_is_refused_with_its_neighbour(capsys: pytest.CaptureFixture[str]) -> None:
    status, said, faults = told(capsys, "--case", "cpu-1-1-sharde", "--case", "x\n" * 500)
    assert status == 2 and not said and len(faults) == 2
    assert "did you mean cpu-1-1-shared?" in faults[0] and len(faults[1]) < 300


def test_a_case_of_another_part_selects_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, [fault] = told(capsys, "--part", "cpu", "--case", "gpu-1-1")
    assert status == 2 and "none of these is in part cpu" in fault


def test_a_case_that_is_asked_for_must_be_kept(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, [fault] = told(capsys, "--out", out, "--case", OTHER)
    assert status == 1 and fault.startswith(f"{OTHER}: not kept in ") and "--part cpu" in fault


def test_a_stray_folder_is_named_and_asked_away(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(out / "cpu-1-1-sharde")
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and "cpu-1-1-sharde: no case has this name" in fault
    assert told(capsys, "--out", out, "--case", NAME)[0] == 0


@pytest.mark.parametrize("file", FILES[:-1])
def test_a_folder_that_lacks_a_file_is_named_with_the_file(
    file: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / NAME / file).unlink()
    status, said, [fault] = told(capsys, "--out", out)
    assert status == 1 and not said and fault.startswith(f"{NAME}: {file}: missing; restore")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"{}", b"null", b"\xff\xfe", b"", b"[" * 100_000], ids=lambda it: str(it)[:9]
)
@pytest.mark.parametrize("file", FILES[:-1])
def test_a_damaged_folder_is_one_line_that_names_the_file(
    file: str, content: bytes, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / NAME / file).write_bytes(content)
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and fault.startswith(f"{NAME}: cannot be worked out again: ") and "restore" in fault
    assert file in fault and len(fault) < 600


def test_the_others_are_checked_though_one_is_damaged(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = out / NAME / "trace.parquet"
    trace.write_bytes(trace.read_bytes()[:1000])
    keep(out / OTHER, OTHER)
    status, said, [fault] = told(capsys, "--out", out)
    assert status == 1 and said.startswith(OTHER) and fault.startswith(f"{NAME}: cannot be worked out again")


def test_a_profile_that_the_prediction_was_not_made_with_is_a_fault(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (out / NAME / "timings.json").open("a") as file:
        file.write("\n")
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and "profile.sha256: got '" in fault and "must be the SHA-256 of timings.json" in fault


def test_numbers_that_are_none_do_not_hide_a_drift(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(out / NAME / "prediction.json", "summary", "makespan_s", value=float("nan"))
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and fault.startswith(f"{NAME}: makespan_s: predicted ")


def test_a_table_of_another_case_is_told(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(out / NAME / "table.json", "case", value=OTHER)
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and f"must be {NAME}, as the folder" in fault


def test_only_cases_that_differ_in_nothing_but_policy_are_ranked() -> None:
    found = [{case.name for case in alike} for alike in groups(CASES) if len(alike) > 1]
    policies = ("round_robin", "rotating", "shared", "bucketed")
    assert {f"one-card-5-3-{policy}" for policy in policies} in found
    assert {f"gpu8-5-3-{policy}" for policy in policies} in found
    assert {"gpu8-5-3-round_robin-step", "gpu8-5-3-shared-step"} in found
    alone = {"gpu-1-1", "gpu-1-1-drafter-bound", "gpu8-5-3-shared-pooled", "gpu8-6-2-shared"}
    assert not (alone | {"one-card-5-3-slow-drafter"}) & set().union(*found)
    first = next(case for case in CASES if case.name == "gpu8-5-3-shared")
    for change in ({"samples": 7}, {"sizes": (1, 2)}, {"file": {**first.file, "topology": {"targets": 1}}}):
        assert len(groups([first, replace(first, **change)])) == 2  # type: ignore[arg-type]

"""`make validate` on what is not there, not known, damaged or not of one piece: said in words, never passed over."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_run.validation.cases import CASES
from dflash_run.validation.command import checked as main
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


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


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
    assert status == 1 and fault.startswith(f"{NAME}: prediction.json: summary.makespan_s: got nan; must be 9.65")


def test_a_table_of_another_case_is_told(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(out / NAME / "table.json", "case", value=OTHER)
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and f"must be {NAME}, as the folder" in fault


def test_every_column_of_a_kept_table_is_held_against_its_files(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / NAME / "table.json"
    rows = read(path)["rows"]
    names = [row["quantity"] for row in rows]
    at = {name: names.index(name) for name in ("throughput", "time to finish", "target/0 busy", "drafter/0 busy")}
    edit(path, "rows", at["throughput"], "predicted", value=rows[0]["predicted"] * 1.5)
    edit(path, "rows", at["time to finish"], "limit", value=0.5)
    edit(path, "rows", at["target/0 busy"], "difference", value=0)
    edit(path, "rows", at["drafter/0 busy"], "chance", value=10**400)
    edit(path, "rows", names.index("shared mean depth"), "difference", value=0.0)  # a hundredth of nothing
    status, _, faults = told(capsys, "--out", out)
    assert status == 1 and [fault.split(": ")[:3] for fault in faults] == [
        [NAME, "table.json", "throughput.predicted"],
        [NAME, "table.json", "'time to finish'.limit"],
        [NAME, "table.json", "'target/0 busy'.difference"],
        [NAME, "table.json", "'drafter/0 busy'.chance"],
        [NAME, "table.json", "'shared mean depth'.difference"],
    ]
    assert "got 0.5; must be 0.1, as worked out again; restore" in faults[1]


def test_rows_that_are_missing_or_too_many_are_named(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = out / NAME / "table.json"
    edit(path, "rows", value=[{"quantity": "luck"}, *read(path)["rows"][1:]])
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and f"{NAME}: table.json: rows: without ['throughput'] and with ['luck']" in fault


def test_what_a_prediction_says_of_rates_times_and_workers_is_held_against_its_profile(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / NAME / "prediction.json"
    summary = read(path)["summary"]
    edit(path, "summary", "throughput", "slots_per_s", value=summary["throughput"]["slots_per_s"] * 1.02)
    edit(path, "summary", "workers", 0, "busy_s", value=summary["workers"][0]["busy_s"] * 2)
    edit(path, "summary", "lanes", 0, "mean", value=0.1)
    edit(path, "summary", "eta_s", value=1)
    edit(path, "summary", "verdict", "bottleneck", value="none")
    edit(path, "kind", value="simulation")
    status, _, faults = told(capsys, "--out", out)
    keys = {fault.removeprefix(f"{NAME}: prediction.json: ").split(":")[0] for fault in faults}
    assert status == 1 and keys == {"kind"} | {f"summary.{key}" for key in (
        "throughput.slots_per_s", "workers.0.busy_s", "lanes.0.mean", "eta_s", "verdict.bottleneck")}
    edit(path, "summary", value=summary | {"workers": []})
    edit(path, "kind", value="prediction")
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and "summary.workers: got []; must be [{" in fault


def test_what_a_summary_says_of_the_run_is_held_against_the_trace(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / NAME / "summary.json"
    rate = read(path)["throughput"]["tokens_per_s"]
    edit(path, "throughput", "tokens_per_s", value=rate * 1.0001)
    edit(path, "config", "topology", "targets", value=7)
    edit(path, "kind", value="rehearsal")
    edit(path, "prediction", "tokens_per_s", "difference", value=0.0)
    status, _, faults = told(capsys, "--out", out)
    keys = [fault.removeprefix(f"{NAME}: summary.json: ").split(":")[0] for fault in faults]
    assert status == 1
    assert keys == ["kind", "throughput.tokens_per_s", "config.topology.targets", "prediction.tokens_per_s.difference"]
    assert "got 7; must be 1, as worked out again; restore" in faults[2]


@pytest.mark.parametrize("value", [2, 0, "many"])
def test_a_prediction_of_another_pipeline_than_the_runs_is_named_by_its_key(
    value: object, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(out / NAME / "prediction.json", "summary", "config", "topology", "targets", value=value)
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and "prediction.json: summary.config.topology.targets: got " in fault and "must be 1" in fault


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("table.json", ("rows", 0, "measured")),
        ("table.json", ("rows", 0, "chance")),
        ("prediction.json", ("summary", "throughput")),
        ("prediction.json", ("summary", "config", "training", "sync")),
        ("prediction.json", ("kind",)),
        ("prediction.json", ("profile", "sha256")),
        ("summary.json", ("makespan_s",)),
        ("summary.json", ("training", "forecast", "target", "total")),
        ("summary.json", ("prediction",)),
    ],
    ids=str,
)
def test_a_key_that_is_not_there_is_told_as_missing(
    file: str, keys: tuple[str | int, ...], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / NAME / file
    content = inner = read(path)
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    path.write_text(json.dumps(content), encoding="utf-8")
    status, _, faults = told(capsys, "--out", out)
    assert status == 1 and str(keys[-1]) in faults[0] and file in faults[0]
    assert ("is missing" in faults[0] or "must be there" in faults[0]) and "KeyError" not in faults[0]


def test_a_case_that_is_a_dead_link_or_a_file_is_not_passed_over(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / OTHER).symlink_to(out / "gone")
    (out / "gpu-1-1").write_text("")
    (out / "README.md").write_text("")
    status, _, faults = told(capsys, "--out", out)
    assert status == 1 and len(faults) == 2
    assert f"{OTHER}: must be a folder; it is a link to {out / 'gone'}, which is not there; restore" in faults[0]
    assert "gpu-1-1: must be a folder; it is a file; restore" in faults[1]


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "cut off", "another", "a folder", "a dead link"])
def test_a_picture_that_is_missing_or_damaged_is_told_and_nothing_is_written(
    damage: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / NAME / "overlay.svg"
    whole = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage == "a dead link":
        path.symlink_to("gone")
    elif damage != "missing":
        other = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
        content = {"empty": b"", "garbage": b"garbage\n", "cut off": whole[:9000], "another": other}
        path.write_bytes(content[damage])
    before = sorted((each.name, each.lstat().st_mtime_ns) for each in (out / NAME).iterdir())
    status, said, [fault] = told(capsys, "--out", out)
    assert status == 1 and "throughput" in said and fault.startswith(f"{NAME}: overlay.svg: ")
    assert "draw it with `python -m dflash_run.validation --draw`" in fault
    assert ("missing" if damage == "missing" else "delete it, and ") in fault
    assert sorted((each.name, each.lstat().st_mtime_ns) for each in (out / NAME).iterdir()) == before


def test_a_missing_picture_is_drawn_where_it_is_asked_for(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (out / NAME / "overlay.svg").unlink()
    assert told(capsys, "--out", out, "--draw")[::2] == (0, [])
    assert told(capsys, "--out", out)[::2] == (0, [])


def test_what_nothing_writes_is_told_files_and_keys(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / NAME / "notes.txt").write_text("")
    for file, *keys in (
        ("table.json", "luck"),
        ("prediction.json", "luck"),
        ("prediction.json", "profile", "luck"),
        ("summary.json", "luck"),
        ("summary.json", "prediction", "luck"),
    ):
        edit(out / NAME / file, *keys, value=7)
    status, _, faults = told(capsys, "--out", out)
    assert status == 1 and len(faults) == 6 and all("must not be there" in fault for fault in faults)
    assert faults[-1].startswith(f"{NAME}: notes.txt: ") and "remove it" in faults[-1]


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("summary.json", ("prediction", "profile")),
        ("summary.json", ("prediction", "profile_sha256")),
        ("summary.json", ("prediction", "moved")),
        ("summary.json", ("prediction", "warnings")),
        ("summary.json", ("memory", "host_peak_bytes")),
        ("summary.json", ("memory", "at_peak", "host", "held")),
        ("prediction.json", ("plan_hash",)),
    ],
    ids=str,
)
def test_what_the_parts_of_a_folder_repeat_of_each_other_must_agree(
    file: str, keys: tuple[str, ...], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(out / NAME / file, *keys, value=5)
    status, _, [fault] = told(capsys, "--out", out)
    assert status == 1 and fault.startswith(f"{NAME}: {file}: {'.'.join(keys)}: got 5; must be ")


def test_differences_without_end_are_counted(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = out / NAME / "table.json"
    edit(path, "rows", value=[row | {"limit": 1.0} for row in read(path)["rows"]])
    status, _, faults = told(capsys, "--out", out)
    assert status == 1 and len(faults) == 11 and "table.json: 2 more keys differ; restore" in faults[-1]


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

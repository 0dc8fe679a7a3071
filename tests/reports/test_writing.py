"""Where files may go: a path that a user gives never takes what is no regular file, and links are written through."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_sim.cli import app, guarded
from dflash_sim.fitting import save_timings
from dflash_sim.timings_file import build_profile, write_timings
from policies.faults import PipelineError
from reports.perfetto import export_perfetto
from reports.tracefile import read_trace
from reports.writing import destination, file_fault, write_bytes, write_text

KEPT = Path(__file__).parents[2] / "docs" / "validation" / "cpu-1-1-shared"
PIPELINE = "data: {batches: 4}\ntimings: {target: {seconds: 0.01}, drafter: {seconds: 0.01}}\n"
PROFILE = build_profile({"target": {"samples": [{"batch_size": 1, "length": 8, "seconds": [0.1]}]}})
WRITERS: dict[str, Callable[[Path], object]] = {
    "write_text": lambda path: write_text(path, "new"),
    "write_bytes": lambda path: write_bytes(path, b"new"),
    "write_timings": lambda path: write_timings(PROFILE, path),
    "save_timings": lambda path: save_timings(PROFILE, path),
    "export_perfetto": lambda path: export_perfetto(read_trace(KEPT), path),
}


def pipe(path: Path) -> str:
    os.mkfifo(path)
    return "a pipe"


def socket_of(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return "a socket"


def folder(path: Path) -> str:
    path.mkdir()
    return "a folder"


def circle(path: Path) -> str:
    path.symlink_to(path)
    return "a link that leads round in a circle"


def linked_pipe(path: Path) -> str:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")
    return "a pipe"


def device(path: Path) -> str:
    """Only to look at: what asks for its kind is told a device, and nothing is written."""
    path.symlink_to("/dev/null")
    return "a device"


@pytest.mark.parametrize("make", [pipe, socket_of, folder, circle, linked_pipe])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_regular_file_is_refused_and_stays(
    make: Callable[[Path], str], writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = make(path := Path("at"))
    before = os.lstat(path)
    with pytest.raises((OSError, PipelineError), match=f"must be a file; it is {kind}"):
        WRITERS[writer](path)
    after = os.lstat(path)
    assert (before.st_ino, stat.S_IFMT(before.st_mode)) == (after.st_ino, stat.S_IFMT(after.st_mode))
    assert {each.name for each in tmp_path.iterdir()} <= {"at", "pipe"}


def test_a_device_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    device(path := tmp_path / "at")
    assert str(file_fault("-o", path)).endswith("must be a file; it is a device; give another path")
    with pytest.raises(OSError, match="it is a device"):
        destination(path)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_is_written_through_and_stays_a_link(writer: str, there: bool, tmp_path: Path) -> None:
    real, link = tmp_path / "far" / "real", tmp_path / "near" / "link"
    link.parent.mkdir()
    real.parent.mkdir()
    if there:
        real.write_text("old")
    link.symlink_to("../far/real")
    WRITERS[writer](link)
    assert link.is_symlink() and real.read_text() not in ("", "old")
    assert [each.name for each in link.parent.iterdir()] == ["link"] and len(list(real.parent.iterdir())) == 1


@pytest.mark.parametrize("name", ["run/summary.json", "run/trace.parquet", "t.json"])
def test_a_simulation_refuses_such_outputs_before_it_runs_and_writes_through_links(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text(PIPELINE)
    Path("run").mkdir()
    command = ["run", "p.yaml", "-o", "run", "--perfetto", "t.json"]
    os.mkfifo(name)
    assert guarded(app, command) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert f"got '{name}'; must be a file; it is a pipe" in line and stat.S_ISFIFO(os.lstat(name).st_mode)
    Path(name).unlink()
    Path(name).symlink_to(tmp_path / "elsewhere")
    assert guarded(app, command) == 0
    assert Path(name).is_symlink() and Path("elsewhere").stat().st_size > 100

"""What a profile needs meanwhile lies beside its file under a known name, so that the next one clears it away."""

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_run.profiling import profile as module
from dflash_run.profiling.profile import work_beside
from dflash_sim.folders import scratch
from policies.faults import PipelineError


def test_what_a_killed_process_left_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    folder = work_beside(tmp_path / "t.json")
    code = (
        "import os, signal, sys; from pathlib import Path; from dflash_sim.folders import scratch\n"
        "with scratch(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'records').mkdir(); (folder / 'group-0').write_text(''); (folder / 'slots').mkdir()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code, str(folder)], cwd=root).returncode == -9
    assert len(list(folder.iterdir())) >= 3
    with scratch(folder):
        assert [each.name for each in folder.iterdir()] == [".lock"]
    assert not list(tmp_path.iterdir())


def test_two_at_once_and_what_is_no_folder_of_ours_are_refused(tmp_path: Path) -> None:
    told = pytest.raises(PipelineError, match="no other run writes into")
    with scratch(tmp_path / "w"), told, scratch(tmp_path / "w"):
        raise AssertionError("both have it")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("kept")
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "file").write_text("kept")
    for name in ("link", "file"):
        with pytest.raises(PipelineError, match="must be a folder of our own"), scratch(tmp_path / name):
            raise AssertionError("it is not ours")
    assert (tmp_path / "mine" / "notes").read_text() == (tmp_path / "file").read_text() == "kept"


def test_a_profile_works_in_the_folder_that_it_is_given(tmp_path: Path) -> None:
    with module._own(tmp_path / "w") as folder:
        assert folder == tmp_path / "w"
    assert not list(tmp_path.iterdir())

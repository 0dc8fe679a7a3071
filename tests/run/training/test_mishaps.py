"""What a training must survive, or end of in order: who saves dies, disks fill up, policies fail, losses are NaN."""

import json
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import dflash_run.training.recording as recording  # noqa: E402
import dflash_run.training.train as training  # noqa: E402
from dflash_run.cli import app  # noqa: E402
from dflash_run.crew import ProcessCrew, Worker  # noqa: E402
from dflash_run.model.tensorfile import FILE_ERRORS, write_tensors  # noqa: E402
from dflash_run.training.checkpoint import FOLDER, NAME, complete_in, find, read  # noqa: E402
from dflash_run.training.messages import HoldOut, Save  # noqa: E402
from dflash_run.training.preparation import prepare_training  # noqa: E402
from dflash_run.training.scalars import Scalars  # noqa: E402
from dflash_sim.cli import guarded  # noqa: E402
from dflash_sim.prediction import summary_of  # noqa: E402
from reports.tracewriter import TraceWriter  # noqa: E402
from tests.helpers import check_identities  # noqa: E402
from tests.run.training.cases import HIRED, training_file, training_pipeline  # noqa: E402
from tests.run.training.meddling import at, meddled  # noqa: E402

FULL = OSError(28, "No space left on device")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("case")


def trained(case: Path, folder: Path, hire: training.Hire = HIRED, **changes: Any) -> dict[str, Any]:
    """The summary of a training."""
    prepared = prepare_training(training_pipeline(case, **changes), gpus=0)
    run, told = training.train(prepared, folder, hire=hire)
    summary = summary_of(run, kind="training", **told)
    check_identities(summary)
    return summary


def saved_in(folder: Path, summary: dict[str, Any]) -> bool:
    """Whether the newest checkpoint has all that was trained, and nothing unfinished lies beside it."""
    kept = read(find(folder))
    assert not list((folder / FOLDER).glob(".step-*")) and not summary["training"]["unsaved"]
    return len(kept.batches()) == summary["batches"]["trained"] and kept.step == summary["optimizer_steps"]


@pytest.mark.parametrize(("number", "why"), [(signal.SIGKILL, "killed by signal 9"), (signal.SIGSTOP, "silent for 3")])
def test_where_the_drafter_that_saves_last_is_lost_another_saves(
    case: Path, tmp_path: Path, number: signal.Signals, why: str
) -> None:
    summary = trained(case, tmp_path, at(Save, number, "drafter", 0), drafters=2, stop={"watchdog_s": 3})
    assert saved_in(tmp_path, summary) and summary["batches"]["trained"] == 12
    (failure,) = summary["failures"]
    assert failure.startswith(f"drafter/0: {why}")


def test_a_training_whose_last_checkpoint_nobody_can_write_says_so(case: Path, tmp_path: Path) -> None:
    summary = trained(case, tmp_path, at(Save, signal.SIGKILL, "drafter", 0, 1), drafters=2)
    assert summary["training"]["unsaved"] and complete_in(tmp_path / FOLDER) == []
    assert summary["failures"][-1] == "no checkpoint at the end: no drafter is left to write it"


def test_a_checkpoint_that_was_lost_with_its_drafter_comes_with_the_next_step(case: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"training": {"save_every": 2, "keep": 99}, "data": {"epochs": 2}}
    summary = trained(case, tmp_path, at(Save, signal.SIGKILL, "drafter", 0), drafters=2, **given)
    assert saved_in(tmp_path, summary) and read(complete_in(tmp_path / FOLDER)[0]).step in (3, 4)


def test_another_target_computes_what_a_lost_one_was_to_hold_out(case: Path, tmp_path: Path) -> None:
    stale = tmp_path / "held_out" / "held_0.safetensors"
    stale.parent.mkdir()
    stale.write_text("of an earlier run that was killed")
    hire = at(HoldOut, signal.SIGKILL, "target", 0)
    summary = trained(case, tmp_path, hire, targets=2, data={"held_out": 0.4})
    assert summary["failures"] == ["target/0: killed by signal 9"] and saved_in(tmp_path, summary)
    assert summary["training"]["figures"]["held_out_anchors"] > 0 and not stale.parent.exists()


def test_held_out_samples_that_cannot_be_kept_are_told_and_left_out(case: Path, tmp_path: Path) -> None:
    (tmp_path / "held_out").write_text("no folder")
    summary = trained(case, tmp_path, data={"held_out": 0.2})
    assert saved_in(tmp_path, summary) and "held_out_loss" not in summary["training"]["figures"]
    (failure,) = summary["failures"]
    assert failure.startswith("5 of 5 held-out samples are left out of evaluations: ")


def test_a_failed_save_is_told_and_the_run_goes_on(case: Path, tmp_path: Path) -> None:
    blocked: list[str] = []

    def meddle(crew: ProcessCrew, worker: Worker, message: object) -> bool:
        if isinstance(message, Save) and not blocked:
            blocked.append(message.folder)
            Path(message.folder).write_text("in the way")
        return True

    summary = trained(case, tmp_path, meddled(meddle), training={"save_every": 3})
    Path(blocked[0]).unlink(missing_ok=True)
    assert saved_in(tmp_path, summary) and summary["batches"]["trained"] == 12
    (failure,) = summary["failures"]
    assert failure.startswith("checkpoint of step 3 could not be written: FileExistsError")


def test_a_full_disk_raises_what_saving_expects(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(FILE_ERRORS):
            write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_scalars_that_cannot_be_written_do_not_raise(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path, "none", "run", {})
    with scalars._file, open("/dev/full", "w", buffering=1) as full:
        scalars._file = full
        scalars.log(1, 0.0, {"loss": 1.0})
        scalars.close()
    assert scalars.failure.startswith("scalars.jsonl: OSError") and scalars.latest == {"loss": 1.0}


@pytest.mark.parametrize("broken", ["_write_part", "close"])
def test_a_trace_that_cannot_be_written_ends_the_run_with_a_checkpoint(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    whole, calls = getattr(TraceWriter, broken), [0]

    def full(*given: Any) -> Any:
        calls[0] += 1
        if broken == "close" or calls[0] > 12:
            raise FULL
        return whole(*given)

    monkeypatch.setattr(recording, "_EVERY_S", 0.0)
    monkeypatch.setattr(TraceWriter, broken, full)
    summary = trained(case, tmp_path, training={"save_every": 0})
    assert saved_in(tmp_path, summary)
    told = summary["training"]["broken"]
    assert summary["failures"] == [told] and "trace.parquet" in told and "No space left" in told
    if broken == "_write_part":
        assert summary["stop_reason"] == "interrupted" and summary["batches"]["trained"] < 12


def test_a_run_whose_folder_vanishes_saves_and_ends(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr(recording, "_EVERY_S", 0.0)
    removed: list[float] = []

    def meddle(crew: ProcessCrew, worker: Worker, message: object) -> bool:
        if not removed and type(message).__name__ == "Apply":
            removed.append(time.monotonic())
            shutil.rmtree(tmp_path / "run")
        return True

    summary = trained(case, tmp_path / "run", meddled(meddle))
    assert saved_in(tmp_path / "run", summary) and summary["training"]["broken"]


def test_held_out_figures_that_are_not_finite_are_null_and_told(case: Path, tmp_path: Path) -> None:
    wild = {"learning_rate": 1e30, "clip": 1e30, "warmup": 0, "save_every": 4}
    summary = trained(case, tmp_path, training=wild, data={"held_out": 0.2})
    kept = json.loads((find(tmp_path) / NAME).read_text())
    assert kept["held_out"]["held_out_loss"] is None and read(find(tmp_path)).held_out["held_out_loss"] is None
    assert any("held_out_loss" in failure and "not finite" in failure for failure in summary["failures"])


def test_a_training_whose_gradients_stay_broken_ends_with_what_it_had(case: Path, tmp_path: Path) -> None:
    wild = {"learning_rate": 1e300, "clip": 1e30, "warmup": 0, "save_every": 0}
    summary = trained(case, tmp_path, training=wild, data={"epochs": 9})
    assert summary["batches"]["trained"] < summary["batches"]["planned"] and saved_in(tmp_path, summary)
    assert summary["training"]["broken"] == summary["failures"][-1] and "not finite" in summary["failures"][-1]


POLICY = (
    "from policies.builtin import Shared\n"
    "class Late(Shared):\n"
    "    def put(self, producer, batch, view):\n"
    "        if batch >= 6:\n"
    "            raise RuntimeError('too late')\n"
    "        return super().put(producer, batch, view)\n"
)


@pytest.mark.parametrize("saves", [True, False])
def test_a_policy_that_fails_in_mid_run_costs_nothing_that_was_learnt(
    saves: bool, case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Through the command: also what its exit status says of it, and of a checkpoint that is missing."""
    (tmp_path / "latemod.py").write_text(POLICY)
    monkeypatch.syspath_prepend(str(tmp_path))
    file, folder = tmp_path / "file.json", tmp_path / "run"
    file.write_text(json.dumps(training_file(case, dispatch={"policy": "latemod:Late"} if saves else {})))
    hire = HIRED if saves else at(Save, signal.SIGKILL, "drafter", 0)
    monkeypatch.setattr(training, "processes", lambda: hire)
    assert guarded(app, ["train", str(file), "-o", str(folder), "--json"]) == 3
    said = capfd.readouterr()
    summary = json.loads(said.out)
    assert (folder / "summary.json").read_text() == said.out
    if saves:
        assert summary["stop_reason"] == "interrupted" and saved_in(folder, summary)
        (failure,) = summary["failures"]
        assert failure.startswith("dispatch.policy: latemod:Late") and "too late" in failure
    else:
        assert summary["stop_reason"] == "data_exhausted" and summary["training"]["unsaved"]

"""The smallest tiny example through the real command: train, resume on another topology, replay; interrupts."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dflash_run.tiny.making import make_tiny  # noqa: E402
from dflash_run.tiny.sizes import SMALLEST  # noqa: E402
from dflash_run.training.checkpoint import find, read  # noqa: E402
from dflash_sim.cli import app, guarded  # noqa: E402
from tests.helpers import check_identities  # noqa: E402
from tests.run.training.commands import descendants, living, run, start, strict_json, wait_until  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "examples" / "tiny" / "pipeline.yaml"
FAST = ("--set", "model.taps=[0, 1]", "--set", "training.anchors=4", "--set", "training.log_every=1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's file and the smallest target and data."""
    folder = tmp_path_factory.mktemp("tiny")
    shutil.copy(EXAMPLE, folder)
    make_tiny(folder / "made", SMALLEST, told=lambda text: None)
    return folder


def test_a_training_stops_goes_on_elsewhere_and_is_replayed(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = ("--set", "data.epochs=1", "--set", "stop.max_steps=3", "--json")
    status, out, err = run("train", tiny / "pipeline.yaml", *FAST, *limits, folder=tmp_path)
    assert status == 0 and "Error" not in err and "Warning" not in err, err
    first, folder = strict_json(out), tmp_path / "runs" / "tiny"
    check_identities(first)
    assert (folder / "summary.json").read_text() == out
    assert first["stop_reason"] == "max_steps" and first["batches"]["trained"] == first["optimizer_steps"] == 3
    scalars = [strict_json(line) for line in (folder / "scalars.jsonl").read_text().splitlines()]
    assert [line["step"] for line in scalars if "loss" in line] == [1, 2, 3]
    assert scalars[-1]["held_out_loss"] == first["training"]["figures"]["held_out_loss"]
    kept = read(find(folder))
    assert kept.step == 3 and len(kept.batches()) == 3 and (folder / "checkpoints" / "best").is_symlink()

    changes = ("--set", "topology.targets=2", "--set", "stop.max_steps=null", "--json")
    status, out, err = run("train", tiny / "pipeline.yaml", *FAST, *limits[:2], *changes[:2], "--json",
                           "--resume", folder, folder=tmp_path)  # fmt: skip
    assert status == 0, err
    second, beside = strict_json(out), tmp_path / "runs" / "tiny-2"
    check_identities(second)
    assert second["stop_reason"] == "data_exhausted" and second["training"]["trained_before"] == 3
    assert second["batches"]["trained"] == kept.planned - 3
    assert read(find(beside)).batches() == set(range(kept.planned))
    for each in (folder, beside):
        assert guarded(app, ["replay", str(each)]) == 0
    assert capfd.readouterr().out.count("equal: ") == 2


def _training(tiny: Path, folder: Path, *more: str) -> "subprocess.Popen[str]":
    """A training that would go on for long."""
    given = ("--set", "data.epochs=2000", "--set", "training.log_every=1", "-o", str(folder), "--json", *more)
    return start("train", tiny / "pipeline.yaml", *FAST, *given, folder=folder.parent)


def _lines(folder: Path) -> int:
    file = folder / "scalars.jsonl"
    return len(file.read_text().splitlines()) if file.is_file() else 0


@pytest.mark.slow
def test_an_interrupt_saves_a_checkpoint_and_ends_with_130(tiny: Path, tmp_path: Path) -> None:
    process = _training(tiny, tmp_path / "run")
    wait_until(lambda: _lines(tmp_path / "run") > 3)
    below = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    summary, kept = strict_json(out), read(find(tmp_path / "run"))
    check_identities(summary)
    assert summary["stop_reason"] == "interrupted" and "Traceback" not in err
    assert len(kept.batches()) == summary["batches"]["trained"] == kept.step
    assert len(below) >= 2
    wait_until(lambda: not living(below), within_s=5)


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once_and_leaves_no_process(tiny: Path, tmp_path: Path) -> None:
    process = _training(tiny, tmp_path / "run")
    wait_until(lambda: _lines(tmp_path / "run") > 3)
    below = descendants(process.pid)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and time.monotonic() - begun < 10 and "Traceback" not in err, err
    wait_until(lambda: not living(below), within_s=5)


@pytest.mark.slow
def test_an_interrupt_of_the_terminal_while_workers_start_ends_quietly(tiny: Path, tmp_path: Path) -> None:
    """A terminal's Ctrl-C goes to the workers, too."""
    import os

    process = _training(tiny, tmp_path / "run")
    wait_until(lambda: len(descendants(process.pid)) >= 3)  # two workers and multiprocessing's tracker
    below = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert strict_json(out)["stop_reason"] == "interrupted"
    wait_until(lambda: not living(below), within_s=5)

"""Trainings that count only as a whole: a part of a run is nothing that a prediction could be held against."""

from pathlib import Path
from typing import Any

from dflash_run.training.preparation import Preparation
from dflash_run.training.train import train
from dflash_run.validation.kept import cut_short
from dflash_sim.interrupts import interruptible
from dflash_sim.prediction import summary_of


class IncompleteRun(Exception):
    """A run ended before its data did, or without one of its workers; its text, one line, says how."""


def train_whole(prepared: Preparation, folder: Path, *, kind: str = "training", **more: Any) -> dict[str, Any]:
    """`train`; returns the summary. Raises KeyboardInterrupt where somebody asked for the end, and IncompleteRun."""
    with interruptible() as asked:
        run, told = train(prepared, folder, kind=kind, interrupted=asked, **more)
    if asked():
        raise KeyboardInterrupt
    summary = summary_of(run, kind=kind, **told)
    broken = summary["training"]["broken"]
    if why := [*cut_short(summary), *([str(broken)] if broken else [])]:
        raise IncompleteRun("; ".join([*why, *summary["failures"]]))
    return summary

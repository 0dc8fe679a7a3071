"""Checkpoints: a folder each, complete or not there at all, with one file that says what it is.

    checkpoints/step-00000120/checkpoint.json       this module's `Checkpoint`, as JSON
                              weights.safetensors    float32 master weights
                              optimizer.safetensors  AdamW's moments and counters
    checkpoints/best -> step-00000120               the one of the largest held-out expected accepted length

A drafter writes the tensors into a folder whose name begins with a dot; the launcher adds `checkpoint.json` and
renames the folder. Anchors, order and schedule are functions of the seed and of what is trained: there is
no other random state.
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from dflash_run.jsonfile import read_mapping
from policies.faults import Fault, PipelineError

NAME: Final = "checkpoint.json"
"""The file in a checkpoint's folder that says what it is."""
FOLDER: Final = "checkpoints"
BEST: Final = "best"
FORMAT: Final = 1
METRIC: Final = "held_out_expected_accepted_length"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is known of a checkpoint beside its tensors."""

    step: int
    """Optimizer steps since the training began, resumed ones included."""
    trained: tuple[tuple[int, int], ...]
    """Trained batches of the plan: first and last of each run of numbers, rising."""
    planned: int
    """Batches of the plan, all epochs."""
    plan_hash: str
    """Of the batch plan."""
    corpus_hash: str
    """Of the tokens."""
    config: dict[str, Any]
    """The resolved pipeline."""
    versions: dict[str, str]
    held_out: dict[str, float] = field(default_factory=dict)
    """Held-out figures at this step, where they were measured."""
    lineage: tuple[dict[str, Any], ...] = ()
    """The checkpoints that it descends from, oldest first: path and step."""
    random: dict[str, int] = field(default_factory=dict)
    """The seed, which with `trained` is all random state."""
    format: int = FORMAT

    def batches(self) -> set[int]:
        """The trained batches of the plan."""
        return {batch for first, last in self.trained for batch in range(first, last + 1)}


def runs_of(batches: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """A set of numbers as (first, last) of each run."""
    found: list[list[int]] = []
    for batch in sorted(batches):
        if found and batch == found[-1][1] + 1:
            found[-1][1] = batch
        else:
            found.append([batch, batch])
    return tuple((first, last) for first, last in found)


class Checkpoints:
    """The checkpoints of one run's folder."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self._keep = keep
        self._best: float | None = None
        for unfinished in self.folder.glob(".step-*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def begin(self, step: int) -> str:
        """A folder, not made yet, for the tensors of a step."""
        return str(self.folder / f".step-{step:08d}")

    def complete(self, folder: str, checkpoint: Checkpoint) -> Path:
        """The tensors are written: the checkpoint is there from now on. Raises OSError."""
        making = Path(folder)
        text = json.dumps(asdict(checkpoint), indent=1, allow_nan=False) + "\n"
        with (making / NAME).open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        made = making.with_name(making.name.removeprefix("."))
        if made.exists():
            shutil.rmtree(made)
        making.rename(made)
        self._note_best(made, checkpoint)
        self._prune()
        return made

    def _note_best(self, made: Path, checkpoint: Checkpoint) -> None:
        value = checkpoint.held_out.get(METRIC)
        if value is None or (self._best is not None and value <= self._best):
            return
        self._best = value
        link = self.folder / f".{BEST}"
        link.unlink(missing_ok=True)
        link.symlink_to(made.name)
        link.replace(self.folder / BEST)

    def _prune(self) -> None:
        """Remove all but the newest `keep`; the best one stays."""
        best = (self.folder / BEST).resolve()
        for old in complete_in(self.folder)[: -self._keep]:
            if old.resolve() != best:
                shutil.rmtree(old, ignore_errors=True)


def complete_in(folder: Path) -> list[Path]:
    """The checkpoints of a `checkpoints` folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / NAME).is_file())


def set_aside(folder: Path) -> Path | None:
    """Move the checkpoints of an earlier training out of the way of a new one in the same folder; where they are.

    They must be neither mixed with the new ones nor lost.
    """
    ours = folder / FOLDER
    if not complete_in(ours):
        return None
    number = 1
    while (aside := folder / f"{FOLDER}-{number}").exists():
        number += 1
    return ours.rename(aside)


def find(path: Path) -> Path:
    """The checkpoint that a user means: one itself, or the newest of a run. Raises PipelineError."""
    if (path / NAME).is_file():
        return path
    for folder in (path / FOLDER, path):
        found = complete_in(folder) if folder.is_dir() else []
        if found:
            return found[-1]
    rule = "must be a run's folder or a checkpoint: there is none"
    raise PipelineError([Fault("--resume", str(path), rule, "give a folder that holds checkpoints/step-…")])


def read(folder: Path) -> Checkpoint:
    """What a checkpoint's folder says of itself. Raises PipelineError."""
    try:
        return _built(read_mapping(folder / NAME))
    except (OSError, ValueError, TypeError, KeyError) as error:
        rule = f"must be a whole checkpoint ({error})"
        raise PipelineError([Fault("--resume", str(folder), rule, "take an earlier one")]) from None


def _built(content: dict[str, Any]) -> Checkpoint:
    if content.get("format") != FORMAT:
        raise ValueError(f"{NAME} has format {content.get('format')!r}, not {FORMAT}")
    values = dict(content)
    values["trained"] = tuple((int(first), int(last)) for first, last in values["trained"])
    values["lineage"] = tuple(values.get("lineage", ()))
    return Checkpoint(**values)

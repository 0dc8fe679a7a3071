"""Checkpoints: a folder each, complete or not there at all, with one file that says what it is.

    checkpoints/step-00000120/checkpoint.json       this module's `Checkpoint`, as JSON
                              weights.safetensors    float32 master weights
                              optimizer.safetensors  AdamW's moments and counters
    checkpoints/best -> step-00000120               the one of the largest held-out expected accepted length

A drafter writes the tensors into a folder whose name begins with a dot; the launcher adds `checkpoint.json` and
renames the folder. Anchors, order and schedule are functions of the seed and of what is trained: there is
no other random state.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

from dflash_run.jsonfile import read_mapping
from dflash_run.training.soundness import unsound
from policies.faults import ABSENT, Fault, PipelineError, shown

NAME: Final = "checkpoint.json"
"""The file in a checkpoint's folder that says what it is."""
FOLDER: Final = "checkpoints"
BEST: Final = "best"
FORMAT: Final = 1
METRIC: Final = "held_out_expected_accepted_length"
_MOST_BYTES: Final = 1 << 26
_EARLIER: Final = "take an earlier one"


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
    held_out: dict[str, float | None] = field(default_factory=dict)
    """Held-out figures at this step, where they were measured; None: not a finite number."""
    lineage: tuple[dict[str, Any], ...] = ()
    """The checkpoints that it descends from, oldest first: path and step."""
    random: dict[str, int] = field(default_factory=dict)
    """The seed, which with `trained` is all random state."""
    shape: dict[str, Any] = field(default_factory=dict)
    """The drafter's and its target's sizes (`DrafterShape`)."""
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
        self._made: list[Path] = []
        """Those of this run, in order: no others are ever removed."""
        self._best: float | None = None
        self._begun = 0
        remove_unfinished(folder)

    def begin(self, step: int) -> str:
        """A folder, not made yet, for the tensors of a step."""
        self._begun += 1
        return str(self.folder / f".step-{step:08d}.{self._begun}")

    def forget(self, folder: str) -> None:
        """What was begun there is not completed."""
        shutil.rmtree(folder, ignore_errors=True)

    def complete(self, folder: str, checkpoint: Checkpoint) -> Path:
        """The tensors are written: the checkpoint is there from now on. Raises OSError."""
        making = Path(folder)
        finite = {name: _finite(value) for name, value in checkpoint.held_out.items()}
        checkpoint = replace(checkpoint, held_out=finite)
        text = json.dumps(asdict(checkpoint), indent=1, allow_nan=False) + "\n"
        with (making / NAME).open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        made = making.with_name(f"step-{checkpoint.step:08d}")
        if made.exists():
            raise FileExistsError(f"{made} is of another training")
        making.rename(made)
        self._made.append(made)
        with contextlib.suppress(OSError):  # it is saved, even where links cannot be made
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
        """Remove all of this run but the newest `keep`; the best one stays."""
        best = (self.folder / BEST).resolve()
        for old in self._made[: -self._keep]:
            if old.resolve() != best:
                shutil.rmtree(old, ignore_errors=True)


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def remove_unfinished(folder: Path) -> None:
    """What drafters that died had begun to write into a run's folder."""
    for unfinished in (folder / FOLDER).glob(".step-*"):
        shutil.rmtree(unfinished, ignore_errors=True)


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
    remove_unfinished(folder)
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
    path, whole = folder / NAME, "must be a whole checkpoint"
    try:
        content = _content(path)
    except (OSError, ValueError) as error:
        raise PipelineError([Fault("--resume", str(folder), f"{whole} ({error})", _EARLIER)]) from None
    faults = [
        Fault("--resume", content.get(key, ABSENT), f"{whole}: in {path} `{key}` must be {what}", _EARLIER)
        for key, what in unsound(content)
    ]
    if faults:
        raise PipelineError(faults)
    lists = {"trained": tuple(map(tuple, content["trained"])), "lineage": tuple(content.get("lineage", ()))}
    return Checkpoint(**content | lists)


def _content(path: Path) -> dict[str, Any]:
    """Raises OSError and ValueError."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{NAME} is larger than {_MOST_BYTES >> 20} MB")
    content = read_mapping(path)
    if type(content.get("format")) is not int or content["format"] != FORMAT:
        raise ValueError(f"{NAME} has format {shown(content.get('format'))}, not {FORMAT}")
    return content

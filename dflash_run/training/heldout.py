"""The held-out samples' hidden states: which targets compute them, and which files are there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dflash_run.briefing import Posts
from dflash_run.training.messages import HeldOut, HoldOut

HELD_OUT_BATCH: Final = 4
"""Held-out samples that are computed at a time."""


class HeldOutFiles:
    """Only what was computed in this run is evaluated on."""

    def __init__(self, samples: Sequence[int], folder: Path) -> None:
        """samples: corpus ids."""
        self._chunks: dict[str, tuple[int, ...]] = {}
        for at in range(0, len(samples), HELD_OUT_BATCH):
            chunk = tuple(int(each) for each in samples[at : at + HELD_OUT_BATCH])
            name = "_".join(["held", *map(str, chunk)])
            self._chunks[str(folder / f"{name}.safetensors")] = chunk
        self._asked: dict[str, int] = {}
        """The target that each file was asked of."""
        self._heard: dict[str, str] = {}
        """Why each file could not be written; nothing where it is there."""

    def asks(self, targets: Sequence[int]) -> Posts:
        """What is still missing and was asked of nobody who lives. `targets` live."""
        for path, samples in self._chunks.items():
            if targets and path not in self._heard and self._asked.get(path) not in targets:
                self._asked[path] = targets[0]
                yield ("target", targets[0]), HoldOut(samples, path)

    def heard(self, answer: HeldOut) -> None:
        """A target answered."""
        self._heard[answer.path] = answer.why

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that are there."""
        return tuple(path for path in self._chunks if self._heard.get(path) == "")

    def failures(self) -> list[str]:
        """What is left out of every evaluation, in words."""
        whys = [why for why in self._heard.values() if why]
        if not whys:
            return []
        left = sum(len(self._chunks[path]) for path, why in self._heard.items() if why)
        total = sum(map(len, self._chunks.values()))
        return [f"{left} of {total} held-out samples are left out of evaluations: {whys[0]}"]

"""Loss, expected accepted length and the rest over the steps: a line each in `scalars.jsonl`, and in a tracker."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

FILE: Final = "scalars.jsonl"


class Scalars:
    """Writes as the run goes; a killed run keeps its lines. `tracker`: tensorboard, wandb or none."""

    def __init__(self, folder: Path, tracker: str, name: str, config: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / FILE).open("w", encoding="ascii", buffering=1)
        self._tracker = _tracker(folder, tracker, name, config)
        self.latest: dict[str, float] = {}
        """The last value of each figure."""
        self.failure = ""
        """Why lines are missing; empty: none are."""

    def log(self, step: int, time_s: float, values: Mapping[str, float], drafter: int | None = None) -> None:
        """One line; `step` counts optimizer steps, `time_s` from the start of the run. `drafter`: None: of all."""
        self.latest.update(values)
        whose = {} if drafter is None else {"drafter": drafter}
        finite = {name: value if _finite(value) else None for name, value in values.items()}
        line = json.dumps({"step": step, "time_s": time_s, **whose, **finite}, allow_nan=False) + "\n"
        self._try(FILE, lambda: self._file.write(line))
        if self._tracker is not None:
            told = whose | {name: value for name, value in finite.items() if value is not None}
            self._try("training.tracker", lambda: self._tracker.log(told, step=step))

    def close(self) -> None:
        """No more lines."""
        self._try(FILE, self._file.close)
        if self._tracker is not None:
            self._try("training.tracker", self._tracker.finish)

    def _try(self, what: str, act: Callable[[], object]) -> None:
        """A full disk, or a tracker's server, must not end a run."""
        try:
            act()
        except Exception as error:
            self.failure = self.failure or f"{what}: {type(error).__name__}: {error}; lines may be missing"


def _finite(value: float) -> bool:
    return float("-inf") < value < float("inf")


def _tracker(folder: Path, name: str, run: str, config: Mapping[str, Any]) -> Any:
    """accelerate's trackers: one interface to all that it knows."""
    if name == "none":
        return None
    from accelerate import PartialState
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    PartialState(cpu=True)  # the launcher takes no part in the GPUs' work
    if name == "wandb":
        tracker: Any = WandBTracker(run, dir=str(folder))
        tracker.start()
        tracker.store_init_configuration(dict(config))
        return tracker
    tracker = TensorBoardTracker("tensorboard", logging_dir=str(folder))
    tracker.start()
    return tracker

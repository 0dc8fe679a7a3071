"""What service times are drawn from, as protocols: the file, the batch plan, measured timings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash_sim.draws import FloatArray

IntArray = NDArray[np.int64]
PerWorker = float | Sequence[float]


class BatchPlan(Protocol):
    """What is needed of the batch plan; the arrays hold one value per batch, in planned order."""

    @property
    def count(self) -> int: ...
    @property
    def samples(self) -> IntArray: ...
    @property
    def length(self) -> IntArray: ...
    @property
    def slots(self) -> IntArray: ...
    @property
    def target_factor(self) -> FloatArray: ...
    @property
    def drafter_factor(self) -> FloatArray: ...


class RoleTimings(Protocol):
    """`timings.target` or `timings.drafter` of the file (checked: a list has one value per worker)."""

    @property
    def seconds(self) -> PerWorker | None: ...
    @property
    def tokens_per_second(self) -> PerWorker | None: ...
    @property
    def cv(self) -> float | None: ...
    @property
    def distribution(self) -> Any: ...
    @property
    def first_seconds(self) -> PerWorker | None: ...


class LoaderTimings(Protocol):
    """`timings.loader` of the file."""

    @property
    def seconds(self) -> float | None: ...
    @property
    def cv(self) -> float | None: ...
    @property
    def distribution(self) -> Any: ...


class StepTimings(Protocol):
    """`timings.step` of the file."""

    @property
    def seconds(self) -> float | None: ...


class TransferTimings(Protocol):
    """`timings.transfer` of the file: one of the two is set."""

    @property
    def seconds(self) -> float | None: ...
    @property
    def bytes_per_second(self) -> float | None: ...


class Timings(Protocol):
    """The `timings:` section of the file."""

    @property
    def target(self) -> RoleTimings | None: ...
    @property
    def drafter(self) -> RoleTimings | None: ...
    @property
    def loader(self) -> LoaderTimings | None: ...
    @property
    def transfer(self) -> TransferTimings | None: ...
    @property
    def step(self) -> StepTimings | None: ...


class Measured(Protocol):
    """Measured timings, as `dflash_sim.timings.MeasuredTimes` gives them.

    `u` holds uniform draws in [0, 1), one per value wanted; None means "not measured".
    """

    @property
    def has_transfers(self) -> bool: ...
    @property
    def has_steps(self) -> bool: ...
    def batch_seconds(self, role: str, plan: BatchPlan, u: FloatArray) -> FloatArray: ...
    def worker_factors(self, role: str, workers: int) -> Sequence[float]: ...
    def first_seconds(self, role: str, u: FloatArray) -> FloatArray | None: ...
    def loader_seconds(self, u: FloatArray) -> FloatArray | None: ...
    def step_seconds(self, u: FloatArray) -> FloatArray | None: ...
    def transfer_seconds(
        self, u: FloatArray, plan: BatchPlan, batch_bytes: FloatArray | None
    ) -> FloatArray | None: ...

"""Measured timings as service times, and the bootstrap of a profile.

`MeasuredTimes` is what `service_times(measured=…)` takes: profiled shapes are resampled, others modelled, and
`used` counts which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_sim.draws import FloatArray
from dflash_sim.service_inputs import BatchPlan
from dflash_sim.timings_file import Profile, RoleProfile, TimingsError
from dflash_sim.timings_table import RoleTable, Use, pick


class MeasuredTimes:
    """Times drawn from a profile. `used` says, by role, where those of the last `batch_seconds` came from.

    `anchors` is the run's `training.anchors`; it may be left out where the profile has one value only.
    """

    def __init__(self, profile: Profile, *, anchors: int | None = None) -> None:
        self.profile = profile
        self.anchors = anchors
        self.used: dict[str, Use] = {}
        self._tables: dict[str, RoleTable] = {}

    @property
    def has_transfers(self) -> bool:
        """Whether copies were measured."""
        return self.profile.transfer is not None

    @property
    def has_steps(self) -> bool:
        """Whether optimizer steps were measured."""
        return self.profile.step is not None

    def batch_seconds(self, role: str, plan: BatchPlan, u: FloatArray) -> FloatArray:
        """Seconds of every batch, float64[count], from one uniform draw each. Raises TimingsError."""
        table = self._tables.get(role)
        if table is None:
            table = self._tables[role] = RoleTable(role, self._role(role), self.anchors)
        seconds, self.used[role] = table.seconds(plan.slots, plan.length, u)
        return seconds

    def worker_factors(self, role: str, workers: int) -> Sequence[float]:
        factors = self._role(role).worker_factors
        if factors and len(factors) != workers:
            rule = f"the topology has {workers} {role}s; measure this topology"
            raise TimingsError([f"{role}.worker_factors: {len(factors)} values: {rule}"])
        return factors or [1.0] * workers

    def first_seconds(self, role: str, u: FloatArray) -> FloatArray | None:
        return pick(self._role(role).first_seconds, u)

    def loader_seconds(self, u: FloatArray) -> FloatArray | None:
        return None if self.profile.loader is None else pick(self.profile.loader.seconds, u)

    def step_seconds(self, u: FloatArray) -> FloatArray | None:
        return None if self.profile.step is None else pick(self.profile.step.seconds, u)

    def transfer_seconds(
        self, u: FloatArray, plan: BatchPlan, batch_bytes: FloatArray | None
    ) -> FloatArray | None:
        """Bytes over bandwidth where both are known, since the size matters; else measured seconds."""
        transfer = self.profile.transfer
        if transfer is None:
            return None
        if batch_bytes is None and self.profile.hidden_bytes_per_token is not None:
            per_token = self.profile.hidden_bytes_per_token
            batch_bytes = np.asarray(plan.slots * per_token, dtype=np.float64)
        bandwidth = pick(transfer.bytes_per_second, u)
        if bandwidth is not None and batch_bytes is not None:
            return batch_bytes / bandwidth
        seconds = pick(transfer.seconds, u)
        if seconds is None and bandwidth is not None:
            rule = "transfer.bytes_per_second needs it; set memory.hidden_bytes_per_token"
            raise TimingsError([f"hidden_bytes_per_token: missing: {rule}"])
        return seconds

    def _role(self, role: str) -> RoleProfile:
        profile = self.profile.target if role == "target" else self.profile.drafter
        if profile is None:
            rule = f"no {role} was measured; measure one and put both together with `dflash-sim fit`"
            raise TimingsError([f"{role}.samples: missing: {rule}"])
        return profile


def resample_profile(profile: Profile, rng: np.random.Generator) -> Profile:
    """The bootstrap of the profile: every list of raw samples drawn anew from itself, with replacement.

    One such profile per replication carries the uncertainty of the measurement into the prediction. A list of
    one sample stays what it is: how uncertain it is cannot be known.
    """

    def again(samples: Sequence[float]) -> tuple[float, ...]:
        return tuple(samples[i] for i in rng.integers(len(samples), size=len(samples))) if samples else ()

    def role(part: RoleProfile) -> RoleProfile:
        shapes = tuple(each.model_copy(update={"seconds": again(each.seconds)}) for each in part.samples)
        return part.model_copy(update={"samples": shapes, "first_seconds": again(part.first_seconds)})

    update: dict[str, object] = {}
    for name in ("target", "drafter"):
        part = getattr(profile, name)
        update[name] = None if part is None else role(part)
    for name, fields in (
        ("step", ("seconds",)),
        ("loader", ("seconds",)),
        ("transfer", ("seconds", "bytes_per_second")),
    ):
        part = getattr(profile, name)
        if part is not None:
            update[name] = part.model_copy(update={field: again(getattr(part, field)) for field in fields})
    return profile.model_copy(update=update)

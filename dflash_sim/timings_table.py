"""Looking up the times of all batches in one role's profile: resampled where profiled, else modelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dflash_sim.draws import FloatArray
from dflash_sim.service_inputs import IntArray
from dflash_sim.timings_file import RoleProfile, ShapeSamples, TimingsError
from dflash_sim.timings_model import Shapes, TimeModel, fit_model


@dataclass(frozen=True)
class Use:
    """Where the times of a role's batches came from: resampled + modelled + extrapolated = batches."""

    role: str
    batches: int
    resampled: int
    """Batches of a profiled shape: raw samples of that shape."""
    modelled: int
    """Other shapes within the profiled slots and lengths: model × residual noise."""
    extrapolated: int
    """As modelled, but outside the profiled slots or lengths: take them with care."""
    shapes: int
    """Shapes that were profiled."""
    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    fit_error: float
    """Root mean square relative error of the model at the profiled shapes."""

    def text(self) -> str:
        """One sentence for people."""
        told = f"{self.role}: {self.resampled} of {self.batches} batches resampled (shapes: {self.shapes})"
        if self.resampled == self.batches:
            return told
        told += f", {self.modelled} modelled over {' + '.join(self.terms)} (error {self.fit_error:.1%})"
        return told + (f", {self.extrapolated} extrapolated beyond the profile" if self.extrapolated else "")

    def doubt(self) -> str | None:
        """A sentence for people where the times of modelled batches may be far off."""
        others = self.batches - self.resampled
        if not others or self.fit_error <= DOUBTED:
            return self._beyond()
        return (
            f"{self.role}: {others} of {self.batches} batches have times of a model that is {self.fit_error:.0%} off "
            "at the profiled shapes, and the prediction may be as far off; profile again on an idle machine"
        )

    def _beyond(self) -> str | None:
        if self.extrapolated <= BEYOND * self.batches:
            return None
        return (
            f"{self.role}: {self.extrapolated} of {self.batches} batches lie beyond all that was profiled; "
            "profile with these data"
        )


DOUBTED: Final = 0.2
"""A model's error above this is told."""
BEYOND: Final = 0.5
"""So is a larger share of extrapolated batches: a few at the ends of the range are usual."""
Mask = NDArray[np.bool_]
Shape = tuple[int, int, int | None]
"""(padded slots, padded length, anchors a sample)."""

_BLOCK = 32_768


class RoleTable:
    """One role's profile, arranged for looking up all batches at once."""

    def __init__(self, role: str, profile: RoleProfile, anchors: int | None) -> None:
        pools = pool_shapes(profile.samples)
        known = sorted({shape[2] for shape in pools if shape[2] is not None})
        self.role = role
        self.anchors = _choose_anchors(role, known, anchors)
        self.anchors_profiled = not known or known[0] <= (self.anchors or 0) <= known[-1]
        self.model = _fit(pools, varied=len(known) > 1)
        self.shapes = len(pools)
        self.slots = np.unique([shape[0] for shape in pools])
        self.lengths = np.unique([shape[1] for shape in pools])
        self._arrange({shape: pool for shape, pool in pools.items() if shape[2] in (None, self.anchors)})

    def _arrange(self, exact: dict[Shape, FloatArray]) -> None:
        """All raw samples in one array, and a grid (slots, length) → where its samples start and how many."""
        self.start = np.zeros((self.slots.size, self.lengths.size), dtype=np.int64)
        self.size = np.zeros_like(self.start)
        by_cell: dict[tuple[int, int], list[FloatArray]] = {}
        for (slots, length, _), pool in exact.items():
            cell = (int(np.searchsorted(self.slots, slots)), int(np.searchsorted(self.lengths, length)))
            by_cell.setdefault(cell, []).append(pool)
        pools = []
        for cell, parts in by_cell.items():
            # Ascending, so that a batch slow in one profile is slow in another: common random numbers.
            pools.append(np.sort(np.concatenate(parts)))
            self.start[cell] = sum(each.size for each in pools[:-1])
            self.size[cell] = pools[-1].size
        self.pool = np.concatenate(pools) if pools else np.empty(0)

    def seconds(self, slots: IntArray, length: IntArray, u: FloatArray) -> tuple[FloatArray, Use]:
        """Times of the batches, float64[n], from one uniform draw each, and where they came from."""
        seconds = np.empty(u.size)
        resampled = extrapolated = 0
        # In blocks that stay in the cache: twice as fast, and no big temporaries on long runs.
        for start in range(0, u.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            exact, inside = self._fill(seconds[block], slots[block], length[block], u[block])
            resampled += int(exact.sum())
            extrapolated += int((~exact & ~inside).sum())
        return seconds, self._use(u.size, resampled, extrapolated)

    def _fill(
        self, seconds: FloatArray, slots: IntArray, length: IntArray, u: FloatArray
    ) -> tuple[Mask, Mask]:
        """Write the times of a block; which of its batches were profiled, which lie in the profiled range."""
        row = np.searchsorted(self.slots, slots).clip(max=self.slots.size - 1)
        column = np.searchsorted(self.lengths, length).clip(max=self.lengths.size - 1)
        size = self.size[row, column]
        exact = (self.slots[row] == slots) & (self.lengths[column] == length) & (size > 0)
        index = self.start[row, column] + _index(u, size)
        seconds[exact] = self.pool[index[exact]]
        other = ~exact
        if other.any():
            seconds[other] = self._modelled(slots[other], length[other], u[other])
        return exact, _within(slots, self.slots) & _within(length, self.lengths) & self.anchors_profiled

    def _modelled(self, slots: IntArray, length: IntArray, u: FloatArray) -> FloatArray:
        anchors = np.full(u.size, float(self.anchors or 0))
        shapes = Shapes(slots.astype(np.float64), np.maximum(length, 1).astype(np.float64), anchors)
        residuals = self.model.residuals
        return self.model.predict(shapes) * residuals[_index(u, residuals.size)]

    def _use(self, batches: int, resampled: int, extrapolated: int) -> Use:
        return Use(
            role=self.role,
            batches=batches,
            resampled=resampled,
            modelled=batches - resampled - extrapolated,
            extrapolated=extrapolated,
            shapes=self.shapes,
            terms=self.model.terms,
            coefficients=tuple(self.model.coefficients.tolist()),
            fit_error=self.model.error,
        )


def pool_shapes(samples: Sequence[ShapeSamples]) -> dict[Shape, FloatArray]:
    """All raw samples of each shape, in the order in which the shapes first appear."""
    pools: dict[Shape, list[float]] = {}
    for each in samples:
        shape = (each.batch_size * each.length, each.length, each.anchors)
        pools.setdefault(shape, []).extend(each.seconds)
    return {shape: np.array(pool) for shape, pool in pools.items()}


def _fit(pools: dict[Shape, FloatArray], varied: bool) -> TimeModel:
    """Where anchors vary, shapes of unknown anchors cannot take part."""
    taking_part = {shape: pool for shape, pool in pools.items() if not varied or shape[2] is not None}
    table = np.array([(shape[0], shape[1], shape[2] or 0) for shape in taking_part], dtype=np.float64)
    return fit_model(Shapes(*table.T), list(taking_part.values()))


def _choose_anchors(role: str, known: list[int], wanted: int | None) -> int | None:
    """The run's anchors; a profile that held them at one other value says nothing about them."""
    measured = ", ".join(map(str, known))
    if wanted is None and len(known) > 1:
        raise TimingsError([f"training.anchors: missing: {role} was measured with {measured}; set it"])
    if wanted is not None and len(known) == 1 and wanted != known[0]:
        raise TimingsError(
            [f"training.anchors: {wanted}: {role} was measured with {measured}; measure again, or set that"]
        )
    return known[0] if wanted is None and known else wanted


def _within(values: IntArray, profiled: IntArray) -> Mask:
    inside: Mask = (values >= profiled[0]) & (values <= profiled[-1])
    return inside


def _index(u: FloatArray, size: IntArray | int) -> IntArray:
    """floor(u·size), never `size` itself, which rounding could give."""
    index: IntArray = np.minimum((u * size).astype(np.int64), np.maximum(size, 1) - 1)
    return index


def pick(samples: Sequence[float], u: FloatArray) -> FloatArray | None:
    """One of the samples for each uniform draw, or None where there are none."""
    if not samples:
        return None
    ascending = np.sort(np.array(samples, dtype=np.float64))
    return ascending[_index(u, ascending.size)]

"""Which batches are measured: a few of the plan's own, spread over its sizes."""

from dataclasses import dataclass

import numpy as np

from policies.batches import BatchPlan

SHAPES = 5
"""Quantiles of the plan's batches that are measured; the shortest and the longest join them."""


@dataclass(frozen=True)
class Cell:
    """One shape, and a batch of the plan that has it."""

    batch: int
    size: int
    """Samples."""
    length: int
    """Padded length of each, tokens."""

    @property
    def slots(self) -> int:
        return self.size * self.length


def grid(plan: BatchPlan, shapes: int = SHAPES) -> list[Cell]:
    """Cells by rising slots, no shape twice. The extremes are among them, so that no other batch is extrapolated."""
    if not plan.count:
        return []
    order = np.lexsort((plan.length, plan.slots))
    places = np.linspace(0, plan.count - 1, min(shapes, plan.count)).round().astype(np.int64)
    chosen = [int(each) for each in order[places]]
    chosen += [int(np.argmin(plan.length)), int(np.argmax(plan.length))]
    cells: dict[tuple[int, int], Cell] = {}
    for batch in chosen:
        shape = (int(plan.samples[batch]), int(plan.length[batch]))
        cells.setdefault(shape, Cell(batch, *shape))
    return sorted(cells.values(), key=lambda cell: (cell.slots, cell.length))


def middle(cells: list[Cell]) -> Cell:
    """The cell that stands for the typical batch."""
    return cells[len(cells) // 2]

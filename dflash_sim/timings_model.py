"""A model of seconds over the shape of a batch, for shapes that were not profiled.

    seconds = a + b·slots + c·slots·length + d·samples·anchors,        all of a, b, c, d ≥ 0

(slots = samples × length, so c weighs samples × length², the attention.) It has only as many terms as the
profiled shapes can tell apart. What is left over, sample / model, is kept as the model's noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dflash_sim.draws import FloatArray

_ROUNDS = 20


class Shapes(NamedTuple):
    """Shapes of batches, float64[n] each: padded slots, padded length, anchors a sample (0 where unknown)."""

    slots: FloatArray
    length: FloatArray
    anchors: FloatArray

    def column(self, term: str) -> FloatArray:
        """The feature that a term's coefficient multiplies, float64[n]."""
        match term:
            case "slots":
                return self.slots
            case "samples·anchors":
                return self.slots / self.length * self.anchors
            case "1":
                return np.ones_like(self.slots)
            case "slots·length":
                return self.slots * self.length
        raise AssertionError(term)

    def columns(self, terms: tuple[str, ...]) -> FloatArray:
        return np.stack([self.column(term) for term in terms], axis=1)


# In order of importance: a term joins when the shapes can tell it from those before it. Anchors come early:
# they are varied on purpose or not at all.
_TERMS = ("slots", "samples·anchors", "1", "slots·length")


@dataclass(frozen=True)
class TimeModel:
    """A fitted model. `predict(shapes)` gives its mean seconds, float64[n]."""

    terms: tuple[str, ...]
    coefficients: FloatArray
    """One per term, seconds per unit of it."""
    residuals: FloatArray
    """sample / model of every raw sample, ascending; their mean is 1."""
    error: float
    """Root mean square over the shapes of (mean of samples / model − 1)."""

    def predict(self, shapes: Shapes) -> FloatArray:
        predicted = np.zeros_like(shapes.slots)
        for term, coefficient in zip(self.terms, self.coefficients, strict=True):
            if coefficient > 0:
                predicted += coefficient * shapes.column(term)
        return predicted


def fit_model(shapes: Shapes, seconds: list[FloatArray]) -> TimeModel:
    """Fit to the raw samples of each shape; `seconds[i]` are those of shape i (at least one, all above 0).

    Non-negative least squares of the *relative* error, each sample of equal weight. Dividing by the measured
    values would favour those that came out low, so the errors are divided by the model's own values, until
    these settle; then the mean of sample / model is 1 (multiply the normal equations by the coefficients).
    """
    means = np.array([each.mean() for each in seconds])
    counts = np.array([float(each.size) for each in seconds])
    terms = _distinguishable(shapes)
    columns = shapes.columns(terms)
    scale = means.copy()
    for _ in range(_ROUNDS):
        coefficients = _weighted_nnls(columns, means, np.sqrt(counts) / scale)
        # The floor only matters to a fit so poor that it gives nothing at some shape.
        predicted: FloatArray = np.maximum(columns @ coefficients, 1e-3 * means)
        settled = np.allclose(predicted, scale, rtol=1e-12, atol=0)
        scale = predicted
        if settled:
            break
    residuals = np.sort(np.concatenate([each / mean for each, mean in zip(seconds, predicted, strict=True)]))
    error = float(np.sqrt(np.mean((means / predicted - 1) ** 2)))
    return TimeModel(terms, coefficients, residuals, error)


def _weighted_nnls(columns: FloatArray, values: FloatArray, weights: FloatArray) -> FloatArray:
    from scipy.optimize import nnls  # 0.4 s to import, needed for measured timings only

    weighted = columns * weights[:, None]
    # Columns of equal norm: slots·length is millions of times the constant.
    norms = np.linalg.norm(weighted, axis=0)
    solution: FloatArray = nnls(weighted / norms, values * weights)[0] / norms
    return solution


def _distinguishable(shapes: Shapes) -> tuple[str, ...]:
    """The terms that the shapes can tell apart: each must raise the rank of the columns before it."""
    terms: tuple[str, ...] = ()
    for term in _TERMS:
        if term == "samples·anchors" and np.ptp(shapes.anchors) == 0:
            continue  # constant anchors would only be a per-sample term by another name
        columns = shapes.columns((*terms, term))
        if np.linalg.matrix_rank(columns / np.linalg.norm(columns, axis=0), tol=1e-3) > len(terms):
            terms = (*terms, term)
    return terms

"""Random numbers: one stream per entity and purpose, and the noise of service times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Seed = int | Sequence[int]


class Purpose(IntEnum):
    """What a random stream is for. Numbers are part of every result: add new ones, never renumber."""

    TARGET = 1
    DRAFTER = 2
    LOADER = 3
    TRANSFER = 4
    STEP = 5
    TARGET_FIRST = 6
    DRAFTER_FIRST = 7
    PROFILE = 8


def stream(seed: Seed, purpose: int) -> np.random.Generator:
    """The random stream of one purpose in one run.

    `seed` is the file's seed, or (seed, replication); replication 0 draws the same as the bare seed.
    """
    entropy = list(seed) if isinstance(seed, Sequence) else int(seed)
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(int(purpose),)))


def unit_noise(
    rng: np.random.Generator, count: int, cv: float | None, distribution: Any
) -> FloatArray | None:
    """`count` multipliers of mean 1, or None for "always exactly 1".

    `distribution` is None or "constant" (no noise), "exponential", or an object or mapping with `erlang` = k
    (cv 1/√k). A `cv` alone is lognormal: with σ² = ln(1 + cv²), exp(σz − σ²/2) has mean 1 and that cv. Each
    value is drawn in turn from the stream, so a longer draw begins with the shorter one.
    """
    if distribution == "exponential":
        return rng.standard_exponential(count)
    if distribution not in (None, "constant"):
        k = int(distribution["erlang"] if isinstance(distribution, Mapping) else distribution.erlang)
        return rng.standard_gamma(k, count) / k
    if not cv:
        return None
    variance = math.log1p(cv * cv)
    noise: FloatArray = np.exp(math.sqrt(variance) * rng.standard_normal(count) - variance / 2)
    return noise

"""The learning rate, as a function of the share of the planned batches that are trained."""

import math


def learning_rate(progress: float, *, peak: float, warmup: float) -> float:
    """A straight line from 0 to `peak` over the share `warmup`, then a cosine to 0 at 1; `progress` is clamped."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return peak * progress / warmup
    if warmup >= 1.0:
        return peak
    return peak * 0.5 * (1.0 + math.cos(math.pi * (progress - warmup) / (1.0 - warmup)))

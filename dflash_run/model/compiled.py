"""Functions that are compiled once a process, for shapes that change from batch to batch."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

_VARIANTS: Final = 64
"""Variants of a function: one sample or several, one tile or several, windows, documents, with gradients or without."""


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, compiled for the shapes it meets; too many variants are an error, never a quiet fall back.

    Threads must not meet in a compiled function while it is cold: concurrent compilations hang. Give each drafter
    a process, or run one micro-batch in the main thread first.
    """
    from torch._dynamo import config  # takes a second, and is needed on GPUs only
    from torch.fx.experimental import _config as shapes

    # Sizes that happen to be equal in the first batch (8 samples, 8 heads) are no promise.
    shapes.use_duck_shape = False
    config.recompile_limit = max(config.recompile_limit, _VARIANTS)
    # Dynamic from the first call on: else the first shape, the second and every other number of samples is compiled
    # anew, in the middle of a run (6 to 12 s each on an H200).
    result: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=True)
    return result

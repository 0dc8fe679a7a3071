"""Functions that are compiled once a process, for shapes that change from batch to batch."""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

_VARIANTS: Final = 64
"""Variants of a function: one sample or several, one tile or several, windows, documents, with gradients or without."""


class _Configured(threading.local):
    """Whether this thread has its settings: torch keeps them by thread."""

    done = False


_configured: Final = _Configured()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, compiled for the shapes it meets; too many variants are an error, never a quiet fall back.

    Threads must not meet in a compiled function while it is cold: concurrent compilations hang. Give each drafter
    a process, or run one micro-batch in the main thread first, and `compile_no_more`.
    """
    if not _configured.done:
        _configure()
    return _compiled(function)


def compile_no_more(end: bool = True) -> None:
    """From now on, in all threads, what would have to be compiled is computed as it is, slowly; `end` takes it back."""
    torch.compiler.set_stance("eager_on_recompile" if end else "default")


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamic from the first call on: else the first shape, the second and every other number of samples is compiled
    # anew, in the middle of a run (6 to 12 s each on an H200).
    result: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=True)
    return result


def _configure() -> None:
    from torch._dynamo import config  # takes a second, and is needed on GPUs only
    from torch.fx.experimental import _config as shapes

    # Sizes that happen to be equal in the first batch (8 samples, 8 heads) are no promise.
    shapes.use_duck_shape = False
    config.recompile_limit = max(config.recompile_limit, _VARIANTS)
    # A thread that traces must not end another one that calls a compiled function meanwhile.
    config.error_on_nested_fx_trace = False
    _configured.done = True

"""Keeps the model library quiet while it loads and saves: no bars, no word of tensors left out on purpose."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """While it lasts, transformers reports errors only. For one thread at a time."""
    import transformers

    bars: Any = transformers.utils.logging

    logger = logging.getLogger("transformers.modeling_utils")
    level, shown = logger.level, bars.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    bars.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if shown:
            bars.enable_progress_bar()

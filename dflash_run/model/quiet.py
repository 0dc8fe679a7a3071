"""Keeps the model library quiet while it loads and saves: no bars, no word of tensors left out on purpose."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """While it lasts, transformers reports errors only. For one thread at a time."""
    import transformers

    talk: Any = transformers.utils.logging
    level, shown = talk.get_verbosity(), talk.is_progress_bar_enabled()
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    try:
        yield
    finally:
        talk.set_verbosity(level)
        if shown:
            talk.enable_progress_bar()

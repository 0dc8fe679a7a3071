"""Text that every machine has: the sources of Python's standard library, as bytes."""

import re
import sysconfig
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dflash_run.data.bytelevel import BOS, EOS, ROLES

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

_RUNS: Final = re.compile(rb"([^A-Za-z0-9])\1+")
"""The same mark several times."""


def standard_library(size: int) -> U8:
    """The first `size` bytes of the library's ASCII modules in the order of their names, uint8[<= size].

    Indentation and drawn lines are shortened: a small model would answer with nothing else.
    """
    parts: list[bytes] = []
    total = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        content = path.read_bytes()
        if content.isascii():
            parts.append(_RUNS.sub(rb"\1", content))
            total += len(parts[-1])
        if total >= size:
            break
    return np.frombuffer(b"".join(parts), np.uint8)[:size]


def windows(text: U8, count: int, width: int, stream: np.random.Generator) -> I64:
    """int64[count, width]: windows of `text` that start at random places."""
    starts = stream.integers(0, len(text) - width + 1, count)
    taken: I64 = text[starts[:, None] + np.arange(width)].astype(np.int64)
    return taken


def conversations(windows: I64, prompt: int) -> I64:
    """Token ids, int64[count, width + 4]: the first `prompt` bytes are the user's, the rest the answer, not ended."""

    def column(token: int) -> I64:
        return np.full((len(windows), 1), token, np.int64)

    user = (column(BOS), column(ROLES["user"]), windows[:, :prompt], column(EOS))
    return np.concatenate((*user, column(ROLES["assistant"]), windows[:, prompt:]), axis=1)

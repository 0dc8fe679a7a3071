"""Where sample lengths come from (a list, a file, a lognormal law), and how alike neighbours are.

All lengths are tokens, int64, 1 … LONGEST. Faults in what the user wrote are `BatchPlanError`s.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

I64 = NDArray[np.int64]

# Far above any context, and low enough that samples × longest stays within int64 for a billion samples.
LONGEST = 2**31 - 1

# Streams of the file's seed for the batch plan alone: (PLAN, what for[, epoch]); other parts use other keys.
PLAN, LENGTHS, SHUFFLE = int.from_bytes(b"plan"), 0, 1

_RULE = f"an integer from 1 to {LONGEST}"


class BatchPlanError(ValueError):
    """The data section cannot be planned; its text is one line.

    `key` (dotted), `value` (the offending one), `rule` (what is allowed), `remedy` (what to do).
    """

    def __init__(self, key: str, value: object, rule: str, remedy: str) -> None:
        super().__init__(key, value, rule, remedy)
        self.key = key
        self.value = value
        self.rule = rule
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.value)}: {self.rule}; {self.remedy}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def checked_lengths(values: Sequence[int] | NDArray[Any], *, source: str | None = None) -> I64:
    """Return `values` (a list, or a one-dimensional integer array) as int64[N] lengths in tokens.

    `source` is the file they came from, for the message. Raises BatchPlanError for anything but integers
    1 … LONGEST.
    """
    if isinstance(values, np.ndarray):
        return _checked_array(values, source)
    for index, value in enumerate(values):
        # bool is an int to Python, but `true` in a list of lengths is a slip of the pen.
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= LONGEST:
            raise _bad_entry(index, value, source)
    return np.array(values, dtype=np.int64)


def _checked_array(values: NDArray[Any], source: str | None) -> I64:
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        shape = f"{values.dtype} array of shape {values.shape}"
        rule = f"must be a one-dimensional integer array, not a {shape}"
        raise BatchPlanError("data.lengths", source or shape, rule, "convert it")
    wrong = np.flatnonzero((values < 1) | (values > LONGEST))
    if wrong.size:
        raise _bad_entry(int(wrong[0]), values[wrong[0]].item(), source)
    return values.astype(np.int64)


def _bad_entry(index: int, value: object, source: str | None) -> BatchPlanError:
    if source is None:
        return BatchPlanError(f"data.lengths.{index}", value, f"must be {_RULE}", "correct or remove it")
    return BatchPlanError(
        "data.lengths", value, f"entry {index + 1} of {source!r} must be {_RULE}", "correct or remove it"
    )


def read_lengths(path: str | os.PathLike[str]) -> I64:
    """Read int64[N] sample lengths: a `.npy` integer array, a `.json` list, else integers between blanks.

    A relative path is taken from the current directory. An empty text is no samples. Raises BatchPlanError
    when the file cannot be read or holds anything else.
    """
    file = Path(path)
    read = _READERS.get(file.suffix.lower(), _read_words)
    try:
        return read(file)
    except BatchPlanError:
        raise
    except OSError as fault:
        reason = fault.strerror or type(fault).__name__
        raise BatchPlanError(
            "data.lengths", str(path), f"must be a readable file ({reason})", "check the path"
        ) from None
    # MemoryError: a damaged .npy header may claim any size; RecursionError: JSON nested without end.
    except (ValueError, EOFError, MemoryError, RecursionError):
        raise BatchPlanError(
            "data.lengths", str(path), "must be a .npy integer array, a .json list, or text of integers",
            "check the file's content and ending",
        ) from None  # fmt: skip


def _read_npy(file: Path) -> I64:
    with file.open("rb") as stream:
        return checked_lengths(np.lib.format.read_array(stream, allow_pickle=False), source=str(file))


def _read_json(file: Path) -> I64:
    values = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(values, list):
        raise ValueError("not a list")
    return checked_lengths(values, source=str(file))


def _read_words(file: Path) -> I64:
    text = file.read_text(encoding="utf-8")
    try:
        values = [int(word) for word in text.split()]
    except ValueError:
        raise _bad_word(text, file) from None
    return checked_lengths(values, source=str(file))


def _bad_word(text: str, file: Path) -> BatchPlanError:
    for number, line in enumerate(text.splitlines(), start=1):
        for word in line.split():
            try:
                int(word)
            except ValueError:
                rule = f"line {number} of {str(file)!r} must hold integers, one a line or separated by blanks"
                return BatchPlanError("data.lengths", word, rule, "correct or remove it")
    raise AssertionError("called for a text that does hold a bad word")


_READERS: dict[str, Callable[[Path], I64]] = {".npy": _read_npy, ".json": _read_json}


def lognormal_lengths(
    count: int,
    *,
    mean: float,
    sigma: float,
    shortest: float | None = None,
    longest: float | None = None,
    rng: np.random.Generator,
) -> I64:
    """Draw int64[count] lengths in tokens, clipped to [`shortest`, `longest`], rounded, at least 1.

    `mean` is the law's before clipping (which moves it), `sigma` that of the logarithm:
    E[exp(N(mu, sigma²))] = exp(mu + sigma²/2), hence mu = ln(mean) − sigma²/2.
    """
    draws = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    upper = LONGEST if longest is None else min(longest, LONGEST)
    clipped = np.clip(draws, 1 if shortest is None else max(shortest, 1), upper)
    return np.rint(clipped).astype(np.int64)


def plan_stream(seed: int, *key: int) -> np.random.Generator:
    """The generator for one purpose of the batch plan, independent of all other streams of `seed` (>= 0)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(PLAN, *key)))


def lag1_length_correlation(lengths: ArrayLike) -> float | None:
    """Pearson correlation of each length with the next, −1 … 1: near 1 when sorted, near 0 when mixed.

    None when undefined: fewer than three lengths, or all firsts (or all seconds) of the pairs equal.
    """
    values = np.asarray(lengths, dtype=np.float64)
    first, second = values[:-1], values[1:]
    if values.size < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    # Sums, not dot products: a BLAS may add in another order on the next call, and summaries must not differ.
    first, second = first - first.mean(), second - second.mean()
    spread = math.sqrt(float(np.sum(first * first))) * math.sqrt(float(np.sum(second * second)))
    return min(1.0, max(-1.0, float(np.sum(first * second)) / spread))

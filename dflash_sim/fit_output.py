"""Where `dflash-sim fit` may write: a file of its own, never over what it reads or over a run's trace."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dflash_sim.fitting import is_trace
from policies.faults import Fault
from reports.tracelayout import FILE, PARTS
from reports.writing import file_fault

_KEPT: Final = (FILE, PARTS, "summary.json", "prediction.json")
"""What a run's folder holds that cannot be made again."""
_OTHER: Final = "give another, e.g. -o timings.json"


def output_faults(out: str, sources: Sequence[str]) -> Iterator[Fault]:
    """What is wrong with the file that shall be written; makes nothing."""
    if not out.strip():
        yield Fault("-o", out, "must name a file", "e.g. -o timings.json")
        return
    path = Path(out)
    if fault := file_fault("-o", path, _OTHER):
        yield fault
        return
    if (replaced := _replaced(path, sources)) is not None:
        yield Fault("-o", out, f"must not replace {replaced}", _OTHER)
    above = next(each for each in path.absolute().parents if os.path.lexists(each))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        reason = "cannot be written" if above.is_dir() else "is no folder"
        yield Fault("-o", out, f"must be in a folder that can be written: {above} {reason}", _OTHER)


def _replaced(path: Path, sources: Sequence[str]) -> str | None:
    """What would be lost, in words."""
    for source in (Path(each) for each in sources if each.strip()):
        if _same(path, source):
            return "what it is fitted from"
        folder = source if source.is_dir() and source.name != PARTS else source.absolute().parent
        for name in _KEPT:
            if _same(path, folder / name) or _same(path.absolute().parent, folder / name):
                return f"the {name} of a run that it is fitted from"
    return "the trace of a run" if path.exists() and is_trace(path) else None


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, by whatever path or link."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()

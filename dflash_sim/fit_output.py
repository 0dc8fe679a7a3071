"""Where measured timings may be written: a new file, or over earlier timings, never over what is no timings file."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dflash_sim.fitting import is_trace
from dflash_sim.timings_file import Profile
from policies.faults import Fault
from reports.tracelayout import FILE, PARTS
from reports.writing import file_fault

_KEPT: Final = (FILE, PARTS, "summary.json", "prediction.json")
"""What a run's folder holds that cannot be made again."""
OTHER: Final = "give another, e.g. -o timings.json, or remove that first"


def output_faults(out: str, sources: Sequence[str]) -> Iterator[Fault]:
    """What is wrong with the file that shall be written; makes nothing."""
    if not out.strip():
        yield Fault("-o", out, "must name a file", "e.g. -o timings.json")
        return
    path = Path(out)
    if fault := file_fault("-o", path, OTHER):
        yield fault
        return
    if (replaced := _replaced(path, sources)) is not None:
        yield Fault("-o", out, f"must not replace {replaced}", OTHER)
    above = next(each for each in path.absolute().parents if os.path.lexists(each))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        reason = "cannot be written" if above.is_dir() else "is no folder"
        yield Fault("-o", out, f"must be in a folder that can be written: {above} {reason}", OTHER)


def _replaced(path: Path, sources: Sequence[str]) -> str | None:
    """What would be lost, in words."""
    for source in (Path(each) for each in sources if each.strip()):
        if _same(path, source):
            return "what it is fitted from"
        folder = source if source.is_dir() and source.name != PARTS else source.absolute().parent
        for name in _KEPT:
            if _same(path, folder / name) or _same(path.absolute().parent, folder / name):
                return f"the {name} of a run that it is fitted from"
    return kept_there(path)


def kept_there(path: Path) -> str | None:
    """What timings would take the place of, in words; None where nothing is, or other timings."""
    if path.absolute().parent.name == PARTS:
        return f"a part of a trace: {PARTS} is the folder of one"
    if not path.exists():
        return None
    if is_trace(path):
        return "the trace of a run"
    return None if _is_timings(path) else "what is no timings file"


def _is_timings(path: Path) -> bool:
    """By its keys alone, so that timings that cannot be used may be measured anew; an empty file holds nothing."""
    try:
        with path.open("rb") as file:  # what else is there may be larger than memory
            if file.read(1) not in (b"", b"{"):
                return False
        content = json.loads(path.read_bytes() or b"{}")
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.keys() <= Profile.model_fields.keys()


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, by whatever path or link."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()

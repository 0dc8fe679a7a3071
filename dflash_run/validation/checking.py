"""`make validate`: everything worked out again from what is kept. One damaged folder hides nothing of the others."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dflash_run.validation import ranking
from dflash_run.validation.agreement import AGAIN, lines, table_differences, unknown_keys
from dflash_run.validation.cases import Case
from dflash_run.validation.chain import limits_of
from dflash_run.validation.kept import FILES, TABLE, Remade, kept_mapping, kept_part, remake
from dflash_run.validation.overlay import PICTURE, draw_missing, picture_faults
from dflash_run.validation.table import as_json, text
from policies.faults import Fault, one_line, shown

_MOST: Final = 300
"""Characters that are told of why a folder cannot be used."""

Tables = dict[str, list[dict[str, Any]]]


def check(cases: Sequence[Case], out: Path, known: Sequence[Case], *, chosen: bool, draw: bool = False) -> int:
    """Print what is kept of the cases, worked out again; 1 where anything is wrong, or nothing was there to check.

    `known`: all cases there are; `chosen`: whether these were asked for by name, so that each must be there;
    `draw`: draw pictures that are missing. Otherwise nothing is written.
    """
    if not out.is_dir():
        rule = "must be a folder that holds kept cases"
        return _failed([str(Fault("--out", str(out), rule, "go where docs/validation is, or give another --out"))])
    faults: list[str] = [] if chosen else list(_strays(out, {case.name for case in known}))
    tables: Tables = {}
    there = [case for case in cases if (out / case.name).is_dir()]
    for case in there:
        found = _checked(case, out / case.name, tables, draw)
        faults += [one_line(each) for each in found]
    if chosen:
        missing = [case for case in cases if case not in there]
        faults += [f"{case.name}: not kept in {out}; run it with --part {case.part}" for case in missing]
    elif not there:
        faults.append(str(Fault("--out", str(out), "must hold kept cases, and holds none", "give another --out")))
    for alike in ranking.groups(case for case in there if case.name in tables):
        if len(compared := ranking.ranked({case.name: tables[case.name] for case in alike})) > 1:
            print(f"{ranking.text(compared)}\n")
    return _failed(faults)


def _failed(faults: Sequence[str]) -> int:
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _strays(out: Path, names: set[str]) -> Iterator[str]:
    """What lies there and is not checked, though it looks as if it were."""
    for folder in sorted(out.iterdir()):
        dead = folder.is_symlink() and not folder.exists()
        if dead or (folder.name in names and not folder.is_dir()):
            what = f"it is a link to {folder.readlink()}, which is not there" if dead else "it is a file"
            yield one_line(f"{folder}: must be a folder; {what}; {AGAIN}")
        elif folder.is_dir() and folder.name not in names:
            yield one_line(f"{folder}: no case has this name; remove the folder, or give it a case's name")


def _checked(case: Case, folder: Path, tables: Tables, draw: bool) -> list[str]:
    """Faults of one folder; its table goes to `tables` if its figures have none."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    others = sorted(each.name for each in folder.iterdir() if each.name not in {*FILES, PICTURE})
    beside = [f"{case.name}: {name}: must not be there: it is no part of a kept case; remove it" for name in others]
    if missing:
        return [f"{case.name}: {', '.join(missing)}: missing; {AGAIN}", *beside]
    try:
        remade, faults = _compared(case, folder)
        told = text(remade.table)
        if draw:
            draw_missing(folder)
        beside += picture_faults(folder)
        kept = kept_part(folder, TABLE, "rows")
    except Exception as error:  # a file that was damaged in whatever way: the others are still to be checked
        return [f"{case.name}: cannot be worked out again: {_why(error)}; {AGAIN}", *beside]
    print(f"{case.name}\n{told}\n")
    if not faults:
        tables[case.name] = kept
    return faults + beside


def _compared(case: Case, folder: Path) -> tuple[Remade, list[str]]:
    remade = remake(folder, limits_of(case))
    faults = list(remade.drifts)
    named = kept_part(folder, TABLE, "case")
    if named != case.name:
        faults.append(str(Fault(f"{folder / TABLE}: case", named, f"must be {case.name}, as the folder", AGAIN)))
    faults += lines(f"{case.name}: {TABLE}", list(unknown_keys(kept_mapping(folder, TABLE), ("case", "rows"))))
    return remade, faults + differences(case.name, kept_part(folder, TABLE, "rows"), as_json(remade.table))


def _why(error: Exception) -> str:
    """The first line of an error, its kind where it was not written for people."""
    said = (str(error).splitlines() or [""])[0]
    if isinstance(error, KeyError):
        said = f"the key {said} is missing"
    elif not isinstance(error, (ValueError, OSError)):
        said = f"{type(error).__name__}: {said}"
    return said if len(said) <= _MOST else said[:_MOST] + "…"


def differences(name: str, kept: Any, remade: list[dict[str, Any]]) -> list[str]:
    """Rows of a kept table that its own files do not give, but for the drift that predictions may have."""
    file, wanted = f"{name}: {TABLE}", [row["quantity"] for row in remade]
    rows = kept if isinstance(kept, list) else []
    found = [row.get("quantity") if isinstance(row, dict) else None for row in rows]
    if found == wanted:
        return lines(file, list(table_differences(rows, remade)))
    missing, unknown = [each for each in wanted if each not in found], [each for each in found if each not in wanted]
    said = [f"without {shown(missing)}"] * bool(missing) + [f"with {shown(unknown)}"] * bool(unknown)
    rule = "must be the rows that its files give, in their order"
    return [f"{file}: rows: {' and '.join(said) or 'in another order'}; {rule}; {AGAIN}"]

"""`make validate-cpu`, `make validate-gpu PART=…`, and `make validate`, which needs neither GPU nor time."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_run.validation import ranking
from dflash_run.validation.cases import CASES, HOST, HOST_PARTS, MOST_GPUS, PARTS, Case
from dflash_run.validation.chain import limits_of, validate
from dflash_run.validation.company import company_for
from dflash_run.validation.kept import TABLE, remake
from dflash_run.validation.overlay import PICTURE, draw
from dflash_run.validation.table import as_json, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where a prediction drifted or a kept table is not what its files give."""
    parser = argparse.ArgumentParser(prog="python -m dflash_run.validation", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--part", choices=PARTS, help="run the cases of this part; left out: check what is kept")
    what.add_argument("--host", choices=HOST_PARTS, help="run these of all GPUs that there are")
    parser.add_argument("--case", action="append", help="only these cases; repeatable")
    parser.add_argument("--again", action="store_true", help="run also cases that have a table")
    parser.add_argument("--out", type=Path, default=Path("docs/validation"))
    parser.add_argument("--work", type=Path, default=Path("runs/validation"))
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not options.case or case.name in options.case]
    if options.part is None and options.host is None:
        return check(cases, options.out)
    import torch

    gpus = torch.cuda.device_count()
    part = options.part or f"{HOST}{gpus}-{options.host}"
    if part not in PARTS:
        print(f"--host: there are {gpus} GPUs; from 2 to {MOST_GPUS} are needed", file=sys.stderr)
        return 2
    return run([case for case in cases if case.part == part], options.out, options.work, gpus, again=options.again)


def run(cases: Sequence[Case], out: Path, work: Path, gpus: int, *, again: bool) -> int:
    """Those that have no table yet; a case that needs more GPUs than there are is left out, and said."""
    for case in cases:
        if case.gpus > gpus:
            print(f"{case.name}: needs {case.gpus} GPUs; there are {gpus}", file=sys.stderr)
    wanted = [case for case in cases if case.gpus <= gpus and (again or not (out / case.name / TABLE).exists())]
    if not wanted:
        return 0
    with company_for(wanted, work, gpus) as company:
        for case in wanted:
            print(f"{case.name}: about {case.minutes:g} min", file=sys.stderr)
            folder = out / case.name
            if again and folder.exists():
                for file in folder.iterdir():
                    file.unlink()
            table = validate(case, folder, work, company, lambda what: print(f"  {what}", file=sys.stderr))
            print(f"{case.name}\n{text(table)}\n")
            draw_missing(folder)
    return 0


def check(cases: Sequence[Case], out: Path) -> int:
    """Work everything out again from what is kept."""
    faults: list[str] = []
    parts: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for case in cases:
        folder = out / case.name
        if not (folder / TABLE).exists():
            continue
        remade = remake(folder, limits_of(case))
        kept = json.loads((folder / TABLE).read_text(encoding="utf-8"))["rows"]
        faults += remade.drifts + differences(case.name, kept, as_json(remade.table))
        print(f"{case.name}\n{text(remade.table)}\n")
        draw_missing(folder)
        parts.setdefault(case.part, {})[case.name] = kept
    for tables in parts.values():
        if len(compared := ranking.ranked(tables)) > 1:
            print(f"{ranking.text(compared)}\n")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def draw_missing(folder: Path) -> None:
    """The picture, where there is none yet."""
    if (folder / PICTURE).exists():
        return
    try:
        draw(folder)
    except ImportError as error:
        print(f"{folder.name}: not drawn: {error}; install the extra reports, then `make validate`", file=sys.stderr)


def differences(name: str, kept: list[dict[str, object]], remade: list[dict[str, object]]) -> list[str]:
    """Rows of a kept table that its own files do not give, but for the drift that predictions may have."""
    if [row["quantity"] for row in kept] != [row["quantity"] for row in remade]:
        return [f"{name}: the kept table has other rows than its files give"]
    return [
        f"{name}: {a['quantity']}: measured {a['measured']} in the table, {b['measured']} by the trace"
        for a, b in zip(kept, remade, strict=True)
        if not _same(a["measured"], b["measured"])
    ]


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-6 * max(abs(a), abs(b), 1.0)
    return a == b


if __name__ == "__main__":
    sys.exit(main())

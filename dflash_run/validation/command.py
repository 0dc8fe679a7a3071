"""`make validate-cpu`, `make validate-gpu PART=…`, and `make validate`, which needs neither GPU nor time."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from dflash_run.validation.cases import CASES, HOST, HOST_PARTS, MOST_GPUS, PARTS, Case
from dflash_run.validation.chain import validate
from dflash_run.validation.checking import check
from dflash_run.validation.company import company_for
from dflash_run.validation.kept import TABLE
from dflash_run.validation.overlay import draw_missing
from dflash_run.validation.table import text
from dflash_run.validation.whole import IncompleteRun
from dflash_sim.timings_file import TimingsError
from policies.batches import BatchPlanError
from policies.faults import Fault, PipelineError, one_line
from policies.trace import TraceError
from reports.commands import COMPLETE, UNUSABLE, run_and_exit


def checked(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where a prediction drifted, a run was incomplete or what is kept is not whole, 2 where nothing is
    selected or can be run. An interrupt is the caller's."""
    try:
        return _main(arguments)
    except (PipelineError, BatchPlanError, TimingsError, TraceError) as error:
        lines = str(error).splitlines()
    except OSError as error:
        lines = [one_line(f"{error.filename or 'file'}: {error.strerror or error}")]
    for line in lines:
        print(line, file=sys.stderr)
    return UNUSABLE


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dflash_run.validation", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    parts = ", ".join(part for part in PARTS if not part.startswith(HOST))
    told = f"run the cases of this part ({parts}, or {HOST}N-policies and so on); left out: check what is kept"
    what.add_argument("--part", metavar="PART", help=told)
    what.add_argument("--host", choices=HOST_PARTS, help="run these of all GPUs that there are")
    what.add_argument("--draw", action="store_true", help="check what is kept, and draw the pictures that are missing")
    parser.add_argument("--case", action="append", help="only these cases; repeatable")
    parser.add_argument("--again", action="store_true", help="run also cases that have a table")
    parser.add_argument("--out", type=Path, default=Path("docs/validation"))
    parser.add_argument("--work", type=Path, default=Path("runs/validation"))
    options = parser.parse_args(arguments)
    named = [options.part] if options.part is not None else []
    faults = [*_unknown("--part", named, PARTS), *_unknown("--case", options.case or (), [c.name for c in CASES])]
    if faults:
        for fault in faults:
            print(fault, file=sys.stderr)
        return 2
    cases = [case for case in CASES if not options.case or case.name in options.case]
    if options.part is None and options.host is None:
        return check(cases, options.out, CASES, chosen=bool(options.case), draw=options.draw)
    import torch

    gpus = torch.cuda.device_count()
    part = options.part or f"{HOST}{gpus}-{options.host}"
    if part not in PARTS:
        print(f"--host: there are {gpus} GPUs; from 2 to {MOST_GPUS} are needed", file=sys.stderr)
        return 2
    wanted = [case for case in cases if case.part == part]
    if not wanted:
        print(f"--case: none of these is in part {part}; leave --case out, or name another part", file=sys.stderr)
        return 2
    return run(wanted, options.out, options.work, gpus, again=options.again)


def main() -> None:
    """The command."""
    run_and_exit(checked)


def _unknown(option: str, names: Iterable[str], known: Sequence[str]) -> Iterator[Fault]:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"the first is {known[0]}"
            yield Fault(option, name, "must be one of dflash_run/validation/cases.py", remedy)


def run(cases: Sequence[Case], out: Path, work: Path, gpus: int, *, again: bool) -> int:
    """Those that have no table yet; a case that needs more GPUs than there are is left out, and said."""
    for case in cases:
        if case.gpus > gpus:
            print(f"{case.name}: needs {case.gpus} GPUs; there are {gpus}", file=sys.stderr)
    able = [case for case in cases if case.gpus <= gpus]
    if not able:
        return 2
    wanted = [case for case in able if again or not (out / case.name / TABLE).exists()]
    if not wanted:
        print(f"all have a table in {out}; --again runs them again", file=sys.stderr)
        return 0
    status = COMPLETE
    with company_for(wanted, work, gpus) as company:
        for case in wanted:
            print(f"{case.name}: about {case.minutes:g} min", file=sys.stderr)
            folder = out / case.name
            if again and folder.exists():
                for file in folder.iterdir():
                    file.unlink()
            try:
                table = validate(case, folder, work, company, lambda what: print(f"  {what}", file=sys.stderr))
            except IncompleteRun as error:
                status = 1
                print(one_line(f"{case.name}: {error}; no table is kept, run it again"), file=sys.stderr)
                continue
            print(f"{case.name}\n{text(table)}\n")
            draw_missing(folder)
    return status

"""`dflash-run profile`: from a training's file to measured timings of this machine."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console

from dflash_run.profiling.measuring import Effort
from dflash_run.training.preparation import prepare_training
from dflash_sim.cli import folder_faults, print_measured
from dflash_sim.fit_output import OTHER, kept_there
from dflash_sim.fitting import save_timings
from dflash_sim.interrupts import held
from dflash_sim.timings_file import Profile
from policies.faults import Fault, PipelineError
from policies.loading import inputs, load, replaced
from policies.pipeline import Pipeline
from reports import entry
from reports.writing import file_fault

_REMEDY: Final = "give another, e.g. -o timings.json"


def profile_file(
    file: Path,
    overrides: list[str] | None,
    *,
    out: Path,
    as_json: bool,
    seed: int | None,
    rehearsal: bool,
    sizes: list[int] | None,
) -> int:
    """Measure, write, print; returns the exit status. Raises PipelineError."""
    import torch

    from dflash_run.profiling.profile import work_beside

    for library in ("huggingface_hub", "transformers", "accelerate"):
        logging.getLogger(library).setLevel(logging.ERROR)
    pipeline = _read(file, [*(overrides or ()), *([] if seed is None else [f"seed={seed}"])], out, sizes, rehearsal)
    pipeline, gpus = replaced(pipeline, {"faults": []}), torch.cuda.device_count()
    people = Console(stderr=True)

    def progress(what: str) -> None:
        people.print(what, style="dim", highlight=False)

    try:
        found = _measured(pipeline, gpus, rehearsal, sizes, work_beside(out), progress)
        entry.check()
    except KeyboardInterrupt:
        raise entry.Interrupted(f"{out} was not written") from None
    with held():
        save_timings(found, out)
    if as_json:
        sys.stdout.write(out.read_text(encoding="utf-8"))
    else:
        print_measured(found)
    people.print(f"timings in {out}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _measured(
    pipeline: Pipeline,
    gpus: int,
    rehearsal: bool,
    sizes: list[int] | None,
    work: Path,
    progress: Callable[[str], None],
) -> Profile:
    from dflash_run.profiling.profile import profile

    if rehearsal:
        from dflash_run.partitions.rehearsal import prepare_rehearsal, set_stage

        prepared = prepare_rehearsal(pipeline, gpus=gpus)
        progress("splitting the device, compiling")
        stage = set_stage(prepared, sizes)
        effort = Effort(again=False)  # all threads find what was compiled
        return profile(
            prepared,
            effort=effort,
            hire=stage.hire,
            place=stage.place,
            uneven=stage.uneven,
            work=work,
            progress=progress,
        )
    return profile(prepare_training(pipeline, gpus=gpus), work=work, progress=progress)


def _read(file: Path, overrides: list[str], out: Path, sizes: list[int] | None, rehearsal: bool) -> Pipeline:
    """The file's pipeline, where nothing is wrong with the command line either. Raises PipelineError."""
    given, faults, pipeline = {"FILE": file}, [*_misused(sizes, rehearsal)], None
    try:
        pipeline = load(file, overrides)
        # To measure anew what the file's predictions use is what `-o` is for; all else is somebody's work.
        given |= {key: path for key, path in inputs(pipeline).items() if key != "timings.file"}
    except PipelineError as error:
        faults += error.faults
    faults += _unfit(out, given)
    if faults or pipeline is None:
        raise PipelineError(faults)
    return pipeline


def _misused(sizes: list[int] | None, rehearsal: bool) -> Iterator[Fault]:
    if sizes is not None and not rehearsal:
        rule = "goes with --rehearsal: the workers of a training have GPUs of their own"
        yield Fault("--multiprocessors", ",".join(map(str, sizes)), rule, "leave one out")


def _unfit(out: Path, given: dict[str, Path]) -> Iterator[Fault]:
    """What takes minutes to measure can be written, and replaces nothing that it is measured with."""
    name = str(out)
    if fault := file_fault("-o", out, _REMEDY):
        yield fault
        return
    for key, path in given.items():
        if _replaces(out, path):
            yield Fault("-o", name, f"must be another file than {key} names, which it would replace", _REMEDY)
            return
    if (lost := kept_there(out)) is not None:
        yield Fault("-o", name, f"must not replace {lost}", OTHER)
        return
    yield from folder_faults(out.absolute().parent)


def _replaces(out: Path, given: Path) -> bool:
    """Whether writing `out` takes the place of this file, or of a file in this folder."""
    if given.is_dir():
        return os.path.lexists(out) and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(given))
    same = os.path.realpath(out) == os.path.realpath(given)
    return same or (out.exists() and given.exists() and out.samefile(given))

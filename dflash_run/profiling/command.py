"""`dflash-run profile`: from a training's file to measured timings of this machine."""

import logging
import sys
from pathlib import Path

from rich.console import Console

from dflash_run.profiling.measuring import Effort
from dflash_run.training.preparation import prepare_training
from dflash_sim.cli import check_outputs, print_measured
from dflash_sim.fitting import save_timings
from policies.faults import Fault, PipelineError
from policies.loading import load, replaced


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

    from dflash_run.profiling.profile import profile

    for library in ("huggingface_hub", "transformers", "accelerate"):
        logging.getLogger(library).setLevel(logging.ERROR)
    if sizes is not None and not rehearsal:
        rule = "goes with --rehearsal: the workers of a training have GPUs of their own"
        raise PipelineError([Fault("--multiprocessors", ",".join(map(str, sizes)), rule, "leave one out")])
    _check_out(out)
    pipeline = load(file, [*(overrides or ()), *([] if seed is None else [f"seed={seed}"])])
    pipeline, gpus = replaced(pipeline, {"faults": []}), torch.cuda.device_count()
    people = Console(stderr=True)

    def progress(what: str) -> None:
        people.print(what, style="dim", highlight=False)

    if rehearsal:
        from dflash_run.partitions.rehearsal import prepare_rehearsal, set_stage

        prepared = prepare_rehearsal(pipeline, gpus=gpus)
        progress("splitting the device, compiling")
        stage = set_stage(prepared, sizes)
        effort = Effort(again=False)  # all threads find what was compiled
        found = profile(
            prepared, effort=effort, hire=stage.hire, place=stage.place, uneven=stage.uneven, progress=progress
        )  # fmt: skip
    else:
        found = profile(prepare_training(pipeline, gpus=gpus), progress=progress)
    save_timings(found, out)
    if as_json:
        sys.stdout.write(out.read_text(encoding="utf-8"))
    else:
        print_measured(found)
    return 0


def _check_out(out: Path) -> None:
    """What takes minutes to measure can be written."""
    if out.is_dir():
        raise PipelineError([Fault("-o", str(out), "must be a file; it is a folder", "e.g. -o timings.json")])
    check_outputs(out.absolute().parent)

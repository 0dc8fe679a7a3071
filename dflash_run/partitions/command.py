"""`dflash-run rehearse --compute torch`: from a training's file to a rehearsal with real kernels on one device."""

from pathlib import Path

from rich.console import Console

from dflash_run.live import live_view
from dflash_run.outcome import tell
from dflash_run.partitions.rehearsal import prepare_rehearsal, set_stage
from dflash_run.training.train import train
from dflash_sim.cli import check_outputs, console, described, name_of, status_of
from dflash_sim.interrupts import interruptible
from dflash_sim.prediction import prepare, summary_of
from policies.pipeline import Pipeline


def rehearse_computing(
    pipeline: Pipeline, file: Path, *, sizes: list[int] | None, out: Path | None, as_json: bool
) -> int:
    """Rehearse, print, write the summary; returns the exit status. Raises PipelineError."""
    import torch

    prepared = prepare_rehearsal(pipeline, gpus=torch.cuda.device_count())
    name = name_of(pipeline, file)
    folder = out if out is not None else Path("runs") / name
    check_outputs(folder)
    people = Console(stderr=True) if as_json else console()
    people.print(f"in {folder}", style="dim", highlight=False, markup=False, soft_wrap=True)
    stage = set_stage(prepared, sizes)
    if stage.split.refused is not None:
        people.print(f"one GPU, not split: {stage.split.refused}; workers share all of it", markup=False)
    title = f"{name}: {described(prepared.pipeline)}, {stage.place}"
    run = prepare(prepared.pipeline, plan=prepared.leg, timed=False)
    with interruptible() as interrupted:  # until the summary is there
        with live_view(title) as watch:
            run, told = train(
                prepared, folder, hire=stage.hire, run=run, kind="rehearsal", watch=watch, interrupted=interrupted
            )  # fmt: skip
        compute = {"workers": stage.place, "refused": stage.split.refused}
        summary = summary_of(run, kind="rehearsal", driver="threads", compute=compute, **told)
        tell(people, summary, title, folder, as_json=as_json)
    return status_of([summary])

"""`dflash-run train`: from a file, or from a checkpoint, to a trained drafter and a summary."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from dflash_run.live import live_view
from dflash_run.training import checkpoint as checkpoints
from dflash_run.training.preparation import Preparation, prepare_training
from dflash_sim.cli import COMPLETE, INCOMPLETE, check_outputs, console, described, name_of, status_of
from dflash_sim.folders import claimed
from dflash_sim.interrupts import interruptible
from dflash_sim.prediction import prepare, summary_of
from dflash_sim.timings_file import TimingsError, read_timings
from policies.faults import ABSENT, Fault, PipelineError, one_line
from policies.loading import from_mapping, load
from policies.pipeline import Pipeline
from reports.summary import finite, to_json
from reports.table import duration, print_run
from reports.verdict import ktok
from reports.writing import write_text

_TOKENISING_S: Final = 5.0
"""Between two lines while data are prepared; a cache that is there takes less."""


def train_file(
    file: Path | None,
    *,
    resume: Path | None,
    verify: bool,
    overrides: list[str] | None,
    out: Path | None,
    as_json: bool,
    seed: int | None,
    predict: Path | None = None,
) -> int:
    """Train, print, write the summary; returns the exit status. Raises PipelineError."""
    from dflash_run.training.forecast import compared, forecast
    from dflash_run.training.train import train

    for library in ("huggingface_hub", "transformers", "accelerate"):
        logging.getLogger(library).setLevel(logging.ERROR)  # what is wrong is told as a fault, on one line
    pipeline = _read(file, resume, [*(overrides or ()), *([] if seed is None else [f"seed={seed}"])])
    people = Console(stderr=True) if as_json else console()
    name = name_of(pipeline, file or Path("training.yaml"))
    folder = out if out is not None else _fresh(Path("runs") / name, resume)
    faults = [*_unusable_files(folder, predict)]
    try:
        prepared = prepare_training(pipeline, gpus=_gpus(), resume=resume, progress=_tokenising(people))
    except PipelineError as error:
        raise PipelineError([*faults, *error.faults]) from None
    if faults:
        raise PipelineError(faults)
    if not prepared.leg.count:
        return _nothing_left(prepared, people, as_json)
    _check_folder(folder, prepared)
    foretold = None if predict is None else forecast(prepared, predict)
    title = f"{name}: {described(prepared.pipeline)}"
    run = prepare(prepared.pipeline, plan=prepared.leg, timed=False)
    foresight = None if foretold is None else foretold.beside(run)
    # Claimed before anything in it is touched: another run may be at work there. Signals are heard until the summary
    # is there: a scheduler sends them again and again.
    with claimed(folder), interruptible() as interrupted:
        for line in (f"in {folder}", *_introduced(prepared)):
            people.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
        if (earlier := checkpoints.set_aside(folder)) is not None:
            people.print(f"{folder} holds an earlier training: its checkpoints are now in {earlier}", markup=False)
        if foretold is not None:
            foretold.write(folder)
            people.print(_foretold(foretold.summary), style="dim", highlight=False, markup=False)
        people.print("starting workers, which load their models", style="dim", highlight=False)
        with live_view(title, foresight) as watch:
            run, told = train(
                prepared, folder, verify=verify, watch=watch, run=run, ours=True, interrupted=interrupted
            )  # fmt: skip
        summary = summary_of(run, kind="training", **told)
        if foretold is not None and foresight is not None:
            summary["prediction"] = finite(compared(foretold, foresight, summary))
        whole = _written(folder / "summary.json", to_json(summary))
        if as_json:
            sys.stdout.write(to_json(summary))
        else:
            _print(people, summary, title)
        kept = f"; checkpoints in {folder / checkpoints.FOLDER}" if (folder / checkpoints.FOLDER).exists() else ""
        people.print(f"summary and trace in {folder}{kept}", highlight=False, markup=False, soft_wrap=True)
    training = summary["training"]
    return status_of([summary]) if whole and not training["unsaved"] and not training["broken"] else INCOMPLETE


def _tokenising(people: Console) -> Callable[[int], None]:
    """To be told of the samples that are read; says so now and then, where it takes long."""
    due = time.monotonic() + _TOKENISING_S

    def told(count: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _TOKENISING_S
            people.print(f"preparing data: {count:,} samples read", style="dim", highlight=False)

    return told


def _print(people: Console, summary: dict[str, Any], title: str) -> None:
    print_run(people, summary, title)
    people.print(_learned(summary["training"]), highlight=False, markup=False)
    if "prediction" in summary:
        people.print(_outcome(summary), highlight=False, markup=False)


def _check_folder(folder: Path, prepared: Preparation) -> None:
    """A run's folder holds one line of checkpoints, and the trace that belongs to it."""
    resumed = prepared.resumed
    if resumed is not None and resumed.folder.resolve().is_relative_to((folder / checkpoints.FOLDER).resolve()):
        rule = "must be another folder than the resumed training's, which keeps its trace and its checkpoints"
        raise PipelineError([Fault("-o", str(folder), rule, "leave -o out, or give a new folder")])
    check_outputs(folder)


def _nothing_left(prepared: Preparation, people: Console, as_json: bool) -> int:
    """The resumed training came to its end."""
    resumed, planned = prepared.resumed, prepared.plan.batches.count
    assert resumed is not None, "a new training has batches"
    people.print(f"nothing is left to train: {resumed.folder} has all {planned:,} batches of its plan", markup=False)
    if as_json:
        done = {"step": resumed.checkpoint.step, "planned_batches": planned, "trained_before": planned}
        told = done | {"resumed_from": str(resumed.folder), "figures": resumed.checkpoint.held_out}
        sys.stdout.write(to_json({"kind": "training", "stop_reason": "data_exhausted", "training": told}))
    return COMPLETE


def _written(path: Path, text: str) -> bool:
    """Whether it could be; the rest of what a run left must not be lost for it."""
    try:
        write_text(path, text)
    except OSError as error:
        sys.stderr.write(one_line(f"{path}: could not be written ({error.strerror or error})") + "\n")
        return False
    return True


def _unusable_files(folder: Path, predict: Path | None) -> Iterator[Fault]:
    """What of the command line can be judged before the training is prepared; makes no folder."""
    above = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    if not above.is_dir() or not os.access(above, os.W_OK):
        reason = "cannot be written" if above.is_dir() else "is no folder"
        yield Fault("-o", str(folder), f"must be a folder that can be written: {above} {reason}", "give another -o")
    if predict is not None and predict.is_dir():  # as an empty path is: of a variable that is not set, for instance
        rule = "must name a timings.json; this is a folder, or empty"
        yield Fault("--predict", str(predict), rule, "give the file, or leave --predict out")
    elif predict is not None:
        try:
            read_timings(predict)
        except TimingsError as error:
            for text in error.faults:
                key, _, said = text.partition(": ")
                yield Fault(key, ABSENT, said)


def _read(file: Path | None, resume: Path | None, overrides: list[str]) -> Pipeline:
    if file is not None:
        return load(file, overrides)
    if resume is None:
        raise PipelineError([Fault("FILE", ABSENT, "must be given, or --resume")])
    return from_mapping(checkpoints.read(checkpoints.find(resume)).config, overrides)


def _fresh(folder: Path, resume: Path | None) -> Path:
    """Where the run goes: a resumed one beside the one that it goes on from, which keeps its trace."""
    if resume is None:
        return folder
    kept = checkpoints.find(resume)
    if kept.parent.name == checkpoints.FOLDER:
        folder = kept.parent.parent
    first, dash, number = folder.name.rpartition("-")
    if dash and number.isdecimal() and folder.with_name(first).is_dir():
        folder = folder.with_name(first)  # a third part beside the second is number 3
    count = 2
    while folder.with_name(f"{folder.name}-{count}").exists():
        count += 1
    return folder.with_name(f"{folder.name}-{count}")


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _introduced(prepared: Preparation) -> list[str]:
    """What people should know before the wait."""
    leg, placement = prepared.leg, prepared.placement
    host = prepared.memory["host_peak_bytes"]
    lines = [
        f"data: {prepared.corpus.report}; {len(prepared.plan.held_out):,} held out",
        f"plan: {leg.count:,} of {prepared.plan.batches.count:,} batches, {int(leg.tokens.sum()):,} tokens",
        f"devices: targets {', '.join(map('+'.join, placement.targets))}; drafters {', '.join(placement.drafters)}",
    ]
    if host is not None:
        size = f"{host / 1e9:.2f} GB" if host >= 1e8 else f"{host / 1e6:.2f} MB"
        lines.append(f"staging: at most {size} of host memory")
    if placement.gpus():
        needs = (f"a {role} {each.total / 1e9:.1f} GB" for role, each in prepared.footprints.items())
        lines.append(f"on its device needs {', '.join(needs)}")
    return lines


def _learned(training: dict[str, object]) -> str:
    figures = training["figures"]
    assert isinstance(figures, dict)
    names = ("loss", "expected_accepted_length", "held_out_loss", "held_out_expected_accepted_length")
    parts = [f"{name.replace('_', ' ')} {figures[name]:.3f}" for name in names if name in figures]
    return f"step {training['step']}: {', '.join(parts)}" if parts else f"step {training['step']}"


def _foretold(summary: dict[str, Any]) -> str:
    """The prediction on a line, and below it what it rests on and what speaks against it, a line each."""
    rate = summary["throughput"]["steady_tokens_per_s"] or summary["throughput"]["tokens_per_s"]
    line = f"prediction: {ktok(rate)}, {duration(summary['makespan_s'])}; {summary['verdict']['text']}"
    used = (f"times: {text}" for text in summary.get("timings_used", ()))
    return "\n".join([line, *used, *(f"doubtful: {text}" for text in summary.get("timings_doubted", ()))])


def _outcome(summary: dict[str, Any]) -> str:
    """How the prediction did, in a line or two."""
    told = summary["prediction"]
    rate, span = told["tokens_per_s"], told["makespan_s"]
    parts = [
        f"{name} {show(row['predicted'])} predicted, {show(row['measured'])} measured ({row['difference']:+.1%})"
        for name, row, show in (("throughput", rate, ktok), ("time", span, duration))
        if row["difference"] is not None
    ]
    if span["measured"] is None:
        parts.append(_not_compared(summary, span))
    lines = ["; ".join(parts), *told["warnings"]]
    return "\n".join([*lines, told["moved"]] if told["moved"] else lines)


def _not_compared(summary: dict[str, Any], span: dict[str, Any]) -> str:
    """Why there is no time to the end to compare the predicted one with."""
    trained, planned = summary["batches"]["trained"], summary["batches"]["planned"]
    if trained == planned:
        return f"time not compared: the predicted run ended after {duration(span['predicted'])} without all batches"
    ended = f"the run ended after {duration(summary['makespan_s'])} with {trained:,} of {planned:,} batches trained"
    text = f"time {duration(span['predicted'])} predicted, not compared: {ended}"
    if span["foreseen"] is None:
        return text
    return f"{text}, and all of them would have taken {duration(span['foreseen'])} at its pace"

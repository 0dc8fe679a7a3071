"""`make demo-train`: a small target, its answers as data, and a drafter trained on them 1 + 1, then 2 + 2."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dflash_run.tiny.sizes import SMALLEST, Sizes
from dflash_sim.cli import console, guarded
from policies.loading import load

FILE: Final = Path("examples/tiny/pipeline.yaml")
SHAPES: Final = ((1, 1), (2, 2))
"""Targets and drafters of each training."""

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key; repeatable.")]


def demo(
    file: Annotated[Path, typer.Argument(help="The pipeline file.")] = FILE,
    smallest: Annotated[bool, typer.Option("--smallest", help="Seconds instead of minutes; learns nothing.")] = False,
    overrides: Overrides = None,
) -> None:
    """Make the target and the data where they are missing, train, and print what was learnt."""
    from dflash_run.tiny.making import is_made, make_tiny

    made, changes = file.parent / "made", list(overrides or ())
    if not is_made(made):
        _say(f"1. A four-layer target of bytes, trained on Python's standard library, answers prompts: {made}")
        make_tiny(made, SMALLEST if smallest else Sizes(), told=_say)
    else:
        _say(f"1. The target and its answers are there: {made}")
    summaries = {}
    for number, (targets, drafters) in enumerate(SHAPES, start=2):
        _say(f"\n{number}. {targets} + {drafters}")
        summaries[f"{targets}x{drafters}"] = _train(file, targets, drafters, changes)
    _compare(file, changes, summaries)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _folder(shape: str) -> Path:
    return Path("runs") / f"tiny-{shape}"


def _train(file: Path, targets: int, drafters: int, changes: list[str]) -> dict[str, Any]:
    """As the command does it; the summary. Ends the demo where the training does not train everything."""
    from dflash_run.training.command import train_file

    folder = _folder(f"{targets}x{drafters}")
    shape = [f"topology.targets={targets}", f"topology.drafters={drafters}"]
    status = train_file(
        file, resume=None, verify=True, overrides=[*shape, *changes], out=folder, as_json=False, seed=None
    )
    if status:
        raise typer.Exit(status)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def _compare(file: Path, changes: list[str], summaries: dict[str, dict[str, Any]]) -> None:
    from rich.table import Table

    from dflash_run.tiny.baselines import ACCEPTED, LOSS, bigram, untrained
    from dflash_run.training.preparation import prepare_training

    prepared = prepare_training(load(file, changes), gpus=0)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("held-out samples", "accepted length", "loss"):
        table.add_column(column, justify="left" if column == "held-out samples" else "right")
    before, simplest = untrained(prepared), bigram(prepared)
    table.add_row("untrained drafter", f"{before.accepted:.2f}", f"{before.loss:.2f}")
    table.add_row("bigram of the training samples", f"{simplest.accepted:.2f}", "–")
    for shape, summary in summaries.items():
        figures, batches = summary["training"]["figures"], summary["batches"]
        name = f"trained {shape.replace('x', ' + ')}, {batches['trained']} of {batches['planned']} batches"
        table.add_row(name, f"{figures[ACCEPTED]:.2f}", f"{figures[LOSS]:.2f}")
    people, most = console(), prepared.pipeline.model.block_size - 1
    people.print(f"\nWhat was learnt: of {most} drafted tokens, how many are right before the first wrong one")
    people.print(table)
    people.print(_NEXT, highlight=False, markup=False)


_NEXT: Final = f"""
What to look at next
  {_folder("2x2")}/summary.json        who was busy, who waited, and the verdict
  {_folder("2x2")}/scalars.jsonl       loss and accepted length over the steps
  {_folder("2x2")}/checkpoints/best    weights, optimizer, and the batches that are trained
  dflash-sim replay {_folder("2x2")}   the dispatcher's decisions, taken again and compared
  docs/training.md                  how to resume on another topology, and to read the outputs"""


def main() -> None:
    """Run it as a command: what is wrong with the input is told in lines."""
    command = typer.Typer(add_completion=False)
    command.command()(demo)
    sys.exit(guarded(command, sys.argv[1:]))


if __name__ == "__main__":  # spawned workers import this module under another name
    main()

"""`make demo-train`: a small target, its answers as data, and a drafter trained on them 1 + 1, then 2 + 2."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dflash_run.tiny.sizes import SMALLEST, Sizes
from dflash_sim.cli import console, guarded
from policies.loading import load
from reports.commands import run_and_exit

FILE: Final = Path("examples/tiny/pipeline.yaml")
Shape = tuple[int, int]
SHAPES: Final[tuple[Shape, ...]] = ((1, 1), (2, 2))
"""Targets and drafters of each training."""
_MADE: Final = "made"
_SMALLEST: Final = f"{_MADE}/smallest"
"""Beside the file; each size has its own, so that a look at the smallest form costs the demo nothing."""

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key; repeatable.")]


def demo(
    file: Annotated[Path, typer.Argument(help="The pipeline file.")] = FILE,
    smallest: Annotated[bool, typer.Option("--smallest", help="Seconds instead of minutes; learns nothing.")] = False,
    overrides: Overrides = None,
) -> None:
    """Make the target and the data where they are missing, train, and print what was learnt."""
    from dflash_run.tiny.making import is_made, make_tiny

    sizes, made = (SMALLEST, file.parent / _SMALLEST) if smallest else (Sizes(), file.parent / _MADE)
    if not is_made(made):
        _say(f"1. A target of {sizes.layers} layers learns Python's standard library and answers prompts: {made}")
        make_tiny(made, sizes, told=_say)
    else:
        _say(f"1. The target and its answers are there: {made}")
    places = [f"data.path={_SMALLEST}/data.jsonl", f"model.name_or_path=./{_SMALLEST}/target"] if smallest else []
    changes = _with_taps(file, [*places, *(overrides or ())])
    runs = {shape: _folder(shape, smallest) for shape in SHAPES}
    summaries = {}
    for number, (shape, folder) in enumerate(runs.items(), start=2):
        _say(f"\n{number}. {_sum(shape)}")
        summaries[shape] = _train(file, shape, changes, folder)
    _compare(file, changes, summaries)
    _point(runs[SHAPES[-1]])


def _with_taps(file: Path, changes: list[str]) -> list[str]:
    """`changes`, and other taps where the file's are not layers of the target: it may be smaller than the file's."""
    from dflash_run.model.config import target_config

    model = load(file, changes).model
    depth = target_config(model).num_hidden_layers
    chosen = any(change.startswith("model.taps") for change in changes)  # the user's, right or wrong
    if chosen or model.taps is None or model.taps[-1] < depth:
        return changes
    taps = sorted({0, depth // 2})
    _say(f"   It has {depth} layers: taps {taps} instead of {list(model.taps)}")
    return [*changes, f"model.taps={taps}"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _folder(shape: Shape, smallest: bool) -> Path:
    targets, drafters = shape
    return Path("runs") / f"tiny-{'smallest-' if smallest else ''}{targets}x{drafters}"


def _sum(shape: Shape) -> str:
    targets, drafters = shape
    return f"{targets} + {drafters}"


def _train(file: Path, shape: Shape, changes: list[str], folder: Path) -> dict[str, Any]:
    """As the command does it; the summary. Ends the demo where the training does not train everything."""
    from dflash_run.training.command import train_file

    targets, drafters = shape
    topology = [f"topology.targets={targets}", f"topology.drafters={drafters}"]
    status = train_file(
        file, resume=None, verify=True, overrides=[*topology, *changes], out=folder, as_json=False, seed=None
    )
    if status:
        raise typer.Exit(status)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def _compare(file: Path, changes: list[str], summaries: dict[Shape, dict[str, Any]]) -> None:
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
        name = f"trained {_sum(shape)}, {batches['trained']} of {batches['planned']} batches"
        table.add_row(name, f"{figures[ACCEPTED]:.2f}", f"{figures[LOSS]:.2f}")
    people, most = console(), prepared.pipeline.model.block_size - 1
    people.print(f"\nWhat was learnt: of {most} drafted tokens, how many are right before the first wrong one")
    people.print(table)


def _point(run: Path) -> None:
    """What to look at in the folder of a run."""
    rows = {
        f"{run}/summary.json": "who was busy, who waited, and the verdict",
        f"{run}/scalars.jsonl": "loss and accepted length over the steps",
        f"{run}/checkpoints/best": "weights, optimizer, and the batches that are trained",
        f"dflash-sim replay {run}": "the dispatcher's decisions, taken again and compared",
        "docs/training.md": "how to resume on another topology, and to read the outputs",
    }
    width = max(map(len, rows))
    lines = [f"  {where:<{width}}   {what}" for where, what in rows.items()]
    console().print("\n".join(["\nWhat to look at next", *lines]), highlight=False, markup=False)


def main() -> None:
    """Run it as a command: what is wrong with the input is told in lines."""
    command = typer.Typer(add_completion=False)
    command.command()(demo)
    run_and_exit(lambda: guarded(command, sys.argv[1:]))


if __name__ == "__main__":  # spawned workers import this module under another name
    main()

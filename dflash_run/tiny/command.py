"""`python -m dflash_run.tiny FOLDER`: make the target and the data of `examples/tiny/pipeline.yaml`."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from dflash_run.tiny.making import make_tiny
from dflash_run.tiny.sizes import SMALLEST, Sizes
from reports.commands import guarded, run_and_exit


def _main(
    folder: Annotated[Path, typer.Argument(help="Where target/ and data.jsonl go.")],
    seed: Annotated[int, typer.Option(help="Seed of weights, windows and prompts.")] = 0,
    smallest: Annotated[bool, typer.Option("--smallest", help="Seconds instead of minutes; learns nothing.")] = False,
    change: Annotated[list[str] | None, typer.Option("--set", help="A size, e.g. steps=100.")] = None,
) -> None:
    """Make a small target from the standard library's sources, and its answers as training data."""
    sizes = SMALLEST if smallest else Sizes()
    names = [field.name for field in fields(Sizes)]
    changed = {name: getattr(sizes, name) for name in names}
    for text in change or []:
        name, _, value = text.partition("=")
        kind = float if name == "temperature" else int
        try:
            changed[name] = kind(value)
        except ValueError:
            changed[name] = 0
        if name not in names or not 0 < changed[name] < 1e9:
            raise typer.BadParameter(f"{text}: must be one of {', '.join(names)}, = and a number above 0")
    make_tiny(folder, Sizes(**changed), seed=seed, told=lambda text: print(text, file=sys.stderr, flush=True))


def main() -> None:
    """What is wrong with the input is told in lines."""
    command = typer.Typer(add_completion=False)
    command.command()(_main)
    run_and_exit(lambda: guarded(command, sys.argv[1:]))

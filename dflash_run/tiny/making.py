"""Makes the folder of a tiny training: `target/` and `data.jsonl`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dflash_run.model.quiet import quiet
from dflash_run.tiny.sizes import Sizes
from dflash_run.tiny.source import standard_library
from dflash_run.tiny.target import Told, answers, train_target
from reports.writing import write_text


def make_tiny(folder: Path, sizes: Sizes, *, seed: int = 0, told: Told = print) -> None:
    """Train the target, save it in `folder`/target, and write its answers to `folder`/data.jsonl (conversations).

    `told` hears of progress. The same sizes, seed, library sources and torch give the same files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = standard_library(sizes.source)
    with _one_thread():
        model = train_target(text, sizes, seed, told)
        with quiet():
            model.save_pretrained(folder / "target")
        lines = [_line(prompt, answer) for prompt, answer in answers(model, text, sizes, seed, told)]
    write_text(folder / "data.jsonl", "".join(lines))
    told(f"{folder}: target and {len(lines)} samples")


def is_made(folder: Path) -> bool:
    """Whether `make_tiny` has been here, of whatever sizes: the data are written last."""
    return (folder / "data.jsonl").is_file() and (folder / "target" / "config.json").is_file()


@contextmanager
def _one_thread() -> Iterator[None]:
    """torch with one thread: a second one gains little on matrices so small, and on a core that others use too it
    waits for them hundreds of times a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _line(prompt: str, answer: str) -> str:
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}) + "\n"

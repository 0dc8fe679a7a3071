"""The real command in a process of its own, whose workers are spawned, as a user runs it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0


def start(*arguments: object, folder: Path) -> "subprocess.Popen[str]":
    """`dflash-run ARGUMENTS` in `folder`, the head of a process group of its own."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "dflash_run", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*arguments: object, folder: Path) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    process = start(*arguments, folder=folder)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def strict_json(text: str) -> dict[str, Any]:
    """What must be one JSON object without NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def descendants(process: int) -> list[int]:
    """Processes that it has started, and theirs."""
    found: list[int] = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *descendants(child)]
    return found


def living(processes: list[int]) -> list[int]:
    """Those of them that are there and no zombies."""
    return [each for each in processes if _state(each) not in ("", "Z", "X")]


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_until(true: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Raises AssertionError where it does not come true."""
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)

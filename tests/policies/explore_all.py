"""`make explore-all`: 3 targets, 3 drafters, 5 batches and one loss at any time, every set-up; hours of many cores.

What is done is kept in a file of lines, so that it can be cut off and gone on with, also elsewhere.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from exploring import explore  # noqa: E402
from test_explore import KINDS, SYNCS, label, setups  # noqa: E402

from policies.world import Setup  # noqa: E402

LIMIT = 60_000_000
"""States of a set-up, for which memory must suffice."""


def work() -> Iterator[tuple[str, Setup]]:
    """All set-ups, by name."""
    for kind in KINDS:
        for setup in setups(kind, targets=3, drafters=3, batches=5, capacities=(1, 2), syncs=SYNCS):
            yield label(setup, 1, False), setup


def done_by(path: Path) -> dict[str, dict[str, Any]]:
    """What the file says is done, by name."""
    if not path.exists():
        return {}
    return {line["name"]: line for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def one(task: tuple[str, Setup]) -> dict[str, Any]:
    """Explore a set-up."""
    name, setup = task
    start = time.perf_counter()
    try:
        found = explore(setup, 1, limit=LIMIT)
    except AssertionError as error:  # the others go on
        return {"name": name, "states": 0, "ends": {}, "seconds": time.perf_counter() - start, "error": str(error)}
    seconds = time.perf_counter() - start
    return {"name": name, "states": found.states, "ends": dict(found.ends), "seconds": seconds, "error": None}


def main() -> int:
    """Returns 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/explored.jsonl"))
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    everything, before = list(work()), done_by(options.out)
    left = [task for task in everything if task[0] not in before]
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, maxtasksperchild=1) as pool, options.out.open("a", encoding="utf-8") as log:
        for found in pool.imap_unordered(one, left):
            log.write(json.dumps(found) + "\n")
            log.flush()
            told = f"{found['states']:>10,}  {found['seconds']:>6.0f} s  {found['name']}  {found['error'] or ''}"
            print(told, flush=True)
    lines = done_by(options.out)
    failed = [line for line in lines.values() if line["error"]]
    states = sum(line["states"] for line in lines.values())
    print(f"{len(lines)} of {len(everything)} set-ups, {states:,} states, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

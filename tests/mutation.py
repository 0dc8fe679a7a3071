"""The second pass of `make mutate`: what survived the fast tests meets the slow ones; then the outcome is told.

The first pass (`mutmut run`, configured in pyproject.toml) leaves its verdicts in `mutants/`. Here each survivor is run
against the conformance kit, the exploration and the simulator's tests. Prints the counts, and each survivor as a line
of docs/mutation.md without its reason.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "mutants"
FULLER = (
    "tests/policies/test_conformance.py::test_every_policy_of_the_table_conforms_to_the_rules",
    "tests/policies/test_explore.py::test_every_interleaving_of_two_targets_and_drafters",
    "tests/sim/test_cases.py",
    "tests/sim/test_simulator_properties.py",
    "tests/sim/test_replay.py",
)
LIMIT_S = 600
SURVIVED, NO_TESTS, OUT_OF_TIME = (0,), (5, 33), (24, -24, 36, 152, 255)


def verdicts() -> dict[str, int]:
    """The exit code of the first pass for each mutant, as mutmut wrote it."""
    found: dict[str, int] = {}
    for path in sorted(MUTANTS.glob("policies/*.py.meta")):
        found |= json.loads(path.read_text())["exit_code_by_key"]
    return found


def survives(mutant: str) -> bool:
    """Whether the fuller tests pass with the mutant; a run past its time is no pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *FULLER]
    environment = {**os.environ, "MUTANT_UNDER_TEST": mutant, "PYTHONPATH": str(MUTANTS)}
    try:
        done = subprocess.run(command, cwd=MUTANTS, env=environment, capture_output=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def described(mutant: str) -> str:
    """`| file:line | before | after |` of a mutant."""
    diff = subprocess.run(
        [str(Path(sys.executable).parent / "mutmut"), "show", mutant], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    hunk = next(k for k, line in enumerate(diff) if line.startswith("@@"))
    body = diff[hunk + 1 :]
    before = next(k for k, line in enumerate(body) if line.startswith("-"))
    removed, added = (next(line[1:].strip() for line in body if line.startswith(sign)) for sign in "-+")
    start = re.match(r"@@ -(\d+)", diff[hunk])
    assert start is not None
    path = Path(*mutant.split(".x", 1)[0].split(".")).with_suffix(".py")
    line = _first_line(ROOT / path, mutant) - 1 + int(start[1]) + before
    return f"| {path.name}:{line} | `{removed}` | `{added}` |"


def _first_line(path: Path, mutant: str) -> int:
    """The line of the `def` of the mutated function."""
    mangled = re.sub(r"__mutmut_\d+$", "", mutant.split(".x", 1)[1])
    *_, owner, name = ["", *mangled.strip("ǁ").split("ǁ")] if "ǁ" in mangled else ["", mangled[1:]]
    tree: ast.AST = ast.parse(path.read_text())
    if owner:
        tree = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner)
    return next(node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


def main() -> None:
    first = verdicts()
    left = [mutant for mutant, code in first.items() if code in SURVIVED + NO_TESTS]
    kept = []
    for mutant in left:
        alive = survives(mutant)
        print(f"{'survives' if alive else 'killed'} the fuller tests: {mutant}", flush=True)
        kept += [mutant] if alive else []
    count = Counter(
        "survived" if code in SURVIVED else "without a test" if code in NO_TESTS
        else "out of time" if code in OUT_OF_TIME else "killed"
        for code in first.values()
    )  # fmt: skip
    print(f"first pass: {len(first)} mutants: {dict(count)}")
    print(f"second pass: {len(left) - len(kept)} of {len(left)} killed; {len(kept)} survive both")
    print(f"killed or out of time: {100 * (1 - len(kept) / len(first)):.1f} %")
    for mutant in kept:
        print(described(mutant))


if __name__ == "__main__":
    main()

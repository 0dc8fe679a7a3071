"""An interrupt ends a command with one line and 130, whenever it comes and whatever swallows it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
IMPORTING = """
import os, signal, time
os.kill(os.getpid(), signal.Signals(NUMBER))
while True:
    time.sleep(0.01)
"""
RUNNING = """
import os, signal, time, weakref
from reports import entry
from reports.commands import run_and_exit

class Closing:
    def __del__(self):
        os.kill(os.getpid(), NUMBER)
        time.sleep(0.01)

def swallowed_by_a_finaliser():
    Closing()
    time.sleep(30)
    return 0

def swallowed_by_a_callback():
    closing = type("Kept", (), {})()
    weakref.finalize(closing, os.kill, os.getpid(), NUMBER)
    del closing
    time.sleep(30)
    return 0

def made_something_else():
    try:
        os.kill(os.getpid(), NUMBER)
        time.sleep(30)
    except BaseException:
        raise ImportError("core failed to import") from None

def swallowed_by_a_library():
    try:
        os.kill(os.getpid(), NUMBER)
        time.sleep(30)
    except:
        pass
    entry.check()
    return 0

def again_and_again():
    try:
        os.kill(os.getpid(), NUMBER)
        time.sleep(30)
    finally:
        import atexit
        atexit.register(lambda: [os.kill(os.getpid(), NUMBER) for _ in range(9)])

def main():
    run_and_exit(HOW)
"""


def ended(folder: Path, code: str) -> tuple[int, list[str]]:
    """(status, lines said) of this module, entered as a command is."""
    (folder / "play.py").write_text(code)
    command = [sys.executable, "-c", "from reports.entry import enter; enter('play')"]
    path = os.pathsep.join([str(folder), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=20)
    assert not done.stdout
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("number", ENDING)
def test_an_interrupt_while_modules_are_imported_is_one_line(number: int, tmp_path: Path) -> None:
    assert ended(tmp_path, IMPORTING.replace("NUMBER", str(int(number)))) == (
        130, ["interrupted: ended before it was done"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [
        "swallowed_by_a_finaliser",
        "swallowed_by_a_callback",
        "made_something_else",
        "swallowed_by_a_library",
        "again_and_again",
    ],
)
def test_an_interrupt_is_never_lost_and_told_once(how: str, tmp_path: Path) -> None:
    code = RUNNING.replace("NUMBER", str(int(signal.SIGINT))).replace("HOW", how)
    assert ended(tmp_path, code) == (130, ["interrupted: ended before it was done"])


def test_what_is_ignored_before_stays_ignored(tmp_path: Path) -> None:
    code = "import os, signal\ndef main():\n    os.kill(os.getpid(), signal.SIGHUP)\n    print('on', file=2)\n"
    code = code.replace("print('on', file=2)", "os.write(2, b'on\\n')")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ended(tmp_path, code) == (0, ["on"])
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "module", ["dflash_run", "dflash_sim", "reports", "dflash_run.validation", "dflash_run.tiny"]
)
def test_a_command_imports_nothing_before_signals_are_heard(module: str) -> None:
    code = (
        f"import sys; before = set(sys.modules); import {module}.__main__\n"
        "import json; ours = ('dflash', 'policies', 'reports', 'numpy', 'typer', 'typing')\n"
        "print(json.dumps([name for name in set(sys.modules) - before if name.startswith(ours)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    packages = {module.split(".")[0], module, f"{module}.__main__", "reports", "reports.entry"}
    assert set(json.loads(done.stdout)) <= packages

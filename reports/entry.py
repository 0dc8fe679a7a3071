"""How every command is entered: signals are heard before anything else is imported, and none is lost.

SIGINT, SIGTERM and SIGHUP end a command. While its modules are imported there is nothing to put in order, and the
process ends on the spot. From then on KeyboardInterrupt is raised where the command is; where a finaliser or a callback
swallows it, it is raised again a moment later, and where a library turned it into something else, `check` raises it at
the next safe place. What is ignored before (SIGHUP under nohup) stays so. Imports the standard library only.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

TYPE_CHECKING = False  # typing itself would take longer to import than all else here
if TYPE_CHECKING:
    from types import FrameType
    from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""Exit status after an interrupt."""
SAID: Final = "interrupted: ended before it was done"
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
_AGAIN_S: Final = 0.02
"""After which an interrupt that was swallowed is raised again: by then whatever swallowed it has returned."""


class _Asked:
    """Whether this process was asked to end: signals are the process's, and so is this."""

    heard = False
    """Whether this process is a command's; another that uses our parts has its own way with interrupts."""
    ever = False


class Interrupted(Exception):
    """An interrupt with words for people: what became of the work."""


def enter(module: str) -> NoReturn:
    """Import this module of a command and run its `main`, which exits with a status."""
    for number in _heard():
        signal.signal(number, _end_at_once)
    importlib.import_module(module).main()
    sys.exit(0)


def hear() -> list[int]:
    """From here on signals raise KeyboardInterrupt; returns their numbers, for `ignore`."""
    _Asked.heard, heard = True, _heard()
    sys.unraisablehook = _unraisable
    for number in (*heard, signal.SIGALRM):
        signal.signal(number, interrupt)
    return heard


def ignore(heard: list[int]) -> None:
    """The command is over, and its status stands: signals may come again and again."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (*heard, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def interrupt(number: int, frame: FrameType | None) -> None:
    """The handler of a command that is running."""
    _Asked.ever = _Asked.heard
    raise KeyboardInterrupt


def asked() -> bool:
    """Whether an interrupt was raised, whatever became of it."""
    return _Asked.ever


def check() -> None:
    """Raise KeyboardInterrupt where one was raised before and something swallowed it."""
    if _Asked.ever:
        raise KeyboardInterrupt


def told(error: BaseException) -> str:
    """The line for people."""
    return f"interrupted: {error}" if isinstance(error, Interrupted) and str(error) else SAID


def _heard() -> list[int]:
    """Those that nobody ignores."""
    return [number for number in dict.fromkeys(_ENDING) if signal.getsignal(number) != signal.SIG_IGN]


def _end_at_once(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, f"{SAID}\n".encode())
    finally:
        os._exit(INTERRUPTED)


def _unraisable(unraisable: sys.UnraisableHookArgs, /) -> None:
    """An interrupt that its place cannot pass on is not printed, as other errors are: it comes again."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(unraisable)

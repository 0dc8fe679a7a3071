"""What the project's commands share: exit statuses, and a user's mistakes told in a line each, without a traceback."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

import typer
from rich.console import Console

from policies.batches import BatchPlanError
from policies.errors import PolicyError
from policies.faults import PipelineError, one_line
from policies.trace import TraceError
from reports import entry

# Typer carries Click inside from 0.29 on and depends on it before; its exceptions have the same names in both.
_Misused: Final[type[Any]] = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")

COMPLETE: Final = 0
UNUSABLE: Final = 2
INCOMPLETE: Final = 3
INTERRUPTED: Final = entry.INTERRUPTED


def run_and_exit(run: Callable[[], int]) -> NoReturn:
    """Run the process's only command and exit with its status; SIGINT, SIGTERM and SIGHUP end it with a line and 130.

    They may come again and again: once the command is over they are ignored.
    """
    heard = entry.hear()
    try:
        status = _status_of(run)
        entry.ignore(heard)
    except KeyboardInterrupt:  # between the command and the end
        status = INTERRUPTED
        entry.ignore(heard)
    sys.exit(status)


def _status_of(run: Callable[[], int]) -> int:
    try:
        return run()
    except (KeyboardInterrupt, Exception) as error:
        if not isinstance(error, KeyboardInterrupt) and not entry.asked():
            raise
        _tell([one_line(entry.told(error))])  # also of what a library made of an interrupt
        return INTERRUPTED


def guarded(command: typer.Typer, arguments: list[str], *more: type[Exception], name: str | None = None) -> int:
    """Run a command; what is wrong with its input is told in one line a fault, without a traceback.

    `more`: errors besides the known ones whose text is a line per fault. `name`: of the command in its help, where the
    program's own is not all of it.
    """
    faulty: tuple[type[Exception], ...] = (PipelineError, BatchPlanError, TraceError, *more)
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.path.append("")  # a user's own policy is imported from the folder they stand in
    try:
        status = _run(command, arguments, name)
        if status == INTERRUPTED and entry.asked():  # Typer makes it a status; runs that end in order tell more
            raise entry.Interrupted
        sys.stdout.flush()
        return status
    except _Misused as error:
        lines = [one_line(error.format_message())]
    except PolicyError as error:
        lines = [one_line(f"dispatch.policy: {error}")]
    except faulty as error:
        lines = str(error).splitlines()
    except (KeyboardInterrupt, entry.Interrupted) as error:
        _tell([one_line(entry.told(error))])
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # whoever reads us has seen enough; the latter is Typer's way
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COMPLETE
    except OSError as error:
        lines = [one_line(f"{error.filename or 'file'}: {error.strerror or error}")]
    _tell(lines)
    return UNUSABLE


def _tell(lines: Iterable[str]) -> None:
    with contextlib.suppress(OSError):  # of a terminal that is gone
        for line in lines:
            sys.stderr.write(line + "\n")


def console() -> Console:
    """Where people read results; a pipe gets lines of 120 columns, so that tables are not cut."""
    plain = Console()
    return plain if plain.is_terminal or "COLUMNS" in os.environ else Console(width=120)


def _run(command: typer.Typer, arguments: list[str], name: str | None) -> int:
    try:
        return int(command(arguments, prog_name=name, standalone_mode=False) or 0)
    except typer.Exit as ended:
        return ended.exit_code

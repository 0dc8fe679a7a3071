"""A run's folder belongs to one run at a time, and nothing of an earlier one is taken for its own."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from policies.faults import Fault, PipelineError

LOCK: Final = ".lock"
RECORDS: Final = "records"
"""Folder of the workers' own records beside a trace (see `records`)."""


def unwritable(folder: Path, error: OSError) -> Fault:
    """The fault of a run's folder that cannot be written."""
    rule = f"must be a folder that can be written ({error.strerror or error})"
    return Fault("-o", str(folder), rule, "give another with -o, or make room and change its rights")


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """An empty folder for what only this process needs, gone when the context ends.

    What one that was killed left in it is removed by the next of this name. Raises PipelineError where another process
    has it, or where it is a link or a file, which is not ours.
    """
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise PipelineError([Fault("-o", str(folder), "must be a folder of our own; it is not", "remove it")])
    with claimed(folder):
        for left in folder.iterdir():
            if left.name != LOCK:
                _remove(left)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """While it lasts no other run may write into the folder; records of an earlier run are removed.

    The claim ends with the process, however that ends. Raises PipelineError where another run has it.
    """
    try:
        import fcntl
    except ImportError:  # not on this system: two runs into one folder go unnoticed
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while (file := _locked(folder / LOCK, fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
            pass
    except BlockingIOError:
        rule = "must be a folder that no other run writes into: one does at this moment"
        raise PipelineError([Fault("-o", str(folder), rule, "wait for it, or give another folder")]) from None
    except OSError as error:
        raise PipelineError([unwritable(folder, error)]) from None
    with file:
        shutil.rmtree(folder / RECORDS, ignore_errors=True)
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)


def _locked(path: Path, lock: Callable[[IO[str], int], None], how: int) -> IO[str] | None:
    """The file of this name, opened and locked; None where it lost its name meanwhile. Raises OSError.

    A run that ended between the two has removed the file that was opened: its lock would keep nobody out.
    """
    file = path.open("w")
    try:
        lock(file, how)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except FileNotFoundError:
        pass
    except OSError:
        file.close()
        raise
    file.close()
    return None

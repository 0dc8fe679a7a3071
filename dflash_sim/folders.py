"""A run's folder belongs to one run at a time, and nothing of an earlier one is taken for its own."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
    lock = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = lock.open("w")
    except OSError as error:
        raise PipelineError([unwritable(folder, error)]) from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            rule = "must be a folder that no other run writes into: one does at this moment"
            raise PipelineError([Fault("-o", str(folder), rule, "wait for it, or give another folder")]) from None
        shutil.rmtree(folder / RECORDS, ignore_errors=True)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)

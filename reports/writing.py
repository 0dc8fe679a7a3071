"""Where files may go, and how they get there whole: the one rule for every path that a user may give.

A file may be new or replace a regular file. A link is written through, and stays a link. What is neither, a device or a
pipe for instance, is refused: to replace it would take it from all who use it.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from policies.faults import Fault

RULE: Final = "must be a file"
_KINDS: Final = (
    (stat.S_ISREG, None),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a link that leads round in a circle"),
)


def obstacle(path: Path) -> str | None:
    """What is in the way of a file at this path, in words; None where it may be written."""
    try:
        mode = _mode(path)
    except OSError:  # nothing is there, or it cannot be looked at, which writing will tell
        return None
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "no file")


def _mode(path: Path) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:  # a link to what is not there yet, or to itself
        return os.lstat(os.path.realpath(path)).st_mode


def file_fault(key: str, path: Path, remedy: str = "give another path") -> Fault | None:
    """What is wrong with a file that shall be written here, to be told before the work; makes nothing."""
    found = obstacle(path)
    return None if found is None else Fault(key, str(path), f"{RULE}; it is {found}", remedy)


def destination(path: Path) -> Path:
    """The file behind all links, which may be written. Raises OSError, with the path, where it may not."""
    if (found := obstacle(path)) is not None:
        raise OSError(errno.EINVAL, f"{RULE}; it is {found}; give another path", str(path))
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to fill, which takes this path's place when the context ends: no reader ever sees a part of it.

    Raises OSError.
    """
    path = destination(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.close(handle)
        yield Path(name)
        os.chmod(name, 0o644)
        os.replace(name, destination(path))  # again: filling it may have taken minutes
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader never sees a part of it. Raises OSError."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader never sees a part of it. Raises OSError."""
    with replacing(path) as whole:
        whole.write_bytes(content)

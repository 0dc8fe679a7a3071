"""Anonymous shared memory of the launcher, which other processes map by a path and which ends with the last of them.

`memfd` rather than files in /dev/shm: nothing is left behind when everything is killed, and a container's small
/dev/shm does not bound it. Elsewhere than on Linux: files in the run's folder.
"""

import os
from pathlib import Path


class SharedMemory:
    """Pieces of one size."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        self._folder = folder
        self._files: list[int] = []
        self._paths: list[Path] = []

    def new(self, index: int) -> str:
        """Another piece; returns the path by which to map it. Its pages are taken when they are written."""
        if hasattr(os, "memfd_create"):
            file = os.memfd_create(f"dflash-slot-{index}")
            path = f"/proc/{os.getpid()}/fd/{file}"
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._paths.append(self._folder / f"slot-{index}")
            path = str(self._paths[-1])
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.ftruncate(file, self.size)
        self._files.append(file)
        return path

    def close(self) -> None:
        """Give everything back; what others have mapped stays theirs."""
        for file in self._files:
            os.close(file)
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._files, self._paths = [], []


def available_bytes() -> int | None:
    """Memory that this process may still take: the machine's, or less where a control group bounds it."""
    bounds = [_machine(), _group()]
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known else None


def _machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else int(kib) * 1024


def _group() -> int | None:
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            most = Path(limit).read_text(encoding="ascii").strip()
            now = int(Path(used).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        return None if most == "max" else max(int(most) - now, 0)
    return None

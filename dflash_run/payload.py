"""The hidden states of a rehearsal: blocks of bytes that say which batch they are, handed from worker to worker.

A block is written by the target that computed it, read and verified by the drafter that takes it, and removed when the
launcher says that nobody needs it any more. Files in the run's folder serve threads and processes alike.
"""

import struct
import zlib
from pathlib import Path
from typing import Final

_HEAD: Final = struct.Struct("<QQI")
"""Batch, number of bytes, checksum."""


class PayloadError(RuntimeError):
    """A block is not the one that was promised: something lost or mixed up data."""


class PayloadMissing(PayloadError):
    """There is no block: its target was lost, which the launcher is about to say, or something lost data."""


class PayloadStore:
    """Blocks in one folder, a file each; every worker opens the store for itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, batch: int, size: int) -> None:
        """Write the block of a batch, `size` bytes that depend on the batch."""
        body = (batch.to_bytes(8, "little") * (size // 8 + 1))[:size]
        path = self._path(batch)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(_HEAD.pack(batch, size, zlib.crc32(body)) + body)
        unfinished.replace(path)

    def get(self, batch: int) -> None:
        """Read and verify the block of a batch. Raises PayloadError, PayloadMissing where there is none."""
        try:
            block = self._path(batch).read_bytes()
        except OSError as error:
            raise PayloadMissing(f"batch {batch}: its block cannot be read: {error.strerror}") from error
        if len(block) < _HEAD.size:
            raise PayloadError(f"batch {batch}: its block is cut off at {len(block)} bytes")
        found, size, checksum = _HEAD.unpack_from(block)
        body = block[_HEAD.size :]
        if found != batch or size != len(body) or zlib.crc32(body) != checksum:
            raise PayloadError(f"batch {batch}: the block says batch {found}, {size} bytes, or has another checksum")

    def drop(self, batch: int) -> None:
        """Remove the block, if it is there."""
        self._path(batch).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything, and the folder."""
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)
        self._folder.rmdir()

    def _path(self, batch: int) -> Path:
        return self._folder / f"{batch}.bin"

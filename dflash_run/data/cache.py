"""The tokenised cache: one folder of memory-mapped arrays, written once, complete or not there at all."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dflash_run.data.samples import Tokens, supervised_pairs
from dflash_run.jsonfile import read_mapping

VERSION: Final = 2
"""Of the folder's layout and of how samples become tokens; part of every cache's name."""
_ABANDONED_S: Final = 24 * 3600.0
_BLOCK: Final = 1 << 24


class CacheBroken(Exception):
    """The folder is not a complete cache."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of the samples that were read."""

    read: int = 0
    """Samples in the file."""
    kept: int = 0
    """Samples in the corpus."""
    truncated: int = 0
    """Samples read that were cut at `data.max_length`."""
    dropped: int = 0
    """Samples without two supervised tokens in a row: no block can be anchored in them."""
    tokens: int = 0
    """Tokens of the kept samples."""
    supervised: int = 0
    """Supervised tokens of the kept samples."""

    def __str__(self) -> str:
        text = f"{self.kept:,} samples, {self.tokens:,} tokens, {self.supervised:,} of them supervised"
        if self.truncated:
            text += f"; cut: {self.truncated:,}"
        if self.dropped:
            text += f"; {self.dropped:,} of {self.read:,} dropped: no two supervised tokens in a row"
        return text


@dataclass(frozen=True)
class Cached:
    """An opened cache, M samples; arrays are memory-mapped and read-only."""

    tokens: NDArray[np.int32]
    """int32[total]."""
    loss_mask: NDArray[np.uint8]
    """uint8[total] of 0 and 1."""
    offsets: NDArray[np.int64]
    """int64[M+1]: sample i is `tokens[offsets[i]:offsets[i+1]]`."""
    report: Report
    largest_id: int
    """Largest token id, -1 without tokens."""
    content_hash: str
    """SHA-256 over tokens, masks and offsets, hex."""


def write_cache(folder: Path, samples: Iterable[Tokens], max_length: int) -> None:
    """Write samples, cut to `max_length` tokens, as the cache `folder`; it appears complete or not at all.

    Two processes may write the same cache at once: the first to end provides it. Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    making.chmod(0o755)  # others may train on it too
    try:
        _fill(making, samples, max_length)
        _provide(making, folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def open_cache(folder: Path, *, verify: bool = False) -> Cached:
    """Map the cache; `verify` reads it all and compares checksums. Raises CacheBroken."""
    try:
        meta = read_mapping(folder / "meta.json")
        if meta.pop("hash") != _meta_hash(meta) or meta["version"] != VERSION:
            raise CacheBroken(f"{folder}: meta.json")
        report = Report(**meta["report"])
        offsets = np.load(folder / "offsets.npy", allow_pickle=False)
        tokens = _mapped(folder / "tokens.bin", np.dtype("<i4"), report.tokens)
        mask = _mapped(folder / "loss_mask.bin", np.dtype("u1"), report.tokens)
        found = Cached(tokens, mask, offsets, report, int(meta["largest_id"]), str(meta["content_hash"]))
        whole = offsets.dtype == np.int64 and offsets.shape == (report.kept + 1,)
        if not whole or offsets[0] != 0 or offsets[-1] != report.tokens or (np.diff(offsets) < 2).any():
            raise CacheBroken(f"{folder}: offsets.npy")
    except CacheBroken:
        raise
    except Exception as error:  # a damaged file may make its reader raise anything
        raise CacheBroken(f"{folder}: {error}") from None
    if verify and _content_hash(folder, offsets) != found.content_hash:
        raise CacheBroken(f"{folder}: its content changed")
    return found


def _fill(folder: Path, samples: Iterable[Tokens], max_length: int) -> None:
    lengths: list[int] = []
    read = truncated = supervised = 0
    largest = -1
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "loss_mask.bin").open("wb") as masks:
        for ids, mask in samples:
            read += 1
            truncated += len(ids) > max_length
            ids, mask = ids[:max_length], mask[:max_length]
            if supervised_pairs(mask) == 0:
                continue
            tokens.write(ids.astype("<i4").tobytes())
            masks.write(mask.astype("u1").tobytes())
            lengths.append(len(ids))
            supervised += int(mask.sum())
            largest = max(largest, int(ids.max()))
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))))
    np.save(folder / "offsets.npy", offsets, allow_pickle=False)
    report = Report(
        read=read,
        kept=len(lengths),
        truncated=truncated,
        dropped=read - len(lengths),
        tokens=int(offsets[-1]),
        supervised=supervised,
    )
    content = _content_hash(folder, offsets)
    meta = {"version": VERSION, "report": asdict(report), "largest_id": largest, "content_hash": content}
    text = json.dumps(meta | {"hash": _meta_hash(meta)}, indent=1)
    (folder / "meta.json").write_text(text, encoding="utf-8")
    for path in folder.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())  # the name must not survive a power cut that the content does not


def _provide(making: Path, folder: Path) -> None:
    """Move a finished cache to its name; one that is already there and whole stays, a broken one goes."""
    for _ in range(8):
        try:
            making.rename(folder)
            return
        except OSError:
            if not os.path.lexists(folder):  # a link to nowhere is in the way, too
                raise
        try:
            open_cache(folder, verify=True)
            return
        except CacheBroken:
            # Renamed before it is removed, so that nobody finds it half removed under its name.
            aside = Path(tempfile.mkdtemp(prefix=".broken-", dir=folder.parent))
            if os.path.lexists(folder):
                folder.rename(aside / "cache")
            shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"{folder} cannot be replaced")


def _sweep(parent: Path) -> None:
    """Remove what processes that were cut off left behind long ago."""
    for path in parent.glob(".making-*"):
        try:
            newest = max(each.stat().st_mtime for each in (path, *path.iterdir()))
        except OSError:  # its maker has ended meanwhile
            continue
        if time.time() - newest > _ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)


def _mapped(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes")
    if count == 0:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))


def _meta_hash(meta: Mapping[str, Any]) -> str:
    """Of what meta.json says beside it: what the report tells people is checked like the tokens."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _content_hash(folder: Path, offsets: NDArray[np.int64]) -> str:
    digest = hashlib.sha256(offsets.astype("<i8").tobytes())
    for name in ("tokens.bin", "loss_mask.bin"):
        with (folder / name).open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()

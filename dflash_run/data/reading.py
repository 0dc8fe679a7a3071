"""Reads samples from JSONL, parquet or a dataset folder: one mapping each, with the place where it stands."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from dflash_run.data.faults import BadSample, reason_of, refused
from policies.faults import ABSENT, shown

KINDS: Final = {"messages": "conversations", "input_ids": "tokens", "text": "text"}
"""A sample's key → what it is."""
_KEY_OF: Final = {kind: key for key, kind in KINDS.items()}
_PACKED: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}
"""What a compressed file begins with, as no JSON does, and what it is called."""
_BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class Record:
    """One sample as it was read, or what is wrong with it."""

    place: str
    """`line 3` or `row 3`, counted from 1."""
    value: Mapping[str, Any] | BadSample


def read_records(path: Path) -> Iterator[Record]:
    """All samples of a file or folder, in order. Raises PipelineError where the whole cannot be read."""
    if path.is_dir():
        yield from _read_dataset(path)
    elif path.suffix.lower() == ".parquet" or _head(path).startswith(b"PAR1"):
        yield from _read_parquet(path)
    else:
        yield from _read_lines(path)


def kind_of(path: Path, given: str | None) -> str:
    """What the samples are: conversations, text or tokens.

    `given` is the file's `data.format`; `dataset` and None are told by the keys of the first sample. Raises
    PipelineError for a path without samples, and where the first sample is none of the three.
    """
    if not path.is_file() and not path.is_dir():
        rule = "must name a file or a dataset folder; paths start at the folder of the pipeline file"
        raise refused("data.path", str(path), rule)
    if path.is_dir() and given not in (None, "dataset"):
        raise refused("data.format", given, "must be dataset, or left out: data.path is a folder")
    if path.is_file() and given == "dataset":
        raise refused("data.format", given, "must be conversations, text or tokens: data.path is a file")
    if path.is_file() and (packed := _packing(_head(path))) is not None:
        raise refused("data.path", str(path), f"must not be compressed: it is, with {packed}", "unpack it")
    first = next(read_records(path), None)
    if first is None:
        raise refused("data.path", str(path), "must hold at least one sample: it is empty")
    if given in _KEY_OF:
        return given
    if isinstance(first.value, BadSample):
        raise refused("data.path", first.value.value, f"{first.place} {first.value.rule}", first.value.remedy)
    found = [kind for key, kind in KINDS.items() if first.value.get(key) is not None]
    if not found:
        rule = f"{first.place} must have one of the keys {', '.join(KINDS)}"
        raise refused("data.path", list(first.value), rule, "rename its keys")
    return found[0]


def content_hash(path: Path) -> str:
    """SHA-256 over the file's bytes, or over the names and bytes of a folder's files, hex."""
    digest = hashlib.sha256()
    try:
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        for file in files:
            if path.is_dir():
                digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
    except OSError as error:
        raise _unreadable(path, error) from None
    return digest.hexdigest()


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(8)
    except OSError as error:
        raise _unreadable(path, error) from None


def _packing(head: bytes) -> str | None:
    return next((name for start, name in _PACKED.items() if head.startswith(start)), None)


def _unreadable(path: Path, error: Exception) -> Exception:
    remedy = "" if getattr(error, "errno", None) else "it is damaged or of another kind: write it anew"
    return refused("data.path", str(path), f"must be readable ({reason_of(error)})", remedy)


def _read_lines(path: Path) -> Iterator[Record]:
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield Record(f"line {number}", _parsed(line))
    except OSError as error:
        raise _unreadable(path, error) from None


def _parsed(line: bytes) -> Mapping[str, Any] | BadSample:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return BadSample(repr(line[error.start : error.end]), "must be UTF-8")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return BadSample(text.strip(), "must be a JSON object", "one sample a line")
    if not isinstance(value, dict):
        return BadSample(value, "must be a JSON object", "one sample a line")
    return value


def _read_parquet(path: Path) -> Iterator[Record]:
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            wanted = [name for name in file.schema_arrow.names if name in (*KINDS, "loss_mask")]
            if len(set(wanted)) < len(wanted):
                raise refused("data.path", wanted, "must have each column once", "remove or rename the others")
            for batch in file.iter_batches(batch_size=256, columns=wanted or None):
                for row in _rows(batch):
                    number += 1
                    yield Record(f"row {number}", row)
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, error) from None


def _rows(batch: pyarrow.RecordBatch) -> list[Mapping[str, Any] | BadSample]:
    """The rows as Python values; one that is none (a text that is no UTF-8, a time out of range) is told alone."""
    try:
        rows: list[Mapping[str, Any] | BadSample] = batch.to_pylist()
        return rows
    except Exception as error:  # what a type's conversion raises is its own affair
        if batch.num_rows == 1:
            remedy = "write text as UTF-8" if isinstance(error, UnicodeError) else "correct or remove it"
            return [BadSample(ABSENT, f"must be readable ({reason_of(error)})", remedy)]
        return [row for at in range(batch.num_rows) for row in _rows(batch.slice(at, 1))]


def _read_dataset(path: Path) -> Iterator[Record]:
    try:
        import datasets
    except ImportError:
        remedy = "pip install datasets, or write the samples to a JSONL or parquet file"
        raise refused("data.path", str(path), "is a folder, which needs the package datasets", remedy) from None
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever a broken folder makes the library raise is the user's to repair
        raise _unreadable(path, error) from None
    if isinstance(loaded, dict):
        if len(loaded) != 1:
            rule = f"must be one dataset: it holds the splits {shown(sorted(loaded))}"
            raise refused("data.path", str(path), rule, "name the folder of one split")
        loaded = next(iter(loaded.values()))
    try:
        for number, row in enumerate(loaded, start=1):
            yield Record(f"row {number}", row)
    except Exception as error:  # files are read as the rows are asked for
        raise _unreadable(path, error) from None

"""Reads a pipeline file: text → mapping → overrides → checks. Every fault is found in one pass."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from policies import overrides as changes
from policies.checking import checked
from policies.faults import ABSENT, Fault, PipelineError, dotted, one_line
from policies.paths import Key
from policies.pipeline import Pipeline
from policies.suggest import keys_at
from policies.yamltext import MAX_CHARS, MAX_DEPTH, parse

__all__ = [
    "Fault",
    "Pipeline",
    "PipelineError",
    "from_mapping",
    "inputs",
    "load",
    "loads",
    "replaced",
    "resolved",
]

_FILES: Final = (
    ("data", "lengths"),
    ("data", "path"),
    ("data", "cache"),
    ("timings", "file"),
    ("model", "warm_start"),
)
_NAMES: Final = (("model", "name_or_path"), ("model", "tokenizer"))
"""Names that are paths where they start so, or where such a folder lies beside the file; else ids of the model hub."""
_STARTS: Final = ("./", "../", "~/")
_READ_FILES: Final = (("data", "lengths"), ("timings", "file"))
"""Files that a prediction reads: they must be there."""


def load(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), *, for_simulation: bool = False
) -> Pipeline:
    """The pipeline of a file. Paths in it, and in overrides, start at the file's folder.

    `overrides`: texts `dotted.key=value`. `for_simulation`: data and timings must be there.
    Raises PipelineError for whatever is wrong with the file or its contents.
    """
    text = _read(Path(path))
    folder = Path(os.path.abspath(path)).parent
    return loads(text, overrides, folder=folder, source=os.fspath(path), for_simulation=for_simulation)


def loads(
    text: str,
    overrides: Iterable[str] = (),
    *,
    folder: Path | None = None,
    source: str = "pipeline",
    for_simulation: bool = False,
) -> Pipeline:
    """As `load`, from text; `source` names it in faults, `folder` is where its relative paths start."""
    document = parse(text, one_line(source))
    mapping, faults = _plain_mapping(document.value, one_line(source))
    faults = document.faults + faults + changes.apply(mapping, overrides)
    if folder is not None:
        faults += _resolve_paths(mapping, folder)
    return checked(mapping, faults, for_simulation=for_simulation)


def from_mapping(
    mapping: Mapping[str, object], overrides: Iterable[str] = (), *, for_simulation: bool = False
) -> Pipeline:
    """As `load`, from a mapping of plain values, e.g. a summary's `config`."""
    plain, faults = _plain_mapping(mapping, "pipeline")
    return checked(plain, faults + changes.apply(plain, overrides), for_simulation=for_simulation)


def resolved(pipeline: Pipeline) -> dict[str, Any]:
    """The full configuration as a JSON-able mapping; `from_mapping` makes an equal pipeline of it."""
    return pipeline.model_dump(mode="json", exclude_none=True)


def inputs(pipeline: Pipeline) -> dict[str, Path]:
    """The files and folders that a pipeline read from a file is given, by dotted key; ids of the model hub are none."""
    mapping = resolved(pipeline)
    given = {(section, key): mapping.get(section, {}).get(key) for section, key in _FILES + _NAMES if key != "cache"}
    return {dotted(key): Path(value) for key, value in given.items() if isinstance(value, str) and os.path.isabs(value)}


def replaced(pipeline: Pipeline, values: Mapping[str, object]) -> Pipeline:
    """`pipeline` with other values at dotted keys, checked again; capacity replaces depth, and so on."""
    mapping = resolved(pipeline)
    placed: set[str] = set()
    for key, value in values.items():
        changes.place(mapping, key.split("."), value, placed)
    return from_mapping(mapping)


def _read(path: Path, most: int = 4 * MAX_CHARS) -> str:
    name = one_line(os.fspath(path))
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise PipelineError([Fault(name, ABSENT, f"must be a readable file: {error.strerror}")]) from None
    except ValueError as error:  # a null character in the name
        raise PipelineError([Fault(name, ABSENT, f"must be a readable file: {error}")]) from None
    if len(raw) > most:
        raise PipelineError([Fault(name, ABSENT, f"must be at most {most} bytes")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        rule = f"must be UTF-8 text; byte {error.start} is not"
        raise PipelineError([Fault(name, ABSENT, rule, "save it as UTF-8")]) from None


def _plain_mapping(value: object, source: str) -> tuple[dict[str, object], list[Fault]]:
    if not isinstance(value, Mapping):
        keys = ", ".join(keys_at(()))
        fault = Fault(source, value, f"must be a mapping of {keys}", "e.g. `data: {batches: 240}`")
        raise PipelineError([fault])
    faults: list[Fault] = []
    return cast(dict[str, object], _plain(value, (), faults)), faults


def _plain(value: object, at: Key, faults: list[Fault]) -> object:
    """A deep copy in dicts, lists and scalars, free to be changed; what is none of them becomes a fault."""
    if len(at) > MAX_DEPTH:
        fault = Fault(dotted(at[:2]), ABSENT, f"must be nested at most {MAX_DEPTH} deep")
        raise PipelineError([*faults, fault])
    match value:
        case Mapping():
            named = [pair for pair in value.items() if _named(pair[0], at, faults)]
            return {key: _plain(item, (*at, key), faults) for key, item in named}
        case list() | tuple():
            return [_plain(item, (*at, index), faults) for index, item in enumerate(value)]
        case None | bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
    faults.append(Fault(dotted(at), value, "must be a mapping, a list, text, a number, true, false or null"))
    return None


def _named(key: object, at: Key, faults: list[Fault]) -> bool:
    if not isinstance(key, str):
        faults.append(Fault(dotted(at) or "pipeline", key, "keys must be text"))
    return isinstance(key, str)


def _resolve_paths(mapping: dict[str, object], folder: Path) -> list[Fault]:
    """Make the paths in `mapping` absolute; returns the faults of missing files that a prediction needs."""
    faults = []
    for section, key in _FILES + _NAMES:
        inner = mapping.get(section)
        value = inner.get(key) if isinstance(inner, dict) else None
        if (section, key) in _NAMES and not _is_path(value, folder):
            continue
        if isinstance(inner, dict) and isinstance(value, str) and value and "\0" not in value:
            inner[key] = os.path.abspath(folder / os.path.expanduser(value))
            if (section, key) in _READ_FILES and not os.path.isfile(inner[key]):
                rule = "must name a file; paths start at the folder of the pipeline file"
                faults.append(Fault(f"{section}.{key}", value, rule))
    return faults


def _is_path(name: object, folder: Path) -> bool:
    return isinstance(name, str) and (name.startswith(_STARTS) or ("\0" not in name and os.path.isdir(folder / name)))

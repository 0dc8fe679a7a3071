"""Reads a small JSON file that people, full disks or other versions may have damaged: one way, two kinds of error."""

import json
from pathlib import Path
from typing import Any


def read_mapping(path: Path) -> dict[str, Any]:
    """The object that a file holds. Raises OSError, or ValueError for whatever is not one JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a mapping")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")

"""Remembers which files a report made, so that the next one into the same folder removes those, and nothing else."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from reports.writing import write_bytes

MANIFEST: Final = "report-files.json"
_OURS: Final = re.compile(r"(figures|tables|perfetto)/[a-z0-9-]+\.(svg|png|csv|json)")
"""What a report makes; a list that names anything else was altered, and that name is passed over."""


def replace_earlier(folder: Path, made: Collection[str]) -> None:
    """Remove what the earlier report of this folder made and this one did not, and keep the new list."""
    for name in sorted(_earlier(folder) - set(made)):
        if _OURS.fullmatch(name) and not (folder / name).parent.is_symlink():
            (folder / name).unlink(missing_ok=True)
    text = json.dumps({"files": sorted(made)}, indent=1) + "\n"
    write_bytes(folder / MANIFEST, text.encode())


def _earlier(folder: Path) -> set[str]:
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return set()
    files = document.get("files") if isinstance(document, dict) else None
    return {name for name in files if isinstance(name, str)} if isinstance(files, list) else set()

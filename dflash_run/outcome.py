"""What a rehearsal leaves when it is over: its summary in the folder, and for people or programs."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from reports.summary import to_json
from reports.table import print_run
from reports.writing import write_text


def tell(people: Console, summary: dict[str, Any], title: str, folder: Path, *, as_json: bool) -> None:
    """Write `summary.json`, and print the summary: as JSON alone on stdout, or as a table."""
    text = to_json(summary)
    write_text(folder / "summary.json", text)
    if as_json:
        sys.stdout.write(text)
        return
    print_run(people, summary, title)
    people.print(f"summary and trace in {folder}", highlight=False, markup=False, soft_wrap=True)

"""Names of runs as ids and file names: never empty, no two alike, none that the report itself uses."""

import re
import unicodedata
from typing import Final

_MOST: Final = 60
"""Characters of a slug: file names end at 255 bytes."""
_RESERVED: Final = ("compare", "plan", "prediction", "diff", "main")
"""What the report's own figures, tables and sections begin with."""


def slug(name: str) -> str:
    """A name of a-z, 0-9 and hyphens; accents are dropped."""
    plain = unicodedata.normalize("NFKD", name).lower()
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_MOST].strip("-") or "run"


class Slugs:
    """Gives every name a slug of its own."""

    def __init__(self) -> None:
        self._taken = set(_RESERVED)

    def of(self, name: str) -> str:
        """The name's slug, with a number where another name has it already."""
        first = slug(name)
        found, number = first, 1
        while found in self._taken:
            number += 1
            found = f"{first}-{number}"
        self._taken.add(found)
        return found

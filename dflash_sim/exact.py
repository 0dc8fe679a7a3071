"""Sums that are kept for long: whole numbers of a tiny unit, so that what was added goes away again exactly."""

from typing import Final

ONE: Final = 2**60
"""Units in 1: what lies between two units is far below the rounding of a float near 1."""


def units(value: float) -> int:
    """The nearest number of units."""
    return round(value * ONE)

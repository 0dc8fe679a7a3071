"""Draws the figures of a report; the only modules that import matplotlib. What they plot is computed elsewhere."""

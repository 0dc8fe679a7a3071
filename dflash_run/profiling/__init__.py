"""Measuring a training's parts on this machine: the real workers, driven by a script instead of the dispatcher."""

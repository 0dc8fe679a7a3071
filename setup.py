"""Builds the package. With DFLASH_COMPILE=1 the hot path is compiled with mypyc, from the same typed source."""

import os

from setuptools import setup

HOT = [
    "policies/builtin.py",
    "policies/dispatcher.py",
    "policies/effects.py",
    "policies/hop.py",
    "policies/ledger.py",
    "policies/policy.py",
    "policies/window.py",
    "reports/metrics.py",
    "dflash_sim/simulator.py",
]
"""What every batch passes through."""


def extensions() -> list:
    if os.environ.get("DFLASH_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify(HOT, opt_level="3")


setup(ext_modules=extensions())

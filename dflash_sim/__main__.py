"""`python -m dflash_sim` is the command `dflash-sim`."""

from dflash_sim.cli import main

main()

"""`python -m dflash_run` is the command `dflash-run`."""

from dflash_run.cli import main

if __name__ == "__main__":  # spawned workers import this module under another name
    main()

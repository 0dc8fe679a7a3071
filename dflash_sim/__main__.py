"""`python -m dflash_sim` is the command `dflash-sim`."""

from reports.entry import enter


def main() -> None:
    """The console script."""
    enter("dflash_sim.cli")


if __name__ == "__main__":  # spawned workers import this module under another name
    main()

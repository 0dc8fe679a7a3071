"""`python -m dflash_run` is the command `dflash-run`."""

from reports.entry import enter


def main() -> None:
    """The console script."""
    enter("dflash_run.cli")


if __name__ == "__main__":  # spawned workers import this module under another name
    main()

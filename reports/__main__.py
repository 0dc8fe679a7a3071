"""`python -m reports` is `dflash-report`."""

from reports.entry import enter


def main() -> None:
    """The console script."""
    enter("reports.cli")


if __name__ == "__main__":  # spawned workers import this module under another name
    main()

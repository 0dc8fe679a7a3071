"""`python -m reports` is `dflash-report`."""

from reports.cli import main

main()

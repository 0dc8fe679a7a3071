"""`python -m dflash_run.tiny` is its `command`, which is imported once signals are heard."""

from reports.entry import enter

if __name__ == "__main__":  # spawned workers import this module under another name
    enter("dflash_run.tiny.command")

"""Tables as CSV; the only module that imports pandas."""

import pandas

from reports.tables import Table


def csv_of(table: Table) -> str:
    """The table as CSV with a heading; whole numbers stay whole, an empty cell has no value."""
    frame = pandas.DataFrame(list(table.rows), columns=list(table.columns), dtype=object)
    return str(frame.to_csv(index=False, lineterminator="\n"))

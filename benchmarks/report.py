"""How long and how much memory the report of a week's run takes: 756,000 batches, 5 targets + 3 drafters.

Asked for: under 20 s and 1 GB on two cores. `python benchmarks/report.py [RUN]` uses an existing run's folder.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dflash_sim.comparison import predict
from policies.loading import load
from reports.summary import to_json
from reports.writing import write_text

WEEK = 756_000
CHANGES = ("dispatch.policy=shared", "timings.target.cv=0.1", "timings.drafter.cv=0.1", "memory.hidden_size=5120")


def simulated(folder: Path) -> Path:
    """A week's run with its trace."""
    pipeline = load("examples/field_record.yaml", [f"data.batches={WEEK}", *CHANGES, "memory.taps=5"])
    _, summary = predict(pipeline, trace_in=folder)
    write_text(folder / "summary.json", to_json(summary))
    return folder


def main() -> None:
    """Print one line."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else simulated(Path(scratch) / "week")
        size = (run / "trace.parquet").stat().st_size / 1e6
        began = time.perf_counter()
        command = [sys.executable, "-m", "reports", str(run), "-o", f"{scratch}/report"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        page = (Path(scratch) / "report" / "index.html").stat().st_size / 1e6
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    spent = used.ru_utime + used.ru_stime
    print(
        f"{WEEK:,} batches, trace {size:.0f} MB: report in {wall:.1f} s ({spent:.1f} s of processor), {memory:.0f} MB, "
        f"page {page:.1f} MB; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    assert child.returncode == 0


if __name__ == "__main__":
    main()

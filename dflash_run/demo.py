"""`make demo`: the field record explained by the simulator, then ten seconds of real workers beside the prediction."""

import tempfile
from pathlib import Path
from typing import Any, Final

from dflash_run.rehearsal import rehearse
from dflash_sim import demo
from dflash_sim.cli import console
from dflash_sim.comparison import predict
from dflash_sim.prediction import summary_of
from policies.loading import load, replaced
from reports.commands import COMPLETE, run_and_exit
from reports.summary import lane_text
from reports.verdict import ktok

BATCHES: Final = 110
SPEEDUP: Final = 40.0


def main() -> int:
    """Print the record beside the model, then the rehearsal beside its prediction."""
    demo.main()
    out = console()
    out.print("\n[bold]6. Ten seconds of real workers[/bold]: i % 3 in eight threads, 40 times too fast\n")
    pipeline = replaced(load(demo.RECORD, for_simulation=True), {"data.batches": BATCHES})
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        rehearsed = summary_of(rehearse(pipeline, Path(folder), speedup=SPEEDUP), kind="rehearsal")
    for name, summary in (("predicted", predict(pipeline)[1]), ("rehearsed", rehearsed)):
        out.print(f"{name}: {_line(summary)}", highlight=False, markup=False)
    return COMPLETE


def _line(summary: dict[str, Any]) -> str:
    drafter = summary["workers"][-1]
    idle = drafter["starved_s"] / drafter["lifetime_s"]
    batches, rate = summary["batches"], ktok(summary["throughput"]["tokens_per_s"])
    trained = f"{batches['trained']} of {batches['planned']} trained, {batches['lost']} lost"
    return f"{rate} in all, {drafter['name']} idle {idle:.0%}, lanes {lane_text(summary['lanes'])}, {trained}"


if __name__ == "__main__":
    run_and_exit(main)

"""A summary made again from a trace, for a run that was killed before it wrote its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reports.memory import unknown_memory
from reports.summary import Facts, summarize
from reports.summaryfile import section
from reports.tracefile import Trace, metrics_of, read_trace

CUT_OFF: Final = "interrupted"
"""The stop reason of a run whose trace does not say how it ended."""


@dataclass(frozen=True, eq=False)
class _Plan:
    """What `summarize` reads of a batch plan."""

    tokens: NDArray[np.int64]
    slots: NDArray[np.int64]
    samples: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.tokens)


def summary_of_trace(path: Path) -> dict[str, Any]:
    """The summary by the accumulator's numbers. What only the run itself knew (memory, alternatives) is left out."""
    trace = read_trace(path)
    metrics = metrics_of(trace)
    metrics.ended = metrics.ended or CUT_OFF
    work, config = trace.work, trace.header.config
    plan = _Plan(*(np.asarray(column, np.int64) for column in (work.tokens, work.slots, work.samples)))
    facts = Facts(
        kind=trace.header.kind,
        policy=str(section(config, "dispatch").get("policy", "unknown")),
        seed=int(config.get("seed", 0)),
        config=config,
        anchors=section(config, "training").get("anchors"),
        memory=dict(unknown_memory(trace.header.drafters, trace.header.targets)),
        extra=_end(trace),
    )
    return summarize(metrics, plan, facts)


def _end(trace: Trace) -> dict[str, Any]:
    return {"remade": True, "complete": trace.complete}
